#!/usr/bin/env bash
# bench_help_test.sh BUILD: every benchmark that is built says what can be given to it, in words: no map of enumerators.
set -euo pipefail
said=$(mktemp)
trap 'rm -f "$said"' EXIT
asked=0 bad=0
for bench in "$1"/bench/*; do
  { [ -f "$bench" ] && [ -x "$bench" ]; } || continue
  asked=$((asked + 1))
  code=0
  timeout 60 "$bench" --help >"$said" 2>&1 </dev/null || code=$?
  if [ $code -ne 0 ] || ! grep -q '^Usage: ' "$said" || grep -qE '\{[^}]*->' "$said"; then
    bad=$((bad + 1))
    echo "$(basename "$bench") --help ends with $code and says:"
    head -n 20 "$said"
  fi
done
[ $asked -gt 0 ] || { echo "no benchmark is built: make test builds them"; exit 77; }
echo "$asked benchmarks asked for help, $bad failed"
exit $((bad > 0))
