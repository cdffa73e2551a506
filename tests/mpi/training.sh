# training.sh PROCESS_RANKS PROGRAM: a run on MPI ranks is the run on thread ranks, to the bit; killed, it goes on.
source "$(dirname "$0")/mpirun.sh" "$1"
source "$(dirname "$0")/../same_runs.sh"
set -e
trireme=$2
recipe=$(dirname "$0")/../../recipes/tiny.toml
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sets=(--set train.steps=30 --set train.threads=1 --set train.hash_every=5 --set checkpoint.every=5 --set batch.global_batch_tokens=512)

"$trireme" --quiet train "$recipe" "${sets[@]}" --ranks 2 --out "$folder/threads"
timeout 100 mpirun "${as_root[@]}" --oversubscribe --bind-to none -n 2 "$trireme" --quiet train "$recipe" "${sets[@]}" \
  --out "$folder/mpi"
same_runs "$trireme" "$folder/threads" "$folder/mpi"

timeout 100 mpirun "${as_root[@]}" --oversubscribe --bind-to none -n 2 "$trireme" --quiet train "$recipe" "${sets[@]}" \
  --out "$folder/killed" --inject "hang rank 1 at step 15" >"$folder/said" 2>&1 &
for _ in $(seq 600); do
  [ "$(cat "$folder/killed/metrics.jsonl" 2>/dev/null | wc -l)" -ge 12 ] && break
  sleep 0.02
done
steps=$(wc -l <"$folder/killed/metrics.jsonl")
[ "$steps" -ge 12 ] && [ "$steps" -lt 30 ] || { cat "$folder/said"; echo "killed after $steps steps, not in the middle of the run"; exit 1; }
pkill -KILL -f "out $folder/killed" || true
wait || true
timeout 100 mpirun "${as_root[@]}" --oversubscribe --bind-to none -n 2 "$trireme" --quiet train "$recipe" "${sets[@]}" \
  --out "$folder/killed" --resume
same_runs "$trireme" "$folder/mpi" "$folder/killed"
echo fine
