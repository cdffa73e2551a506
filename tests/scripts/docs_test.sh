#!/usr/bin/env bash
# docs_test.sh REPOSITORY: what the documents point at exists: links between files, and paths of code and tests.
set -euo pipefail
cd "$1"
missing=0 checked=0
while IFS=: read -r document path; do
  checked=$((checked + 1))
  if [ ! -e "$(dirname "$document")/$path" ] && [ ! -e "$path" ]; then
    echo "$document points at $path, which is not there"
    missing=$((missing + 1))
  fi
done < <(
  for document in *.md docs/*.md src/trireme/*/README.md; do
    # Code in fences is no link, though a lambda looks like one.
    awk '/^```/ { fenced = !fenced } !fenced' "$document" | grep -oE '\]\([^)#:]+\)' | sed -E "s|^\]\((.*)\)$|$document:\1|" || true
    grep -oE '`(src|tests|bench|scripts|docs|cmake|recipes)/[A-Za-z0-9_./-]*`' "$document" | grep -vE 'NAME|ROOM' | tr -d '`' |
      sed "s|^|$document:|" || true
  done
)
echo "$checked pointers, $missing broken"
[ "$checked" -gt 20 ] && [ "$missing" = 0 ]
