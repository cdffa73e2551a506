#!/usr/bin/env bash
# trireme serve as a process: it answers, the official client understands it, SIGTERM drains; and batches go on where they
# were cut. serve.sh PROGRAM SOURCE
set -euo pipefail
program=$1 source=$2
work=$(mktemp -d)
server=
cleanup() {
  [ -z "$server" ] || kill -9 "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
fail() {
  echo "serve.sh: $*" >&2
  cat "$work"/*.log >&2 || true
  exit 1
}
model=$source/tests/fixtures/models/llama
ulimit -n "$(ulimit -Hn)" 2> /dev/null || true  # 1,000 connections
printf '%s' '{% for m in messages %}{{ m.content }}{{ "\n" }}{% endfor %}' > "$work/chat.jinja"

# A batch, whole; and the same after half of its output was lost, a line of it torn.
for i in 1 2 3 4 5 6; do echo "{\"id\": $i, \"prompt\": \"TEXT $i\", \"max_tokens\": 9, \"temperature\": 1, \"ignore_eos\": true}"; done > "$work/in.jsonl"
batch() { "$program" generate "$model" --tokenizer bytes --seed 3 --input "$work/in.jsonl" --output "$1" "${@:2}"; }
batch "$work/whole.jsonl" --batch-size 3 > "$work/batch.log" || fail "a batch fails"
head -c "$(($(head -n 3 "$work/whole.jsonl" | wc -c) + 20))" "$work/whole.jsonl" > "$work/cut.jsonl"
batch "$work/cut.jsonl" --batch-size 2 --num-speculative-tokens 3 > "$work/again.log" || fail "a batch does not go on"
grep -q '6 lines, 3 of them there already' "$work/again.log" || fail "it did not go on where it was"
[ "$(wc -l < "$work/whole.jsonl")" = 6 ] || fail "a batch of 6 prompts has other lines"
cmp <(sort "$work/whole.jsonl") <(sort "$work/cut.jsonl") || fail "a batch that was cut ends with other lines"

"$program" serve "$model" --tokenizer bytes --chat-template "$work/chat.jinja" --port 0 --api-key secret --served-model-name tiny \
  --max-requests 256 --schedule-log "$work/schedule" > "$work/serve.log" 2> "$work/errors.log" &
server=$!
url=
for _ in $(seq 300); do
  url=$(grep -o 'http://127.0.0.1:[0-9]*' "$work/serve.log" | head -n 1) && [ -n "$url" ] && break
  kill -0 "$server" 2>/dev/null || fail "the server ended"
  sleep 0.1
done
[ -n "$url" ] || fail "the server does not come up"
grep -q 'batch-invariant: prefill takes' "$work/serve.log" || fail "the price of invariance is not told"
port=${url##*:}
answer=$(exec 3<> "/dev/tcp/127.0.0.1/$port"; printf 'GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3; cat <&3)
grep -q '200 OK' <<< "$answer" || fail "no health: $answer"

client=skipped
if python3 -c 'import openai' 2> /dev/null; then
  timeout 120 python3 "$source/tests/program/openai_client.py" "$url" secret tiny || fail "the official client"
  client=ran
fi
timeout 300 python3 "$source/tests/program/serve_load.py" "$url" secret tiny "$server" > "$work/load.log" 2>&1 || fail "a load"
status=0
wait "$server" || status=$?  # the load has told it to end
server=
[ "$status" = 0 ] || fail "SIGTERM ended the server with $status"
grep -q '^options tokens' "$work/schedule" || fail "no log of the scheduler"
if [ "$client" = skipped ]; then
  echo "serve.sh: the server and batches are fine; no openai package for python3, so its client was not tried"
  exit 77
fi
