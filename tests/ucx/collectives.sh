# Collectives, messages and crossed groups between processes over UCX equal the reference, with and without shared memory.
source "$(dirname "$0")/ranks.sh" "$@"
set -eo pipefail
for count in 2 3 4; do
  echo "== $count ranks"
  ranks "$count" "$process_ranks" collectives | grep -x "fine on ucx"
done
for count in 2 4; do
  echo "== $count ranks without memory in common"
  ranks "$count" "$process_ranks" collectives auto 1 | grep -x "fine on ucx"
done
echo "== 4 ranks as if on 2 nodes"
ranks 4 "$process_ranks" collectives auto 2 | grep -x "fine on ucx"
for per_node in 0 1 2; do
  echo "== groups in opposite orders, $per_node ranks a node"
  ranks 4 "$process_ranks" crossed auto "$per_node" | grep -x "fine on ucx"
done
