# storm.sh PROGRAM RECIPE KILLS: a run that is killed again and again ends with the bits of one that never was.
#
# Kills come at random moments, start-up and end included, and every third in a named moment of saving. The last line
# says how many there were, how often the run went on, how many steps were done twice and whether the bits agree.
set -u
source "$(dirname "$0")/../same_runs.sh"
trireme=$1 recipe=$2 kills=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
RANDOM=${SEED:-17}
steps=$((kills * 14 + 40))
sets=(--set train.steps=$steps --set lr_schedule.total=$steps --set train.threads=1 --set train.hash_every=20
      --set checkpoint.every=4 --set checkpoint.keep=2 --set batch.global_batch_tokens=512 --set eval.every=0)
moments=("while copying" "while writing" "after written" "while publishing" "after published")

"$trireme" --quiet train "$recipe" "${sets[@]}" --ranks 2 --out "$folder/whole" >/dev/null || { echo "the run by itself failed"; exit 1; }

last_step() { tail -n 2 "$folder/stormed/metrics.jsonl" 2>/dev/null | grep -o '"step":[0-9]*' | tail -n 1 | cut -d: -f2; }
resumes_told() { local count; count=$(grep -c '"event":"resumed"' "$folder/stormed/events.jsonl" 2>/dev/null); echo "${count:-0}"; }

# Kills at start-up come at a random time; later ones after a random number of steps, and a moment: how long steps take
# changes with what else the machine does.
begin=$(date +%s%N)
"$trireme" --quiet train "$recipe" "${sets[@]}" --ranks 2 --set train.steps=1 --out "$folder/start" >/dev/null || exit 1
start_ms=$((($(date +%s%N) - begin) / 1000000))
newest() { ls "$folder/stormed/checkpoints" 2>/dev/null | grep -x 'step-[0-9]*' | tail -n 1 | sed 's/step-0*//'; }
nap() { sleep "$(($1 / 1000)).$(printf '%03d' $(($1 % 1000)))"; }
kill_soon() {  # PID RESUMES_BEFORE
  local from until
  if [ $((RANDOM % 4)) -eq 0 ]; then
    nap $((RANDOM % (start_ms + 1)))
  else
    while kill -0 "$1" 2>/dev/null && [ "$(resumes_told)" -le "$2" ]; do sleep 0.005; done
    from=$(newest) until=$((${from:-0} + 1 + RANDOM % 9))
    while kill -0 "$1" 2>/dev/null && [ "$(wc -l <"$folder/stormed/metrics.jsonl" 2>/dev/null || echo 0)" -lt $until ]; do sleep 0.003; done
    nap $((RANDOM % 12))
  fi
  kill -KILL "$1" 2>/dev/null
}

killed=0 lost=0 lives=0 finished=no
while [ "$killed" -lt "$kills" ]; do
  lives=$((lives + 1))
  inject=()
  if [ $((lives % 3)) -eq 0 ]; then
    at=$(($(last_step || echo 0) + 1 + RANDOM % 8))
    inject=(--inject "kill rank $((RANDOM % 2)) at step $at ${moments[$((lives / 3 % 5))]}")
    case "${inject[1]}" in *publish*) inject=(--inject "kill rank 0 at step $at ${moments[$((lives / 3 % 5))]}") ;; esac
  fi
  resumes=$(resumes_told)
  "$trireme" --quiet train "$recipe" "${sets[@]}" --ranks 2 --out "$folder/stormed" --resume "${inject[@]}" >"$folder/said" 2>&1 &
  child=$!
  if [ ${#inject[@]} -eq 0 ]; then kill_soon $child "$resumes"; fi
  wait $child 2>/dev/null
  status=$?
  if [ $status -eq 0 ]; then finished=yes; break; fi
  if [ $status -ne 137 ]; then echo "a life ended with status $status:"; cat "$folder/said"; exit 1; fi
  killed=$((killed + 1))
  from=$(newest)
  lost=$((lost + $(last_step || echo 0) - ${from:-0}))
done
if ! "$trireme" --quiet train "$recipe" "${sets[@]}" --ranks 2 --out "$folder/stormed" --resume >"$folder/said" 2>&1; then
  echo "the run does not go on:"; cat "$folder/said"; exit 1
fi
identical=no
same_runs "$trireme" "$folder/whole" "$folder/stormed" >"$folder/diff" 2>&1 && identical=yes || cat "$folder/diff"
left=$(find "$folder/stormed" -name '*.tmp' | wc -l)
[ "$finished" = no ] || echo "the run was finished after $killed of $kills kills"
[ "$left" -eq 0 ] || echo "$left unfinished folders were left behind"
echo "kills $killed, resumes $(resumes_told), lost steps $lost, bit-identical $identical"
[ "$identical" = yes ] && [ "$finished" = no ] && [ "$left" -eq 0 ]
