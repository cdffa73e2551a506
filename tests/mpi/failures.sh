# A mismatched call, a rank that never arrives, one that throws and one that is killed: each ends in a clear error, soon.
source "$(dirname "$0")/mpirun.sh" "$1"
failures=0

# Deadlines that are not meant to pass are of 60 s, so 40 s are soon, on a busy machine too.
# expect WHAT SECONDS PATTERN ARGUMENTS...: the run fails within SECONDS and says PATTERN.
expect() {
  local what=$1 seconds=$2 pattern=$3 start=$SECONDS output status
  shift 3
  output=$(mpi "$@" 2>&1)
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
    echo "ok $what"
    return
  fi
  printf '%s\n' "$output"
  failures=$((failures + 1))
}

for algorithm in direct ring native; do
  expect "mismatched counts ($algorithm)" 40 \
    "do not agree on call number 0 of group 'world': rank [0-2] called all_reduce of .* (5000|6000) x f32" 3 mismatch "$algorithm"
  expect "absent rank ($algorithm)" 40 \
    "all_reduce of 10000 x f32 .*, number 1 of group 'world' passed its deadline of 3 s on rank [01]; rank 2 had not arrived" \
    3 absent "$algorithm"
  expect "killed rank ($algorithm)" 40 "cannot be completed: rank 2 is lost" 3 killed "$algorithm"
  expect "throwing rank ($algorithm)" 40 "rank 2 failed: the disk of this rank is on fire" 3 throws "$algorithm"
done
expect "mismatched counts (native, two nodes)" 40 "do not agree on call number 0" 4 mismatch native 2
expect "killed rank (ring, two nodes)" 40 "cannot be completed: rank 3 is lost" 4 killed ring 2
exit "$failures"
