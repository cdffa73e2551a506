#!/usr/bin/env bash
# slow_link.sh PROGRAM [RATE_MBIT] [ROUNDS]: four hosts (network namespaces) whose links are limited by tc. How much of the link a ring
# all_reduce of 64 MiB uses, and how far a training step is from the planner's prediction with the link that `trireme bench hardware`
# measured there. Hosts share this machine's cores, one thread a rank: run it on a machine that does nothing else.
#   BENCH_PREFIX   a command before each rank's, e.g. "chrt -r 1"
#   PRECISIONS     of the training step: "fp32 bf16" unless given
set -euo pipefail
trireme=$(realpath "$1") rate=${2:-1000} rounds=${3:-3} here=$(dirname "$(realpath "$0")")
source "$here/../tests/lab/hosts.sh"
folder=$(mktemp -d)
trap 'hosts_down; rm -rf "$folder"' EXIT
hosts_up 4 "${rate}mbit"
(umask 077; head -c 32 /dev/urandom | base64 >"$folder/token")
unset TRIREME_TOKEN
export TRIREME_TOKEN_FILE=$folder/token TRIREME_LOG=warn
port=29500 cores=$(nproc)
on_all() { # COMMAND...: as rank N - 1 on host hN, each on one core; what rank 0 says comes out
  local number processes=() status=0
  port=$((port + 1))
  for number in 1 2 3 4; do
    on h$number env RANK=$((number - 1)) WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR="$(host_address 1)" MASTER_PORT=$port \
      taskset -c $(((number - 1) % cores)) ${BENCH_PREFIX:-} "$@" >"$folder/said-$number" 2>&1 &
    processes+=($!)
  done
  for number in "${processes[@]}"; do wait "$number" || status=$?; done
  cat "$folder/said-1"
  [ $status = 0 ] || { cat "$folder"/said-*; return $status; }
}
number_of() { grep -oE "\"$1\": *[0-9.e+-]+" | sed -nE '1s/.*: *//p'; }

on_all "$trireme" --quiet bench comm --op all_reduce --algo ring --bytes 64M --in-place --seconds 4 --json >"$folder/ring.json"
awk -v seconds="$(number_of seconds <"$folder/ring.json")" -v rate="$rate" 'BEGIN {
  bytes = 2 * 3 / 4 * 67108864; link = rate * 1e6 / 8
  printf "ring all_reduce of 64 MiB: %.3f s; the link alone %.3f s: %.1f %% of it, goal 90\n", seconds, bytes / link, 100 * bytes / link / seconds }'

on_all "$trireme" --quiet bench hardware -o "$folder/cluster.toml" >"$folder/hardware"
head -n 1 "$folder/hardware"
cat >"$folder/recipe.toml" <<'END'
[model]
family = "gpt2"
vocab_size = 4096
max_seq_len = 256
hidden_size = 320
num_layers = 5
num_heads = 5
num_kv_heads = 5
head_dim = 64
ffn_size = 1280
[data]
seq_len = 256
synthetic.kind = "markov"
synthetic.vocab_size = 64
[batch]
global_batch_tokens = 4096
[train]
steps = 16
hash_every = 0
[checkpoint]
every = 1000000
END
for precision in ${PRECISIONS:-fp32 bf16}; do
  predicted=$("$trireme" --quiet check "$folder/recipe.toml" --ranks 4 --cluster "$folder/cluster.toml" --set precision.compute=$precision --json | number_of step_seconds)
  [ -n "$predicted" ] || { echo "no prediction for $precision"; exit 1; }
  for ((round = 0; round < rounds; ++round)); do
    on_all "$trireme" --quiet train "$folder/recipe.toml" --set precision.compute=$precision --set train.threads=1 --out "$folder/run-$precision-$round" >/dev/null
    sed 1,4d "$folder/run-$precision-$round/metrics.jsonl" | grep -oE '"seconds":[0-9.e+-]+' | cut -d: -f2
  done | sort -g | awk -v predicted="$predicted" -v precision=$precision '{ t[NR] = $1 } END {
    median = t[int((NR + 1) / 2)]
    printf "a step of dp 4 in %s: %.3f s measured (quartiles %.3f to %.3f), %.3f s predicted: off by %+.1f %%, goal 10\n", precision, median,
      t[int((NR + 3) / 4)], t[int((3 * NR + 1) / 4)], predicted, 100 * (predicted / median - 1) }'
done
