#!/usr/bin/env bash
# serve.sh PROGRAM REPOSITORY: the chat page of `trireme serve` in a real browser, laptop and phone, over a model that two
# ranks hold together.
set -euo pipefail
program=$1 repository=$2
for needed in chromium chromedriver python3; do
  command -v $needed >/dev/null || { echo "skipped: $needed is not installed (Debian: chromium chromium-driver python3)"; exit 77; }
done
work=$(mktemp -d)
server=
cleanup() {
  [ -z "$server" ] || kill -9 "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
cd "$work"
printf '%s' '{% for m in messages %}{{ m.content }}{{ "\n" }}{% endfor %}' > chat.jinja
"$program" serve "$repository/tests/fixtures/models/llama" --tokenizer bytes --chat-template chat.jinja --port 0 --tp 2 \
  --api-key secret --served-model-name tiny > said 2> errors &
server=$!
for _ in $(seq 300); do
  grep -q 'http://' said && break
  kill -0 "$server" 2>/dev/null || { cat said errors >&2; exit 1; }
  sleep 0.1
done
PYTHONPATH=$repository/tests/browser python3 "$repository/tests/browser/serve.py" "$(grep -oE 'http://127.0.0.1:[0-9]+' said | head -n 1)" secret
kill -TERM "$server"
wait "$server" || { cat said errors >&2; exit 1; }
server=
