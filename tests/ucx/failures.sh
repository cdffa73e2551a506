# A mismatched call, a rank that never arrives, one that throws and one that is killed: each ends in a clear error, soon.
source "$(dirname "$0")/ranks.sh" "$@"
failures=0

# expect WHAT SECONDS PATTERN RANKS ARGUMENTS...: the run fails within SECONDS and says PATTERN. Deadlines that are not
# meant to pass are of 60 s.
expect() {
  local what=$1 seconds=$2 pattern=$3 count=$4 start=$SECONDS output status
  shift 4
  output=$(ranks "$count" "$process_ranks" "$@" 2>&1)
  status=$?
  if [ "$status" = 0 ]; then
    echo "FAILED $what: ended with status 0"
  elif [ "$status" = 124 ]; then
    echo "FAILED $what: hung"
  elif ((SECONDS - start > seconds)); then
    echo "FAILED $what: took $((SECONDS - start)) s"
  elif ! grep -Eq "$pattern" <<<"$output"; then
    echo "FAILED $what: said nothing like '$pattern'"
  else
    echo "ok $what, $((SECONDS - start)) s"
    return
  fi
  printf '%s\n' "$output"
  failures=$((failures + 1))
}

for algorithm in direct:0 ring:1 ring:2; do
  per_node=${algorithm#*:} name=${algorithm%:*}
  expect "mismatched counts ($name, $per_node a node)" 40 \
    "do not agree on call number 0 of group 'world': rank [0-3] called all_reduce of .* (5000|6000) x f32" 4 mismatch "$name" "$per_node"
  expect "absent rank ($name, $per_node a node)" 40 \
    "all_reduce of 10000 x f32 .*, number 1 of group 'world' passed its deadline of 3 s on rank [0-2]; rank 3 had not arrived" \
    4 absent "$name" "$per_node"
  expect "killed rank ($name, $per_node a node)" 15 "cannot be completed: rank 3 is lost" 4 killed "$name" "$per_node"
  expect "throwing rank ($name, $per_node a node)" 15 "rank 3 failed: the disk of this rank is on fire" 4 throws "$name" "$per_node"
done
exit "$failures"
