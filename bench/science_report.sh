#!/bin/bash
# Trains what `trireme science report` makes its page of, and makes the page: a run whose batch follows the noise scale, a family for
# a scaling law with a larger run held out, and decoders of six sizes that learn facts, sums and words backwards and are then asked.
#
#   bench/science_report.sh build/release/trireme FOLDER [DEVICE [PROCESSES [SCALE]]]
#
# DEVICE: cpu or cuda (default). PROCESSES train at a time (10). SCALE: full (default), or tiny, which shows within minutes on a CPU
# that all of it runs and whose page says nothing about models. The page is FOLDER/science.html. Runs that are there already are left as
# they are; one that fails is named, kept in FOLDER/failed and left out of the page, and the script ends with status 1. LIMIT=SECONDS:
# no run begins later than that, and the page is made of those that did; which did not is said.
set -u
trireme=$(readlink -f "$1") folder=$2 device=${3:-cuda} processes=${4:-10} scale=${5:-full} limit=${LIMIT:-1000000}
recipes=$(readlink -f "$(dirname "$0")/../recipes")
begin=$(date +%s)
mkdir -p "$folder" && cd "$folder" || exit 1
mkdir -p runs results logs failed
since() { echo $(($(date +%s) - begin)); }

law=$recipes/scaling-law.toml
case $scale in
  full)
    sizes="80K 150K 300K 600K 1.1M" budgets="2e13 5e13 1e14 2e14" held_size=2.2M held_budget=5e14
    # Runs of fewer steps are hardly behind warm-up; longer ones would hold up the rest.
    least_steps=500 most_steps=5000
    hiddens="8 16 32 48 64 128" keys=2000 suite="" noise="--set train.steps=700" questions=500 bootstrap=200
    ;;
  tiny)
    sizes="40K 60K 90K" budgets="2e10 4e10" held_size=150K held_budget=8e10 least_steps=1 most_steps=1000
    sed -e 's/= 16384/= 1024/' -e 's/micro_batch_size = 256/micro_batch_size = 16/' -e 's/warmup = 50/warmup = 5/' "$law" > law.toml
    law=law.toml
    hiddens="8 16 32" keys=200 questions=20 bootstrap=10
    suite="--set train.steps=10 --set lr_schedule.total=10 --set lr_schedule.warmup=2 --set batch.global_batch_tokens=1024 --set train.micro_batch_size=8"
    noise="--set train.steps=60 --set batch.noise_every=20 --set batch.global_batch_tokens=512 --set train.micro_batch_size=4 --set batch.maximum=2048 --set lr_schedule.reference_batch=512"
    ;;
  *) echo "SCALE is \"$scale\", not full or tiny" >&2; exit 2 ;;
esac

# Facts are asked as they were trained: nobody can infer one. Of sums and words those are asked that were held out.
tasks="facts:keys=$keys,length=5,count=$questions,seed=1 addition:digits=3,count=$questions,split=test reverse:length=5,count=$questions,split=test"
"$trireme" science tasks "facts:keys=$keys,length=5,count=$((25 * keys))" --text facts.txt || exit 1
"$trireme" science tasks addition:digits=3,count=200000,split=train --text addition.txt || exit 1
"$trireme" science tasks reverse:length=5,count=200000,split=train --text reverse.txt || exit 1
[ -d family ] || "$trireme" science grid "$law" --params $sizes --flops $budgets --out family > logs/grid.txt || exit 1
[ -d held-out ] || "$trireme" science grid "$law" --params $held_size --flops $held_budget --out held-out > logs/held-out.txt || exit 1
jobs=()
[ "$device" = cuda ] && graphs="--set train.cuda_graphs=true" || graphs=""
common="--set run.device=$device --set train.threads=1"
for recipe in held-out/*.toml family/*.toml; do
  steps=$(sed -n 's/^steps = //p' "$recipe" | head -1)
  name=$(basename "$recipe" .toml)
  if [ "${recipe%%/*}" = held-out ]; then
    name=held-out
  else
    [ "$steps" -ge $least_steps ] && [ "$steps" -le $most_steps ] || continue
  fi
  jobs+=("$((1000 + steps)) train $recipe $common $graphs --out runs/$name")
done
for hidden in $hiddens; do
  # The rate falls with the root of the width, as it does in the family of the law.
  rate=$(awk -v hidden="$hidden" 'BEGIN { printf "%.2g", 3e-3 * sqrt(32 / hidden) }')
  jobs+=("$hidden train $recipes/task-suite.toml --set model.hidden_size=$hidden --set optim.learning_rate=$rate $suite $common $graphs --out runs/suite-$hidden")
done
jobs+=("100000 train $recipes/noise-scale.toml $noise $common --out runs/noise")

# Trains, unless the run is there already, and asks a model of the suite at once.
job() {
  local out=${*: -1} name
  name=$(basename "$out")
  if [ ! -d "$out" ]; then
    if [ "$(since)" -ge "$limit" ]; then
      echo "$name was left out: it would begin after $(since) s" >&2
      return
    fi
    if ! "$trireme" "$@" > "logs/$name.txt" 2>&1; then
      mv "$out" "failed/$name" 2> /dev/null || mkdir -p "failed/$name"
      echo "$name failed: $(tail -1 "logs/$name.txt")" >&2
      return
    fi
    echo "$name is trained after $(since) s"
  fi
  case $name in suite-*) ;; *) return ;; esac
  [ -s "results/$name.json" ] && return
  "$trireme" eval "$out" --tasks $tasks --tokenizer bytes --json > results/part-"$name" 2> "logs/eval-$name.txt" &&
    mv results/part-"$name" "results/$name.json" && return
  mkdir -p "failed/eval-$name"
  echo "$name was not asked: $(tail -1 "logs/eval-$name.txt")" >&2
}
export -f job since
export trireme tasks limit begin
# The noise scale first, without CUDA graphs the slowest; then the law's, the longest first; then the suite, the largest first.
printf '%s\n' "${jobs[@]}" | sort -rn | cut -d' ' -f2- | xargs -P "$processes" -I{} bash -c 'job {}'
echo "${#jobs[@]} runs after $(since) s"
held=() && [ -d runs/held-out ] && held=(--held-out runs/held-out)
"$trireme" science report --family runs/law-* "${held[@]}" --noise runs/noise --tasks results/*.json --bootstrap $bootstrap \
  --page science.html || exit 1
echo "the page after $(since) s"
[ -z "$(ls failed)" ]
