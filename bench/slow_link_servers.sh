#!/usr/bin/env bash
# slow_link_servers.sh PARAMETER_SERVER [RATE_MBIT]: push and pull of 64 MB from one host to a parameter server on another (network
# namespaces, links limited by tc), over UCX, beside the same bytes posted bare and beside the link's rate. PARAMETER_SERVER is
# build/release/bench/parameter_server.
set -euo pipefail
program=$(realpath "$1") rate=${2:-1000} here=$(dirname "$(realpath "$0")")
source "$here/../tests/lab/hosts.sh"
folder=$(mktemp -d)
trap 'hosts_down; rm -rf "$folder"' EXIT
hosts_up 2 "${rate}mbit"
(umask 077; head -c 32 /dev/urandom | base64 >"$folder/token")
unset TRIREME_TOKEN
export TRIREME_TOKEN_FILE=$folder/token TRIREME_LOG=warn
processes=() status=0
start() { # HOST RANK LOCAL_RANK LOCAL_RANKS
  on "$1" env RANK="$2" WORLD_SIZE=4 LOCAL_RANK="$3" LOCAL_WORLD_SIZE="$4" MASTER_ADDR="$(host_address 1)" MASTER_PORT=29700 \
    timeout 300 "$program" >"$folder/said-$2" 2>&1 &
  processes+=($!)
}
for rank in 0 1 2; do start h1 $rank $rank 3; done
start h2 3 0 1
for process in "${processes[@]}"; do wait "$process" || status=$?; done
[ $status = 0 ] || { cat "$folder"/said-*; exit $status; }
echo "a link of $rate Mbit/s: $((rate / 8)) MB/s"
cat "$folder/said-3"
