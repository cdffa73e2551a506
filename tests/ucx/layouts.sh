# layouts.sh PROCESS_RANKS PROGRAM: layouts on four ranks over UCX, each equal to one rank in fp64; and a run over UCX, which is
# the run on threads to the bit, with shared memory and without.
source "$(dirname "$0")/ranks.sh" "$@"
source "$(dirname "$0")/../same_runs.sh"
set -e
trireme=$2
recipes=$(dirname "$0")/../../recipes
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

verify() {  # ranks a node, the keys of [layout], then further settings
  local sets=(--set "comm.ranks_per_node=$1")
  for key in $2; do sets+=(--set "layout.$key"); done
  for key in "${@:3}"; do sets+=(--set "$key"); done
  ranks 4 "$trireme" --quiet verify "$recipes/verify-tiny.toml" --precision fp64 --steps 2 "${sets[@]}" >"$folder/said" 2>&1 ||
    { cat "$folder/said"; echo "failed: $*"; exit 1; }
  grep -q "equal" "$folder/said" || { cat "$folder/said"; echo "nothing was compared: $*"; exit 1; }
  echo "$*: $(tail -n 1 "$folder/said")"
}
verify 4 "dp=2 tp=2 sequence_parallel=true zero=1"
verify 1 "dp=4 zero=3"
verify 1 "cp=2 tp=2"
verify 2 "pp=2 dp=2 zero=1" pipeline.schedule=interleaved pipeline.virtual_stages=2

sets=(--set train.steps=10 --set train.threads=1 --set train.hash_every=5 --set checkpoint.every=5 --set batch.global_batch_tokens=512
  --set eval.every=0)  # two ranks: a sum has one order
"$trireme" --quiet train "$recipes/tiny.toml" "${sets[@]}" --ranks 2 --out "$folder/threads"
for per_node in 1 2; do
  ranks 2 "$trireme" --quiet train "$recipes/tiny.toml" "${sets[@]}" --set comm.ranks_per_node="$per_node" --out "$folder/ucx-$per_node"
  same_runs "$trireme" "$folder/threads" "$folder/ucx-$per_node"
done
echo fine
