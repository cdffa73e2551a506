# torchrun.sh PROGRAM REPOSITORY: `torchrun --nnodes 2` on two hosts (network namespaces), really run.
#   1. two ranks on two hosts over UCX have the bits of two ranks that are threads
#   2. two hosts of two ranks each: shared memory inside, UCX between; equal to one rank in fp64
#   3. a rank that is killed ends the job with its number, soon
# TORCHRUN names the program where it is not in PATH. Skipped with a sentence without torchrun, UCX or namespaces.
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
set -u
trireme=$(realpath "$1") repository=$(realpath "$2") here=$(dirname "$(realpath "$0")")
torchrun=${TORCHRUN:-$(command -v torchrun)} || { echo "skipped: there is no torchrun (it comes with PyTorch; TORCHRUN names one)"; exit 77; }
source "$here/hosts.sh"
source "$here/../same_runs.sh"
folder=$(mktemp -d)
trap 'hosts_down; rm -rf "$folder"' EXIT
fail() { echo "FAILED: $*"; tail -n 20 "$folder"/h?; exit 1; }
hosts_up 2 || fail "the hosts did not come up"
(umask 077; head -c 32 /dev/urandom | base64 >"$folder/token")
unset TRIREME_TOKEN
export TRIREME_TOKEN_FILE=$folder/token TRIREME_LOG=warn OMP_NUM_THREADS=1
job=0
# on_both RANKS-A-HOST COMMAND...: torchrun on both hosts, as a cluster's script would have it; what each says is in $folder/h1, h2.
on_both() {
  local ranks=$1 number processes=() status=0
  shift
  job=$((job + 1))
  for number in 1 2; do
    on h$number timeout 100 "$torchrun" --no-python --nnodes 2 --nproc-per-node "$ranks" --rdzv-backend c10d --rdzv-id job$job \
      --rdzv-endpoint "$(host_address 1):$((29500 + 10 * job))" --local-addr "$(host_address $number)" "$@" >"$folder/h$number" 2>&1 &
    processes+=($!)
  done
  for number in 0 1; do wait "${processes[$number]}" || status=$?; done
  return $status
}
sets=(--set train.steps=10 --set train.threads=1 --set train.hash_every=5 --set checkpoint.every=5 --set batch.global_batch_tokens=512 --set eval.every=0)

echo "== two ranks on two hosts"
"$trireme" --quiet train "$repository/recipes/tiny.toml" "${sets[@]}" --ranks 2 --out "$folder/threads" || fail "the run on threads"
on_both 1 "$trireme" --quiet train "$repository/recipes/tiny.toml" "${sets[@]}" --out "$folder/two" || fail "torchrun ended with $?"
same_runs "$trireme" "$folder/threads" "$folder/two" || fail "two hosts have other bits than two threads"

echo "== two ranks on each"
on_both 2 "$trireme" bench comm --op all_reduce --algo hierarchical --bytes 1K --seconds 0.001 --json || fail "torchrun ended with $?"
grep -q '"transport": "ucx"' "$folder"/h? && grep -q '"ranks": 4' "$folder"/h? || fail "these are not four ranks over UCX"
on_both 2 "$trireme" verify "$repository/recipes/verify-tiny.toml" --precision fp64 --steps 2 --set layout.dp=2 --set layout.tp=2 --set layout.zero=1 ||
  fail "torchrun ended with $?"
grep -q "equal" "$folder"/h? || fail "nothing was compared"

echo "== a rank is killed"
on_both 1 "$trireme" train "$repository/recipes/tiny.toml" "${sets[@]}" --out "$folder/killed" --inject "kill rank 1 at step 3" && fail "it did not fail"
# Since the step before: starting torchrun itself takes most of a minute on a busy machine.
late=$(($(date +%s) - $(stat -c %Y "$folder/killed/metrics.jsonl")))
[ "$late" -lt 60 ] || fail "that took $late s"
grep -q "rank 1 is lost" "$folder/h1" || fail "rank 0 did not say who is lost"
echo fine
