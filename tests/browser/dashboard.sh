#!/usr/bin/env bash
# dashboard.sh PROGRAM REPOSITORY [SCREENSHOTS]: the live page in a real browser while real runs train. Screenshots of every
# view, light and dark, laptop and phone, go into the folder SCREENSHOTS where one is given.
set -euo pipefail
program=$1 repository=$2 pictures=${3-}
for needed in chromium chromedriver python3; do
  command -v $needed >/dev/null || { echo "skipped: $needed is not installed (Debian: chromium chromium-driver python3)"; exit 77; }
done
work=$(mktemp -d)
page=
cleanup() {
  [ -z "$page" ] || kill "$page" 2>/dev/null || true
  for run in "$work"/runs/*/ "$work"/runs/*/trials/*/; do touch "$run/stop" 2>/dev/null || true; done
  for _ in $(seq 50); do pgrep -f "$work/runs" >/dev/null || break; sleep 0.1; done
  rm -rf "$work"
}
trap cleanup EXIT
cd "$work"
recipe=$repository/recipes/tiny.toml
quick=(--set train.threads=1 --set train.hash_every=0 --set eval.samples=8)
"$program" --quiet train "$recipe" "${quick[@]}" --set train.steps=80 --out runs/base
"$program" --quiet train "$recipe" "${quick[@]}" --set train.steps=80 --set optim.learning_rate=1e-2 --out 'runs/<script>alert(1)<'
"$program" --quiet train "$recipe" "${quick[@]}" --set train.steps=8 --set layout.pp=2 --set train.micro_batch_size=4 --ranks 2 --out runs/pipeline
"$program" --quiet train "$repository/recipes/verify-moe.toml" --set train.steps=40 --set layout.ep=2 --set eval.every=0 --ranks 2 --out runs/experts
"$program" --quiet train "$recipe" "${quick[@]}" --set train.steps=40 --set train.noise_scale=true --set train.micro_batch_size=4 --out runs/noise
"$program" --quiet sweep "$recipe" --search asha --trials 8 --steps 27 --eta 3 --rungs 3 --slots 2 --seed 3 --param 'optim.learning_rate=log(1e-4,1e-1)' \
  --param 'optim.weight_decay=uniform(0,0.3)' --param 'lr_schedule.kind=choice(cosine,linear)' "${quick[@]}" --out runs/sweep >/dev/null
"$program" --quiet train "$recipe" "${quick[@]}" --set train.steps=200000 --set checkpoint.every=500 --set lr_schedule.total=200000 --ranks 2 --out runs/live >/dev/null 2>&1 &

"$program" --quiet dashboard runs --port 0 --token secret-of-the-test >said &
page=$!
for _ in $(seq 100); do [ ! -s said ] || break; sleep 0.1; done
python3 "$repository/tests/browser/dashboard.py" "$(grep -oE 'http://[^/#]+' said)" "$work/runs" "$program" "$page" "$pictures"
