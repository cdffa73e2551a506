#!/usr/bin/env bash
# compress_peers.sh PROGRAM PYTHON [RATE_MBIT] [ROUNDS]: two hosts (network namespaces) on a link that tc's tbf limits. Steps of a small GPT
# under data parallelism: ours beside PyTorch's DistributedDataParallel over Gloo with its hooks, in turn. PYTHON has torch, and numpy for its PowerSGD hook. So
# few tokens that the link is what a step waits for; one thread a rank. Names in ONLY (bf16 powersgd): those pairs.
set -euo pipefail
trireme=$(realpath "$1") python=$(command -v "$2") rate=${3:-100} rounds=${4:-3} here=$(dirname "$(realpath "$0")")
source "$here/../tests/lab/hosts.sh"
folder=$(mktemp -d)
trap 'hosts_down; rm -rf "$folder"' EXIT
hosts_up 2 "${rate}mbit"
(umask 077; head -c 32 /dev/urandom | base64 >"$folder/token")
unset TRIREME_TOKEN
export TRIREME_TOKEN_FILE=$folder/token TRIREME_LOG=warn GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1
port=29600 cores=$(nproc --all)
on_both() { # COMMAND...: as rank N - 1 on host hN; what rank 0 says comes out
  local number processes=() status=0
  port=$((port + 1))
  for number in 1 2; do
    on h$number env RANK=$((number - 1)) WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR="$(host_address 1)" MASTER_PORT=$port \
      taskset -c $(((number - 1) % cores)) "$@" >"$folder/said-$number" 2>"$folder/erred-$number" &
    processes+=($!)
  done
  for number in "${processes[@]}"; do wait "$number" || status=$?; done
  cat "$folder/said-1"
  [ $status = 0 ] || { cat "$folder"/erred-* >&2; return $status; }
}
cat >"$folder/recipe.toml" <<'END'
[model]
family = "gpt2"
vocab_size = 256
max_seq_len = 64
hidden_size = 256
num_layers = 4
num_heads = 4
num_kv_heads = 4
head_dim = 64
ffn_size = 1024
[data]
seq_len = 64
synthetic.kind = "markov"
synthetic.vocab_size = 64
[batch]
global_batch_tokens = 128
[layout]
dp = 2
bucket_mb = 4
[train]
steps = 12
hash_every = 0
threads = 1
[checkpoint]
every = 1000000
END
run=0
ours() { # SETTINGS...: seconds of steps 4 to 12, one a line
  local words=() setting
  for setting in "$@"; do words+=(--set "$setting"); done
  run=$((run + 1))
  on_both "$trireme" --quiet train "$folder/recipe.toml" "${words[@]}" --out "$folder/run-$run" >/dev/null
  sed 1,3d "$folder/run-$run/metrics.jsonl" | sed -nE 's/.*"memory":[^,]*,"seconds":([0-9.e+-]+).*/\1/p'
}
theirs() { # HOOK
  on_both "$python" "$here/peers/ddp_hooks.py" --hook "$1" | "$python" -c 'import json, sys; print(*json.load(sys.stdin)["seconds"][3:], sep="\n")'
}
quartiles() { sort -g "$1" | awk '{ t[NR] = $1 } END { printf "%.4f %.4f %.4f", t[int((NR + 1) / 2)], t[int((NR + 3) / 4)], t[int((3 * NR + 1) / 4)] }'; }
pair() { # NAME HOOK GOAL SETTINGS...
  local name=$1 hook=$2 goal=$3 round
  shift 3
  [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $name "* ]] || return 0
  for ((round = 0; round < rounds; ++round)); do
    ours "$@" >>"$folder/ours-$name"
    theirs "$hook" >>"$folder/theirs-$name"
  done
  awk -v name="$name" -v hook="$hook" -v goal="$goal" -v ours="$(quartiles "$folder/ours-$name")" -v theirs="$(quartiles "$folder/theirs-$name")" 'BEGIN {
    split(ours, o, " "); split(theirs, t, " ")
    printf "%-9s ours %s s (quartiles %s to %s); hook %s %s s (%s to %s): %.2fx, goal %s\n", name, o[1], o[2], o[3], hook, t[1], t[2], t[3], t[1] / o[1], goal }'
}
echo "link of $rate Mbit/s, load $(cut -d' ' -f1 /proc/loadavg) on $cores cores"
pair dense none - layout.reduce=fp32
pair bf16 fp16 1.0 layout.reduce=bf16
pair powersgd powersgd 1.2 compress.kind=powersgd compress.rank=4 compress.start=2
