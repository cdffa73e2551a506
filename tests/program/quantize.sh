#!/usr/bin/env bash
# trireme quantize on a model that was trained: quantised folders, what they cost, and that every command reads them.
# quantize.sh PROGRAM SOURCE
set -euo pipefail
program=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() {
  echo "quantize.sh: $*" >&2
  exit 1
}
"$program" --quiet train "$source/recipes/tiny.toml" --set train.steps=120 --set train.hash_every=0 --out run > train.log 2>&1 || { cat train.log; fail "training"; }

# WEIGHTS, further options, most percent that the loss may rise by.
try() {
  local name=$1 most=$2
  shift 2
  "$program" --quiet quantize run "$name" "$@" > "$name.txt" 2> "$name.log" || { cat "$name.log"; fail "$name"; }
  local rise
  rise=$(sed -n 's/^loss after .*(\(.*\) %).*/\1/p' "$name.txt")
  awk -v rise="$rise" -v most="$most" 'BEGIN { exit !(rise != "" && rise < most && rise > -most) }' || { cat "$name.txt"; fail "$name: the loss changes by $rise %, and $most % are allowed"; }
  echo '[[5, 6, 7], [1]]' > ids.json
  "$program" --quiet generate "$name" --ids ids.json --max-new-tokens 5 > "$name.ids" 2> "$name.log" || { cat "$name.log"; fail "generate $name"; }
  [ "$(wc -l < "$name.ids")" = 2 ] || fail "generate $name"
  echo "$name: loss $rise %"
}
try int8 0.1 --weights int8 --dtype F32
try fp8 0.3 --weights fp8 --dtype F32
try gptq 3 --weights int4 --group-size 32 --dtype F32
try awq 3 --weights int4 --group-size 32 --layout awq --dtype F32
try plain16 0.3 --weights int8
cmp gptq.ids awq.ids || fail "the same codes in two layouts give other tokens"
# What the folder stands for is a plain folder again.
"$program" --quiet convert gptq plain 2> convert.log || { cat convert.log; fail "convert"; }
grep -q quantization_config plain/config.json && fail "the plain folder says that it is quantised"
"$program" --quiet generate plain --ids ids.json --max-new-tokens 5 > plain.ids
cmp gptq.ids plain.ids || fail "codes and what they stand for give other tokens"
"$program" --quiet quantize gptq twice --no-loss 2> twice.log && fail "quantised twice"
grep -q 'is quantised already' twice.log || { cat twice.log; fail "why not twice"; }
