#!/usr/bin/env bash
# sweep_tiny.sh PROGRAM RECIPE: a real ASHA sweep of 24 tiny GPTs on two slots, beside the ten minutes that it may take, and its
# best beside the best of the whole grid of 24, which it may miss by 1 %.
set -euo pipefail
program=$1 recipe=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
common=(--steps 200 --slots 2 --set train.threads=1 --set train.hash_every=0 --set eval.samples=64 --set checkpoint.every=100 --set lr_schedule.total=)
sweep() { "$program" --quiet sweep "$recipe" "$@" "${common[@]}" >/dev/null; }
best() { "$program" experiments best "$1" | sed -nE 's/^best: trial [0-9]+, validation loss ([0-9.]+) .*/\1/p'; }
begin=$SECONDS
sweep --search asha --trials 24 --eta 4 --rungs 3 --seed 1 --param 'optim.learning_rate=log(1e-4,3e-2)' --param 'optim.weight_decay=uniform(0,0.2)' --out asha
asha=$((SECONDS - begin)) begin=$SECONDS
sweep --search grid --trials 24 --param 'optim.learning_rate=log(1e-4,3e-2,8)' --param 'optim.weight_decay=uniform(0,0.2,3)' --out grid
steps() { "$program" experiments show "$1" | sed -nE 's/.* ([0-9]+) steps trained/\1/p' | head -1; }
awk -v a="$(best asha)" -v g="$(best grid)" -v ta=$asha -v tg=$((SECONDS - begin)) -v sa="$(steps asha)" -v sg="$(steps grid)" 'BEGIN {
  printf "ASHA: %d s, %d steps, best %.4f; grid: %d s, %d steps, best %.4f; %+.2f %%, limits 600 s and 1 %%\n", ta, sa, a, tg, sg, g, 100 * (a / g - 1)
  exit !(a > 0 && g > 0 && sa > 0 && sg > 0 && ta <= 600 && a <= 1.01 * g) }'
