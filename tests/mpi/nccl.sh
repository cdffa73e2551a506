# nccl.sh NCCL_RANKS FAKE_LIBRARY: calls on GPU memory between MPI processes, with stand-ins for CUDA and NCCL.
source "$(dirname "$0")/mpirun.sh" "$1"
fake=$2
failures=0

fine() {
  local ranks=$1
  shift
  local output
  if output=$(mpi "$ranks" "$@") && grep -qx fine <<<"$output"; then
    echo "ok $* on $ranks ranks"
  else
    echo "FAILED $* on $ranks ranks"
    printf '%s\n' "$output"
    failures=$((failures + 1))
  fi
}
# fails SECONDS PATTERN RANKS WHAT: the run fails within SECONDS and says PATTERN.
fails() {
  local seconds=$1 pattern=$2 start=$SECONDS output status
  shift 2
  output=$(mpi "$@" "$fake" 2>&1)
  status=$?
  if [ "$status" != 0 ] && [ "$status" != 124 ] && ((SECONDS - start <= seconds)) && grep -Eq "$pattern" <<<"$output"; then
    echo "ok $2 on $1 ranks"
    return
  fi
  echo "FAILED $2: status $status after $((SECONDS - start)) s, expected '$pattern'"
  printf '%s\n' "$output"
  failures=$((failures + 1))
}

for ranks in 1 2 3; do fine "$ranks" collectives "$fake"; done
fine 4 collectives "$fake" 2 # as if on two nodes: no memory in common
fails 60 "do not agree on call number 0 of group 'world': rank [0-2] called all_reduce of (500|600) x f32 .*on a GPU" 3 mismatch
fails 60 "number 1 of group 'world' passed its deadline of 1 s on rank [0-2] although the GPU was given it" 3 hang
fails 60 "cannot be completed: rank 2 is lost" 3 killed
exit "$failures"
