# Sourced by the tests that run ranks under mpirun: `mpi N WHAT...` runs the test program on N ranks.
set -u
process_ranks=$1
as_root=()
[ "$(id -u)" = 0 ] && as_root=(--allow-run-as-root)

mpi() {
  local ranks=$1
  shift
  timeout 120 mpirun "${as_root[@]}" --oversubscribe --bind-to none -n "$ranks" "$process_ranks" "$@"
}
