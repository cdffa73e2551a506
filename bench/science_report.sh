#!/bin/bash
# Trains what `trireme science report` makes its page of: a run whose batch follows the noise scale, a family for a scaling law
# with a larger run held out, and decoders of eight sizes that learn sums; then asks those.
#
#   bench/science_report.sh build/release/trireme FOLDER [DEVICE [PROCESSES]]
#
# DEVICE: cpu or cuda (default); PROCESSES train at a time (12). Runs that are there already are left as they are.
set -u
trireme=$(readlink -f "$1") folder=$2 device=${3:-cuda} processes=${4:-12}
recipes=$(readlink -f "$(dirname "$0")/../recipes")
mkdir -p "$folder" && cd "$folder" || exit 1
mkdir -p runs results logs
"$trireme" science tasks addition:digits=3,count=200000,split=train --text addition.txt || exit 1
# Sizes by budgets, without those of fewer than 500 steps, which are hardly behind warm-up, and of more than 10,000.
[ -d family ] || "$trireme" science grid "$recipes/scaling-law.toml" --params 80K 150K 300K 600K 1.1M \
    --flops 2e13 5e13 1e14 2e14 --out family > logs/grid.txt || exit 1
"$trireme" science grid "$recipes/scaling-law.toml" --params 2.2M --flops 5e14 --out held-out > logs/held-out.txt 2>&1
jobs=()
[ "$device" = cuda ] && graphs="--set train.cuda_graphs=true" || graphs=""
common="--set run.device=$device --set train.threads=1"
for recipe in held-out/*.toml family/*.toml; do
  steps=$(sed -n 's/^steps = //p' "$recipe" | head -1)
  [ "$steps" -ge 500 ] && [ "$steps" -le 10000 ] || continue
  name=$(basename "$recipe" .toml)
  [ "${recipe%%/*}" = held-out ] && name=held-out
  jobs+=("$steps train $recipe $common $graphs --out runs/$name")
done
for hidden in 8 12 16 20 24 32 48 64; do
  jobs+=("2500 train $recipes/sums.toml --set model.hidden_size=$hidden $common $graphs --out runs/sums-$hidden")
done
jobs+=("9000 train $recipes/noise-scale.toml $common --out runs/noise")
# Trains, unless the run is there already, and asks a model of sums at once.
job() {
  local out=${*: -1} name
  name=$(basename "$out")
  [ -d "$out" ] || "$trireme" "$@" > "logs/$name.txt" 2>&1 || return
  case $name in sums-*) ;; *) return ;; esac
  [ -s "results/$name.json" ] || "$trireme" eval "$out" --tasks addition:digits=3,count=500,split=test --tokenizer bytes \
    --json > "results/$name.json" 2> "logs/eval-$name.txt"
}
export -f job
export trireme
# The longest first: what is left at the end is short.
printf '%s\n' "${jobs[@]}" | sort -rn | cut -d' ' -f2- | xargs -P "$processes" -I{} bash -c 'job {}'
echo "trireme science report --family runs/law-* --held-out runs/held-out --noise runs/noise --tasks results/*.json --page science.html"
