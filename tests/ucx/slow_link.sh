# Large mail between two hosts (network namespaces) over a link of 20 Mbit/s: what is only slow or was only idle is not given up, and
# nobody is ended inside UCX.
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
set -u
process_ranks=$(realpath "$1")
source "$(dirname "$(realpath "$0")")/../lab/hosts.sh"
folder=$(mktemp -d)
trap 'hosts_down; rm -rf "$folder"' EXIT
hosts_up 2 20mbit || { echo "the hosts did not come up"; exit 1; }
(umask 077; head -c 32 /dev/urandom | base64 >"$folder/token")
unset TRIREME_TOKEN
export TRIREME_TOKEN_FILE=$folder/token TRIREME_LOG=${TRIREME_LOG:-warn}
processes=() status=0
for rank in 0 1; do
  on h$((rank + 1)) env RANK=$rank WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR="$(host_address 1)" MASTER_PORT=29700 \
    timeout 100 "$process_ranks" slow_link auto 1 >"$folder/said-$rank" 2>&1 &
  processes+=($!)
done
for process in "${processes[@]}"; do wait "$process" || status=$?; done
cat "$folder"/said-*
[ $status = 0 ] && grep -q "^fine on " "$folder/said-0" && grep -q "^descriptors: " "$folder/said-1" || { echo "it ended with $status"; exit 1; }
echo fine
