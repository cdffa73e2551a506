#!/usr/bin/env bash
# starts_quickly.sh PROGRAM: `PROGRAM --version` takes less than 30 ms. The best of twenty, of more
# while none is good enough: a busy machine makes a start slower, nothing makes it faster than it is.
set -euo pipefail
bound_us=30000 best_us=
"$1" --version
for turn in {1..300}; do
  if [ "$turn" -gt 20 ] && [ "$best_us" -lt $bound_us ]; then break; fi
  begin=${EPOCHREALTIME//./}
  "$1" --version >/dev/null
  end=${EPOCHREALTIME//./}
  if [ -z "$best_us" ] || [ $((end - begin)) -lt "$best_us" ]; then best_us=$((end - begin)); fi
done
echo "starts in $best_us us, bound $bound_us us"
[ "$best_us" -lt $bound_us ]
