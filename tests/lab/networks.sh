# networks.sh PROGRAM: ranks on two hosts (network namespaces) that find each other by a network, in IPv4 and, where hosts have no other
# address, in IPv6; a network that a host is not on is an error with those that there are.
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
set -u
trireme=$(realpath "$1")
source "$(dirname "$(realpath "$0")")/hosts.sh"
folder=$(mktemp -d)
trap 'hosts_down; rm -rf "$folder"' EXIT
fail() { echo "FAILED: $*"; tail -n 20 "$folder"/h?; exit 1; }
hosts_up 2 || fail "the hosts did not come up"
(umask 077; head -c 32 /dev/urandom | base64 >"$folder/token")
unset TRIREME_TOKEN
export TRIREME_TOKEN_FILE=$folder/token TRIREME_LOG=warn
port=29600
on_both() { # MASTER COMMAND...: one rank on each; what they say is in $folder/h1, h2
  local master=$1 number processes=() status=0
  shift
  port=$((port + 1))
  for number in 1 2; do
    on h$number env RANK=$((number - 1)) WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR="$master" MASTER_PORT=$port \
      timeout 60 "$@" >"$folder/h$number" 2>&1 &
    processes+=($!)
  done
  for number in "${processes[@]}"; do wait "$number" || status=$?; done
  return $status
}
few=("$trireme" --quiet bench comm --op all_reduce --algo ring --bytes 1K,1M --seconds 0.001 --json)

echo "== by a network of IPv4"
on_both "$(host_address 1)" "${few[@]}" --set comm.interface="10.213.$hosts_subnet.0/24" || fail "it ended with $?"
grep -q '"transport": "ucx"' "$folder/h1" || fail "that was not UCX"

echo "== a network that hosts are not on"
began=$SECONDS
on_both "$(host_address 1)" "${few[@]}" --set comm.interface=192.0.2.0/24 && fail "it found a network that there is not"
for number in 1 2; do
  grep -q 'no network interface of this machine is meant by "192.0.2.0/24"' "$folder/h$number" || fail "that is not what was wrong on h$number"
  grep -q "eth0 ($(host_address $number)" "$folder/h$number" || fail "the interfaces that there are were not told on h$number"
done
((SECONDS - began < 20)) || fail "ranks waited for each other, $((SECONDS - began)) s"

if ! ip -n "$hosts_tag-h1" -6 addr show dev eth0 2>/dev/null | grep -q "$(host_address6 1)"; then
  echo "the part with IPv6 was left out: this kernel has none"
  echo fine
  exit
fi
echo "== IPv6 alone"
for number in 1 2; do ip -n "$hosts_tag-h$number" addr del "$(host_address $number)/24" dev eth0 || fail "an address is left"; done
on_both "$(host_address6 1)" "${few[@]}" --set comm.interface="fd00:213:$hosts_subnet::/64" || fail "it ended with $?"
grep -q '"transport": "ucx"' "$folder/h1" || fail "that was not UCX"
on_both "$(host_address6 1)" "${few[@]}" || fail "without a network, it ended with $?"
echo fine
