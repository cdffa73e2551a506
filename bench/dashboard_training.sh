#!/usr/bin/env bash
# dashboard_training.sh PROGRAM RECIPE [ROUNDS] [instructions]: CPU time of training with and without a page that watches it,
# beside the 0.5 % that it may change by. Alternating, so that a busy machine slows both; the medians are compared. With
# `instructions` training runs under valgrind and its instructions are counted instead: hardly any noise, 50 times slower.
set -euo pipefail
program=$1 recipe=$2 rounds=${3-7} measure=${4-seconds}
[ "$measure" = seconds ] || [ "$measure" = instructions ] || { echo "$0: seconds or instructions, not $measure" >&2; exit 2; }
work=$(mktemp -d)
page='' reader=''
cleanup() { for one in $page $reader; do kill "$one" 2>/dev/null || true; done; rm -rf "$work"; }
trap cleanup EXIT
cd "$work"
train=("$program" --quiet train "$recipe" --set train.threads=1 --set train.hash_every=0 --set checkpoint.every=1000
       --out runs/measured)
cpu_of_training() {  # user and system seconds, or thousands of millions of instructions
  local TIMEFORMAT='%U %S'
  rm -rf runs/measured
  if [ "$measure" = instructions ]; then
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "${train[@]}" 2>counted >/dev/null
    awk '/Collected/ { printf "%.6f\n", $4 / 1e9; found = 1 } END { exit !found }' counted
  else
    { time "${train[@]}" >/dev/null 2>&1; } 2>&1 | awk '{ print $1 + $2 }'
  fi
}
mkdir runs
[ "$measure" = instructions ] || cpu_of_training >/dev/null  # warm
for _ in $(seq "$rounds"); do
  cpu_of_training >>alone
  "$program" --quiet dashboard runs --port 0 >said 2>/dev/null &
  page=$!
  while [ ! -s said ]; do sleep 0.05; done
  curl -sN "$(grep -oE 'http://[^/#]+' said)/api/events" >/dev/null &
  reader=$!
  cpu_of_training >>watched
  kill $page $reader 2>/dev/null; wait $page $reader 2>/dev/null || true
  page='' reader=''
done
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
# What a busy machine adds differs from run to run: a difference within twice its standard error says nothing.
paste alone watched | awk -v a="$(median alone)" -v b="$(median watched)" '
  { n++; x += $1; xx += $1 * $1; y += $2; yy += $2 * $2 }
  END { error = n > 1 ? 100 * sqrt((xx - x * x / n + yy - y * y / n) / (n - 1) / n) / (x / n) : 0
        printf "training: %.4f alone, %.4f watched: %+.3f %%, standard error %.3f %%, limit 0.5 %%\n", a, b, 100 * (b / a - 1), error }'
echo "alone: $(sort -n alone | xargs); watched: $(sort -n watched | xargs)"
