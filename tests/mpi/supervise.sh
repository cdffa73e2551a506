# supervise.sh PROCESS_RANKS PROGRAM: four MPI ranks through three kills and a hang to the loss of a run without any.
source "$(dirname "$0")/mpirun.sh" "$1"
source "$(dirname "$0")/../same_runs.sh"
set -e
trireme=$2
recipe=$(dirname "$0")/../../recipes/tiny.toml
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sets=(--set train.steps=40 --set train.threads=1 --set train.hash_every=10 --set checkpoint.every=5 --set batch.global_batch_tokens=512
      --set eval.every=0)
mpi=(mpirun "${as_root[@]}" --oversubscribe --bind-to none -n)

timeout 200 "${mpi[@]}" 4 "$trireme" --quiet train "$recipe" "${sets[@]}" --out "$folder/whole"
timeout 280 "$trireme" --quiet supervise --restarts 3 --ranks 4 --hang 10s --wait 100ms -- \
  "${mpi[@]}" '{ranks}' "$trireme" --quiet train "$recipe" "${sets[@]}" --out "$folder/supervised" \
  --inject "kill rank 2 at step 8" --inject "kill rank 0 at step 15 while writing" --inject "kill rank 3 at step 22" \
  --inject "hang rank 1 at step 33" | tee "$folder/said"
grep -q "finished after 5 attempts, 1 hang" "$folder/said"
same_runs "$trireme" "$folder/whole" "$folder/supervised"
# Causes before effects: by the clocks, every life's start stands before what its ranks tell.
for what in start ended hung saved resumed; do grep -q "\"event\":\"$what\"" "$folder/supervised/timeline.jsonl"; done
echo fine
