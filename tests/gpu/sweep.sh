#!/usr/bin/env bash
# sweep.sh PROGRAM REPOSITORY [DEVICE]: a sweep whose trials train on GPUs. Two slots share GPU 0, so that one GPU is enough. Every
# trial sees the GPU of its slot alone; its steps are, to the bit, those of a plain run with the same overrides; a sweep
# that is killed goes on to the same end. DEVICE=cpu goes through the same on a machine without a GPU.
set -euo pipefail
program=$(realpath "$1") recipe=$(realpath "$2")/recipes/tiny.toml device=${3:-cuda}
work=$(mktemp -d)
sweep='' watcher=''
cleanup() {
  for one in $sweep $watcher; do kill -9 "$one" 2>/dev/null || true; done
  for run in "$work"/*/trials/*/; do touch "$run/stop" 2>/dev/null || true; done
  for _ in $(seq 100); do grep -lqsa "$work" /proc/[0-9]*/cmdline || break; sleep 0.1; done
  rm -rf "$work"
}
trap cleanup EXIT
cd "$work"
fail() { echo "FAILED: $*"; for log in ./*/trials/*.log; do [ ! -s "$log" ] || { echo "-- $log"; tail -5 "$log"; }; done; exit 1; }

# Kernels are not chosen by timing, and attention adds up in one order: two runs are the same to the bit. Every step's state
# is hashed. Successive halving waits for whole rungs, so that which slot is faster changes nothing.
sets=(--set run.device="$device" --set train.gemm_autotune=false --set precision.deterministic_attention=true --set train.threads=1
  --set train.hash_every=1 --set checkpoint.every=4 --set lr_schedule.warmup=2 --set lr_schedule.total= --set eval.samples=8)
search=(--search sha --trials 4 --steps 16 --eta 4 --rungs 2 --seed 3 --param 'optim.learning_rate=log(1e-4,1e-1)')
command() { printf '%s\0' "$program" --quiet sweep "$recipe" "${search[@]}" --slots 2 "${sets[@]}" --out "$1"; }
export CUDA_VISIBLE_DEVICES=0,0  # a GPU for each slot: the same one

# Writes "PID TRIAL DEVICES" for every training process of a sweep, as often as it looks.
watch() {
  local file trial
  while true; do
    for file in /proc/[0-9]*/cmdline; do
      # The trainer itself; its supervisor has the same words behind "supervise".
      trial=$({ tr '\0' '\n' <"$file"; } 2>/dev/null | awk -v out="$work/$1/trials/" 'NR == 2 && $0 != "train" { exit }
        index($0, out) == 1 { print substr($0, length(out) + 1); exit }' || true)
      [ -z "$trial" ] || echo "$(basename "$(dirname "$file")") $trial $({ tr '\0' '\n' <"$(dirname "$file")/environ"; } 2>/dev/null | sed -n 's/^CUDA_VISIBLE_DEVICES=//p')"
    done
    echo "-"
    sleep 0.1
  done
}

begin=$SECONDS
watch calm >seen &
watcher=$!
mapfile -d '' -t words < <(command calm)
"${words[@]}" >calm.said 2>&1 || { cat calm.said; fail "the sweep"; }
kill $watcher; wait $watcher 2>/dev/null || true; watcher=''
echo "ok      a sweep of 4 trials on two slots of one GPU ($((SECONDS - begin)) s)"

own=0
[ "$device" = cuda ] || own=0,0  # on the CPU a trial inherits what the sweep has
for trial in 0000 0001 0002 0003; do
  devices=$(awk -v trial=$trial '$2 == trial && $3 != "" { print $3 }' seen | sort -u)
  [ "$devices" = "$own" ] || fail "trial $trial had CUDA_VISIBLE_DEVICES=\"$devices\", expected \"$own\""
done
together=$(awk '$1 == "-" { if (n > most) most = n; n = 0; next } { n++ } END { print most + 0 }' seen)
[ "$together" = 2 ] || fail "$together trials trained at once on two slots"
echo "ok      every trial had CUDA_VISIBLE_DEVICES=$own, two at a time"

"$program" experiments export calm -o calm.csv
column() { awk -F, -v name="$2" 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i == name) at = i; next } { print $at }' "$1"; }
mapfile -t rates < <(column calm.csv optim.learning_rate)
mapfile -t numbers < <(column calm.csv trial)
[ "${#rates[@]}" = 4 ] || { cat calm.csv; fail "the sweep has ${#rates[@]} trials"; }
whole=0
for i in 0 1 2 3; do
  run=calm/trials/$(printf '%04d' "${numbers[i]}")
  CUDA_VISIBLE_DEVICES=0 "$program" --quiet train "$recipe" "${sets[@]}" --set train.steps=16 --set "optim.learning_rate=${rates[i]}" --out "plain$i" >/dev/null
  steps=$(wc -l <"$run/hashes.jsonl")
  [ "$steps" = 4 ] || [ "$steps" = 16 ] || fail "trial ${numbers[i]} has $steps steps"
  [ "$(wc -l <"plain$i/hashes.jsonl")" = 16 ] || fail "the plain run has no 16 hashes"
  cmp "$run/hashes.jsonl" <(head -n "$steps" "plain$i/hashes.jsonl") || fail "trial ${numbers[i]} is not the plain run"
  [ "$steps" = 4 ] && continue
  whole=$((whole + 1))
  loss() { sed -nE 's/.*"event":"eval".*"step":16.*"loss":([^,}]+).*/\1/p' "$1/events.jsonl" | tail -1; }
  [ -n "$(loss "$run")" ] && [ "$(loss "$run")" = "$(loss "plain$i")" ] || fail "validation loss $(loss "$run"), of the plain run $(loss "plain$i")"
done
[ "$whole" = 1 ] || fail "$whole trials were trained to the end"
echo "ok      every trial is to the bit the plain run of its overrides"

mapfile -d '' -t words < <(command killed)
"${words[@]}" >killed.said 2>&1 &
sweep=$!
for _ in $(seq 1200); do
  ! grep -q '"value"' killed/journal.jsonl 2>/dev/null || break
  sleep 0.1
done
kill -9 $sweep || fail "the sweep was over before it could be killed"
wait $sweep 2>/dev/null && fail "the sweep ended well although it was killed"
sweep=''
open=$(wc -l <killed/journal.jsonl)
"$program" --quiet experiments resume killed --slots 2 >killed.said 2>&1 || { cat killed.said; fail "resuming"; }
[ "$(wc -l <killed/journal.jsonl)" -gt "$open" ] || fail "nothing was left to do after the kill"
"$program" experiments export killed -o killed.csv
cmp calm.csv killed.csv || { diff calm.csv killed.csv || true; fail "the killed sweep came to another end"; }
best=$("$program" experiments best calm | head -1)
[ -n "$best" ] && [ "$best" = "$("$program" experiments best killed | head -1)" ] || fail "another best than $best"
echo "ok      killed after $open lines of its journal, it went on to the same end: $("$program" experiments best killed | head -1)"

if [ "$device" = cuda ]; then
  # More slots than GPUs are refused before anything is made.
  if CUDA_VISIBLE_DEVICES=0 "$program" --quiet sweep "$recipe" "${search[@]}" --slots 2 "${sets[@]}" --out refused >refused.said 2>&1; then fail "a slot without a GPU was accepted"; fi
  grep -q 'slot 1 has no GPU' refused.said || { cat refused.said; fail "a slot without a GPU is refused for another reason"; }
  [ ! -e refused ] || fail "a folder was made for a sweep that was refused"
  echo "ok      a slot without a GPU is refused"
fi
echo "all fine"
