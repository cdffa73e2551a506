# Sourced by tests and benchmarks that need several hosts: network namespaces h1, h2, ... of this machine on a bridge, each with a
# name, addresses and an interface eth0 of its own. All traffic stays inside them.
#
#   hosts_up COUNT [RATE]   makes them; RATE in tc's words (1gbit) limits each link in both directions. Ends the script with 77 and a
#                           sentence where that cannot be. Afterwards: hosts (names), and the functions below.
#   host_address N          10.213.X.N; N = 254 is this machine's own end of the bridge
#   host_address6 N         fd00:213:X::N
#   on HOST COMMAND...      runs a command there, without a shell in between
#   host_link N up|down     plugs its cable in or out: nobody is told
#   hosts_reach FILE        writes a program that does what ssh does elsewhere: FILE HOST LINE
#   hosts_down              ends what runs there and takes all away; call it from a trap
hosts=() hosts_names= hosts_tag=trh$$ hosts_bridge=b$$ hosts_subnet=$(($$ % 250))

host_address() { echo "10.213.$hosts_subnet.$1"; }
host_address6() { echo "fd00:213:$hosts_subnet::$1"; }

hosts_up() {
  local count=$1 rate=${2:-} number host port
  { ip netns add $hosts_tag-probe && ip netns del $hosts_tag-probe && unshare --uts true; } 2>/dev/null ||
    { echo "skipped: no network namespaces here (root and iproute2 are needed)"; exit 77; }
  ip link add $hosts_bridge type bridge && ip addr add "$(host_address 254)/24" dev $hosts_bridge && ip link set $hosts_bridge up || return 1
  hosts_names=$(mktemp)  # in the place of /etc/hosts
  { echo 127.0.0.1 localhost; for ((number = 1; number <= count; ++number)); do echo "$(host_address $number) h$number"; done; } >"$hosts_names"
  chmod 644 "$hosts_names"
  for ((number = 1; number <= count; ++number)); do
    host=h$number port=v$number-$$
    hosts+=("$host")
    ip netns add $hosts_tag-$host &&
      ip link add $port type veth peer name eth0 netns $hosts_tag-$host &&
      ip link set $port master $hosts_bridge up &&
      ip -n $hosts_tag-$host link set lo up &&
      ip -n $hosts_tag-$host link set eth0 up &&
      ip -n $hosts_tag-$host addr add "$(host_address $number)/24" dev eth0 || return 1
    # Not every kernel has IPv6: who needs it looks whether the address is there.
    ip -n $hosts_tag-$host -6 addr add "$(host_address6 $number)/64" dev eth0 nodad 2>/dev/null || true
    [ -n "$rate" ] || continue
    { tc qdisc add dev $port root tbf rate "$rate" burst 256kb latency 50ms &&
      tc -n $hosts_tag-$host qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 50ms; } 2>/dev/null ||
      { echo "skipped: this kernel cannot limit a link's rate (tc's tbf)"; exit 77; }
  done
}
on() {
  local host=$1
  shift
  # ip netns exec has mounts of its own, among them a sysfs that shows the namespace's interfaces: UCX looks for them there.
  ip netns exec $hosts_tag-"$host" unshare --uts sh -c 'hostname "$0"; mount --bind "$1" /etc/hosts; shift; exec "$@"' "$host" "$hosts_names" "$@"
}
host_link() { ip link set "v$1-$$" "$2"; }
hosts_reach() {
  printf '#!/bin/sh\nexec ip netns exec %s-$1 unshare --uts sh -c "hostname $1; mount --bind %s /etc/hosts; $2"\n' $hosts_tag "$hosts_names" >"$1" &&
    chmod +x "$1"
}
hosts_down() {
  local host
  for host in "${hosts[@]}"; do
    ip netns pids $hosts_tag-"$host" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
    ip netns del $hosts_tag-"$host" 2>/dev/null || true
  done
  ip link del $hosts_bridge 2>/dev/null || true
  rm -f "$hosts_names"
}
