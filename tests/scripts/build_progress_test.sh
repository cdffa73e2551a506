#!/usr/bin/env bash
# build_progress_test.sh REPOSITORY: scripts/build-progress shows few lines in a log and one on a terminal, passes on what
# the build says, and ends as the build does.
set -euo pipefail
progress=$1/scripts/build-progress
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "$1"
  cat "$2"
  exit 1
}

# A build of 100 steps, of which one warns, and one that fails.
{
  echo 'rule step'
  echo '  command = $say touch $out'
  echo '  description = making $out'
  for i in $(seq 1 100); do echo "build out$i: step"; done
  echo 'build warned: step'
  echo '  say = echo "some.cpp:3: warning: a warning of the compiler" &&'
  echo 'build broken: step'
  echo '  say = echo "some.cpp:7: error: an error of the compiler" && exit 3;'
  printf 'build all: phony warned'
  for i in $(seq 1 100); do printf ' out%s' "$i"; done
  echo
} >"$work/build.ninja"

"$progress" ninja -C "$work" all >"$work/log" || fail "a build that succeeds must succeed" "$work/log"
grep -q '^build: 101 of 101 in ' "$work/log" || fail "the end is not told" "$work/log"
grep -q 'some.cpp:3: warning: a warning of the compiler' "$work/log" || fail "a warning is lost" "$work/log"
grep -q 'making out' "$work/log" && fail "steps must not be printed one by one" "$work/log"
lines=$(grep -c '^build: ' "$work/log")
((lines >= 15 && lines <= 21)) || fail "a log has a line every 5 %, not $lines" "$work/log"

status=0 alone=0
ninja -C "$work" broken >/dev/null 2>&1 || alone=$?  # 1, or since 1.13 what the command ended with
"$progress" ninja -C "$work" broken >"$work/log" 2>&1 || status=$?
((alone != 0 && status == alone)) || fail "a build that fails must fail as ninja does, not with $status" "$work/log"
grep -Eq 'FAILED: (\[code=[0-9]+\] )?broken' "$work/log" || fail "what failed is not told" "$work/log"
grep -q 'some.cpp:7: error: an error of the compiler' "$work/log" || fail "an error is lost" "$work/log"
grep -q ' of 1 in ' "$work/log" && fail "a build that failed did not end" "$work/log"

# On a terminal: one line, rewritten.
rm -f "$work"/out* "$work/warned"
script -qec "$progress ninja -C $work all" /dev/null >"$work/log" || fail "on a terminal it must succeed too" "$work/log"
grep -q $'\r\033\[Kbuild: 50 of 101' "$work/log" || fail "a terminal sees every step" "$work/log"
lines=$(grep -c 'build: ' "$work/log")
((lines <= 2)) || fail "a terminal has one line, not $lines" "$work/log"

# The pace so far tells the time left: ten steps of 1.5 seconds, one at a time.
{
  echo 'rule wait'
  echo '  command = sleep 1.5 && touch $out'
  for i in $(seq 1 10); do echo "build slow$i: wait"; done
} >"$work/build.ninja"
"$progress" ninja -C "$work" -j1 >"$work/log"
grep -qE '^build: 8 of 10, about [3-6] s left$' "$work/log" || fail "two steps of 1.5 s take 3 s and a little" "$work/log"
echo "ok"
