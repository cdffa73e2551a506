#!/usr/bin/env bash
# elastic_snapshots.sh PROGRAM [RANKS]: what snapshots in memory cost an elastic run to which nothing happens, at the default interval: the
# share of the ranks' CPU time, beside the 1 % that it may be, and their bytes beside those of a checkpoint, which is planned the same way.
# CPU time is that of the ranks' own processes between two points of the run, so that other work on the machine hardly shows in it.
set -eu
trireme=$(realpath "$1") ranks=${2:-2} recipes=$(realpath "$(dirname "$0")/../recipes")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset TRIREME_TOKEN TRIREME_TOKEN_FILE
export TRIREME_LOG=warn
measure() { # NAME SETTINGS...
  local name=$1 stored
  shift
  "$trireme" --quiet elastic --ranks "$ranks" --min-ranks "$ranks" -- "$trireme" train "$recipes/tiny.toml" --out "$folder/$name" --set train.threads=1 \
    --set train.hash_every=0 --set eval.every=0 --set checkpoint.every=1000000 "$@" >said 2>&1 || { cat said; exit 1; }
  stored=$(find "$name/checkpoints" -name '*.safetensors' -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
  grep '"event":"snapshots"' "$name/timeline.jsonl" | awk -v name="$name" -v stored="$stored" '
    function field(key,  found) { match($0, "\"" key "\":[0-9.e+-]+"); found = substr($0, RSTART, RLENGTH); sub(/.*:/, "", found); return found + 0 }
    { ++ranks; taken = field("taken"); bytes += field("bytes_each"); kept += field("kept_bytes"); cpu += field("cpu_s"); all += field("world_cpu_s"); wall += field("seconds") }
    END { printf "%s, %d ranks: %d snapshots of %.0f bytes (a checkpoint has %.0f), %.0f kept; %.3f of %.2f s of CPU time: %.2f %%, limit 1 %%; %.2f ms each\n",
            name, ranks, taken, bytes, stored, kept, cpu, all, 100 * cpu / all, 1e3 * wall / ranks / taken }'
}
measure tiny --set train.steps=400
measure hidden-256 --set model.hidden_size=256 --set model.num_heads=4 --set model.head_dim=64 --set model.num_kv_heads=4 --set model.ffn_size=1024 \
  --set model.vocab_size=2048 --set train.steps=60
