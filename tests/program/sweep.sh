#!/usr/bin/env bash
# sweep.sh PROGRAM REPOSITORY: a sweep that is killed goes on to the same end; a trial that stopped at every rung is, to the
# bit, the run that never stopped.
set -euo pipefail
program=$1 recipe=$2/recipes/tiny.toml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# Every step's state is hashed. Where the schedule ends follows from the steps, which rungs must not change.
sets=(--set train.threads=1 --set train.hash_every=1 --set checkpoint.every=4 --set lr_schedule.warmup=2 --set lr_schedule.total= --set eval.samples=8)
sweep() { exec "$program" --quiet sweep "$recipe" --search asha --trials 4 --steps 16 --slots 1 --seed 3 \
  --param 'optim.learning_rate=log(1e-4,1e-1)' "${sets[@]}" --out "$1"; }

(sweep calm) >said

(sweep killed) >/dev/null 2>&1 &
sweep=$!
for _ in $(seq 600); do
  [ "$(cat killed/journal.jsonl 2>/dev/null | wc -l)" -lt 3 ] || break
  sleep 0.1
done
kill -9 $sweep
wait $sweep 2>/dev/null || true
"$program" --quiet experiments resume killed --slots 1 >said
"$program" experiments export calm -o calm.csv
"$program" experiments export killed -o killed.csv
[ "$(wc -l <calm.csv)" -gt 1 ] || { echo "the calm sweep has no trials"; exit 1; }
cmp calm.csv killed.csv || { echo "the killed sweep came to another end:"; diff calm.csv killed.csv; exit 1; }

"$program" experiments best calm | tee said
trial=$(sed -nE 's/^best: trial ([0-9]+),.*/\1/p' said) rate=$(sed -nE 's/.*learning_rate=([^ ]+).*/\1/p' said)
"$program" --quiet train "$recipe" "${sets[@]}" --set train.steps=16 --set "optim.learning_rate=$rate" --out whole >/dev/null
run=$(printf 'calm/trials/%04d' "$trial")
[ "$(grep -c '"resume"' "$run/events.jsonl")" -ge 2 ] || { echo "trial $trial did not stop at rungs"; exit 1; }
[ -s whole/hashes.jsonl ] || { echo "the whole run has no hashes"; exit 1; }
cmp whole/hashes.jsonl "$run/hashes.jsonl" || { echo "trial $trial is not the run that never stopped"; exit 1; }

# The store is an index: rebuilt from the folders, it is the same.
"$program" experiments list --store experiments.db >before
grep -q killed before
rm experiments.db*
"$program" experiments import calm killed
"$program" experiments list --store experiments.db | tee after
diff <(sort before) <(sort after) || { echo "the store that was rebuilt is another one"; exit 1; }
