# layouts.sh PROCESS_RANKS PROGRAM: a sample of the matrix of layouts on four MPI ranks, each equal to one rank in fp64.
source "$(dirname "$0")/mpirun.sh" "$1"
set -e
trireme=$2
recipe=$(dirname "$0")/../../recipes/verify-tiny.toml
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

verify() {  # the keys of [layout], then further settings
  local sets=()
  for key in $1; do sets+=(--set "layout.$key"); done
  for key in "${@:2}"; do sets+=(--set "$key"); done
  timeout 120 mpirun "${as_root[@]}" --oversubscribe --bind-to none -n 4 "$trireme" --quiet verify "$recipe" --precision fp64 \
    --steps 2 "${sets[@]}" >"$folder/said" 2>&1 || { cat "$folder/said"; echo "failed: $*"; exit 1; }
  grep -q "equal" "$folder/said" || { cat "$folder/said"; echo "nothing was compared: $*"; exit 1; }
  echo "$*: $(tail -n 1 "$folder/said")"
}
verify "dp=2 tp=2 sequence_parallel=true zero=1"
verify "dp=4 zero=3"
verify "dp=4 zero=2 zero_group=2"
verify "cp=2 tp=2"
verify "cp=4 cp_kind=ring"
verify "pp=2 tp=2 sequence_parallel=true" pipeline.schedule=1f1b
verify "pp=2 dp=2 zero=1" pipeline.schedule=interleaved pipeline.virtual_stages=2
verify "pp=2 cp=2" pipeline.schedule=zb-h1
verify "pp=2 tp=2" pipeline.schedule=pipedream-2bw
verify "pp=2 dp=2 zero=1" pipeline.schedule=zb-h2 pipeline.drain_every=2 checkpoint.every=0 train.hash_every=0
recipe=$(dirname "$0")/../../recipes/verify-moe.toml  # experts over the same ranks
verify "dp=4 ep=4 zero=3"
verify "dp=2 cp=2 ep=4 zero=1"
verify "dp=2 tp=2 sequence_parallel=true ep=2 zero=2"
verify "pp=2 dp=2 ep=2" pipeline.schedule=zb-h1
verify "pp=2 dp=2 ep=2 zero=3" pipeline.schedule=dualpipe experts.arena=1
verify "dp=4 ep=4 zero=1" experts.move_experts=true experts.rebalance_every=1
echo fine
