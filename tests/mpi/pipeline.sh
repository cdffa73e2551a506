# pipeline.sh PROCESS_RANKS PROGRAM: schedules on MPI ranks compute what one rank computes, and a run is the run on threads.
source "$(dirname "$0")/mpirun.sh" "$1"
source "$(dirname "$0")/../same_runs.sh"
set -e
trireme=$2
recipes=$(dirname "$0")/../../recipes
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

verify() {
  local ranks=$1
  shift
  timeout 250 mpirun "${as_root[@]}" --oversubscribe --bind-to none -n "$ranks" "$trireme" --quiet verify "$recipes/verify-tiny.toml" \
    --precision fp64 --steps 3 --set batch.global_batch_tokens=512 "$@" >"$folder/said" || { cat "$folder/said"; exit 1; }
  grep -q "equal" "$folder/said" || { cat "$folder/said"; echo "nothing was compared: $*"; exit 1; }
  tail -n 1 "$folder/said"
}
verify 2 --set layout.pp=2 --set pipeline.schedule=zb-h2 --set pipeline.drain_every=3 --set checkpoint.every=0 --set train.hash_every=0
verify 4 --set layout.pp=4 --set pipeline.schedule=pipedream-2bw

sets=(--set train.steps=10 --set train.threads=1 --set train.hash_every=5 --set checkpoint.every=5 --set batch.global_batch_tokens=512
  --set layout.pp=2 --set train.micro_batch_size=2 --set model.tied=false --set eval.every=0 --set pipeline.schedule=pipedream-2bw)
"$trireme" --quiet train "$recipes/tiny.toml" "${sets[@]}" --ranks 2 --out "$folder/threads"
timeout 250 mpirun "${as_root[@]}" --oversubscribe --bind-to none -n 2 "$trireme" --quiet train "$recipes/tiny.toml" "${sets[@]}" \
  --out "$folder/mpi"
same_runs "$trireme" "$folder/threads" "$folder/mpi"
echo fine
