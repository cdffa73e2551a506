# graphs.sh PROCESS_RANKS PROGRAM: operator graphs on ranks over UCX: strategies with every collective and with halos, and stages.
source "$(dirname "$0")/ranks.sh" "$@"
set -e
trireme=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

verify() {
  ranks 4 "$trireme" --quiet graph run "$@" --dtype fp64 --verify >"$folder/said" 2>&1 ||
    { cat "$folder/said"; echo "failed: $*"; exit 1; }
  grep -qE "gradients of [1-9][0-9]* parameters: largest difference|[1-9][0-9]* random strategies, .*largest difference" "$folder/said" ||
    { cat "$folder/said"; echo "nothing was compared: $*"; exit 1; }
  tail -n 1 "$folder/said"
}
source "$(dirname "$0")/../spmd/strategies.sh"
echo fine
