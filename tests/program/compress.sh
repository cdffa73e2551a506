#!/usr/bin/env bash
# Every kind of gradient compression and local updates on four ranks beside its serial twin in fp64, with its default keys: equal, with
# three compressed or synchronised steps at least. And what a run tells of it.
# compress.sh PROGRAM SOURCE
set -euo pipefail
program=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() {
  echo "compress.sh: $*" >&2
  exit 1
}
for kind in onebit-sgd qsgd powersgd dgc csc onebit-adam zero-one-adam local-sgd elastic-averaging diloco; do
  "$program" --quiet verify "$source/recipes/verify-tiny.toml" --ranks 4 --precision fp64 --set compress.kind=$kind > said 2> log ||
    { cat said log; fail "$kind differs from its twin"; }
  rounds=$(sed -n "s/^$kind: [0-9]* elements compressed in \([0-9]*\) rounds.*/\1/p" said)
  [ "${rounds:-0}" -ge 3 ] || { cat said; fail "$kind: ${rounds:-no} rounds, and 3 are wanted"; }
  largest=$(sed -n 's/^weights after .* largest difference \([^,]*\),.*/\1/p' said)
  awk -v largest="$largest" 'BEGIN { exit !(largest != "" && largest <= 1e-9) }' || { cat said; fail "$kind: weights differ by $largest"; }
  echo "$kind: $rounds rounds, weights within $largest"
done
# Nothing compressed is no success.
"$program" --quiet verify "$source/recipes/verify-tiny.toml" --ranks 2 --precision fp64 --steps 2 --set compress.kind=powersgd \
  --set compress.min_elements=100000000 > said 2> log && fail "nothing was compressed, and verify said that it is equal"
grep -q 'NOTHING was compressed' said || { cat said log; fail "why"; }
# Exchanges that begin beside backward and those after it: the same weights, and their seconds apart in what ranks tell.
for overlap in true false; do
  "$program" --quiet train "$source/recipes/verify-tiny.toml" --set comm.ranks=2 --set compress.kind=onebit-sgd --set compress.overlap=$overlap \
    --set layout.bucket_mb=0.2 --set train.hash_every=5 --out "run-$overlap" > /dev/null 2> log || { cat log; fail "training with overlap $overlap"; }
  grep -o '"compress/[a-z_]*seconds"' "run-$overlap/ranks/00000.jsonl" | sort -u > told
  grep -q kernel_seconds told || { cat told; fail "a run does not tell its kernels' time"; }
  grep -o '"hash":"[^"]*"' "run-$overlap/metrics.jsonl" > "hashes-$overlap" || fail "no hashes"
done
cmp hashes-true hashes-false || fail "weights depend on when exchanges begin"
