#!/usr/bin/env bash
# sweep.sh PROGRAM REPOSITORY: trials of a sweep as job steps on a real Slurm cluster of four nodes (slurm_cluster.sh).
#   1. six trials on three nodes of two slots each are those of a sweep on one machine, and every node had some
#   2. trials of two ranks over two nodes, over MPI and PMIx, likewise
#   3. a sweep that is killed in the middle goes on to the same end
set -eu
program=$(realpath "$1") repository=$(realpath "$2") here=$(dirname "$(realpath "$0")")
if [ "${3:-}" != within ]; then
  work=${LAB_FOLDER:-}
  if [ -z "$work" ]; then
    work=$(mktemp -d /var/tmp/trireme-lab.XXXXXX)
    trap 'rm -rf --one-file-system "$work"' EXIT
  fi
  for path in "$program" "$repository"; do
    case $path in /tmp/*) LAB_KEEP=${LAB_KEEP:+$LAB_KEEP:}/tmp/$(cut -d/ -f3 <<<"$path") ;; esac
  done
  LAB_KEEP=$(tr ':' '\n' <<<"${LAB_KEEP:-}" | sort -u | paste -sd: -)
  export LAB_KEEP
  bash "$here/slurm_cluster.sh" "$work" bash "$here/sweep.sh" "$program" "$repository" within
  exit
fi

# On the controller.
runs=/var/tmp/lab-sweeps
rm -rf $runs && mkdir -p $runs && cd $runs
cp "$repository/recipes/tiny.toml" .
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fail() { echo "FAILED: $*"; tail -n 5 $runs/*/trials/*.log 2>/dev/null; exit 1; }
sets=(--set train.threads=1 --set train.hash_every=1 --set checkpoint.every=4 --set eval.samples=8)
sweep() { exec "$program" --quiet sweep tiny.toml --steps 16 --seed 3 --param 'optim.learning_rate=log(1e-4,1e-1)' "${sets[@]}" "$@" >/dev/null; }
export -f sweep
declare -p sets >sets && export program
same() {  # the same losses, to the last digit, and the same bits of every trial's state
  "$program" experiments export "$1" -o "$1.csv" && "$program" experiments export "$2" -o "$2.csv"
  cmp "$1.csv" "$2.csv" || fail "$2 came to another end: $(diff "$1.csv" "$2.csv")"
  [ "$(wc -l <"$1.csv")" -gt 1 ] || fail "$1 has no trials"
  for trial in "$1"/trials/*/; do
    [ -s "$trial/hashes.jsonl" ] || fail "trial $(basename "$trial") of $1 has no hashes"
    cmp "$trial/hashes.jsonl" "$2/trials/$(basename "$trial")/hashes.jsonl" || fail "trial $(basename "$trial") of $2 has other bits"
  done
}
in_allocation() { salloc --quiet "$@"; }

echo "== slots on three nodes"
(sweep --search random --trials 6 --slots 2 --out here) || fail "the sweep on this machine"
in_allocation -N3 --ntasks-per-node=2 bash -c '. ./sets; sweep --search random --trials 6 --slurm --out nodes' || fail "the sweep on nodes"
same here nodes
for node in n1 n2 n3; do grep -q "nodelist=$node" nodes/trials/*/timeline.jsonl || fail "$node had no trial"; done

echo "== a trial on two nodes"
(sweep --search random --trials 2 --slots 2 --slots-per-trial 2 --out two-here) || fail "the sweep with two ranks on this machine"
in_allocation -N2 bash -c '. ./sets; sweep --search random --trials 2 --slurm --slots 1 --slots-per-trial 2 --out two-nodes' ||
  fail "the sweep with two ranks on nodes"
same two-here two-nodes
grep -q '"ranks":2' two-nodes/trials/0000/events.jsonl || fail "a trial had no two ranks"

echo "== killed in the middle"
(sweep --search asha --trials 4 --slots 1 --out calm) || fail "the undisturbed sweep"
in_allocation -N1 bash -c '. ./sets
  (sweep --search asha --trials 4 --slurm --slots 1 --out killed) 2>/dev/null & sweep=$!
  for _ in $(seq 600); do [ "$(cat killed/journal.jsonl 2>/dev/null | wc -l)" -lt 3 ] || break; sleep 0.1; done
  kill -9 $sweep; wait $sweep 2>/dev/null
  "$program" --quiet experiments resume killed --slurm --slots 1 >/dev/null' || fail "the killed sweep did not go on"
same calm killed
echo fine
