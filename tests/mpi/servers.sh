# servers.sh PROCESS_RANKS PROGRAM: mail between MPI ranks beside their collectives, without UCX; on it Downpour SGD equals its serial twin,
# L1 regression on a real text meets its optimality conditions, and L-BFGS on shards is the one of a single process.
source "$(dirname "$0")/mpirun.sh" "$1"
set -eo pipefail
trireme=$2
here=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
program() { timeout 120 mpirun "${as_root[@]}" --oversubscribe --bind-to none -n "$1" "$trireme" --quiet "${@:2}"; }

for ranks in 2 3; do
  echo "== letters between $ranks ranks"
  mpi "$ranks" letters | grep -x "fine on mpi"
done

echo "== Downpour SGD on 3 ranks, with filters"
program 3 verify "$here/recipes/verify-tiny.toml" --precision fp64 --steps 3 --set train.mode=downpour --set downpour.servers=2 \
  --set downpour.copies=2 --set downpour.tau=1 --set downpour.encoding=fixed16 --set downpour.significant=1e-4 --set optim.kind=sgd \
  --set optim.momentum=0 --set optim.weight_decay=0 --set optim.grad_clip_norm=0 | tee "$folder/verify" | grep "^equal"

echo "== which page is a line of: L1 regression on 3 ranks"
"$trireme" ps words "$here"/docs/{performance,communication,training}.md --save "$folder/words.svm"
program 3 ps lasso "$folder/words.svm" --lambda 2 --tolerance 1e-6 --servers 2 --workers 3 --copies 2 --tau 2 --serial | tee "$folder/lasso"
grep -q "converged" "$folder/lasso"
grep -qE "staleness [012] at most" "$folder/lasso"
awk '/weights differ by/ { if ($(NF - 2) + 0 > 1e-4) exit 1; found = 1 } END { exit !found }' "$folder/lasso"

echo "== L-BFGS on shards, on 3 ranks"
program 3 ps lbfgs "$folder/words.svm" --servers 2 --replicas 3 --serial | tee "$folder/lbfgs"
awk '/weights differ by/ { if ($(NF - 2) + 0 > 1e-12) exit 1; found = 1 } END { exit !found }' "$folder/lbfgs"
echo fine
