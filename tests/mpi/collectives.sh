# Collectives, messages and crossed groups between MPI processes equal the reference, on one node and on several pretended ones.
source "$(dirname "$0")/mpirun.sh" "$1"
set -eo pipefail  # what the ranks end with counts too, not only what they say
for ranks in 1 2 3 4 5; do
  echo "== $ranks ranks"
  mpi "$ranks" collectives | grep -x "fine on mpi"
done
echo "== 4 ranks as if on 2 nodes: no memory in common"
mpi 4 collectives auto 2 | grep -x "fine on mpi"
for ranks in 2 4; do
  echo "== groups in opposite orders on $ranks ranks"
  mpi "$ranks" crossed | grep -x "fine on mpi"
done
mpi 4 crossed auto 2 | grep -x "fine on mpi"
