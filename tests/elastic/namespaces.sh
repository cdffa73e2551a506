# namespaces.sh PROGRAM [KILLS]: an elastic world on three hosts, which are network namespaces with names and addresses of their own. Ranks
# are killed and come again, and a host is cut off while its rank lives: its heartbeat tells. Every step has the bits of its world.
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
kills=${2:-4} tag=tre$$
{ ip netns add $tag-probe && ip netns del $tag-probe && unshare --uts true; } 2>/dev/null ||
  { echo "skipped: no network namespaces here (root and iproute2 are needed)"; exit 77; }
source "$(dirname "$0")/run.sh" "$1"
bridge=b$$ hosts=(h1 h2 h3)
take_down() {
  clean_up
  for host in "${hosts[@]}"; do
    ip netns pids $tag-$host 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
    ip netns del $tag-$host 2>/dev/null || true
  done
  ip link del $bridge 2>/dev/null || true
}
trap take_down EXIT
ip link add $bridge type bridge && ip addr add 10.213.$(($$ % 250)).254/24 dev $bridge && ip link set $bridge up
number=0
for host in "${hosts[@]}"; do
  number=$((number + 1))
  ip netns add $tag-$host
  ip link add v$number-$$ type veth peer name eth0 netns $tag-$host
  ip link set v$number-$$ master $bridge up
  ip -n $tag-$host link set lo up
  ip -n $tag-$host link set eth0 up
  ip -n $tag-$host addr add 10.213.$(($$ % 250)).$number/24 dev eth0
done
cat >reach <<END
#!/bin/sh
exec ip netns exec $tag-\$1 unshare --uts sh -c "hostname \$1; \$2"
END
chmod +x reach
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >token && chmod 600 token
export TRIREME_TOKEN_FILE=$folder/token
RANDOM=${SEED:-7}
elastic_start run --host 10.213.$(($$ % 250)).254 --hosts h1,h2,h3 --ssh "$folder/reach" --min-ranks 1 --snapshot-every 1 \
  --cooldown 100ms --cooldown-max 100ms --heartbeat 2s --reset-limit 0 -- --set train.steps=100000 --set comm.deadline=20s
wait_for "a world of three hosts" 120 runs_on run 3 1
rank_of() { ip netns pids $tag-$1 | while read -r process; do grep -qz TRIREME_MEMBER "/proc/$process/environ" 2>/dev/null &&
  [ "$(readlink "/proc/$process/exe")" = "$trireme" ] && echo "$process" && break; done; }
worlds() { grep -c '"phase":"running"' run/timeline.jsonl; }

echo "== kills and joins"
for ((kill = 1; kill <= kills; ++kill)); do
  victim=$(rank_of "${hosts[$((RANDOM % 3))]}")
  [ -n "$victim" ] || continue
  began=$(worlds)
  kill -KILL "$victim"
  wait_for "a world of three after kill $kill" 120 runs_on run 3 $((began + 1))
done
echo "== a host is cut off"
began=$(worlds) before=$(steps_of run)
ip link set v2-$$ down
wait_for "a world without it" 60 runs_on run 2 $((began + 1))
wait_for "steps without it" 60 has_steps run $((before + 3))
ip link set v2-$$ up
wait_for "a world with it again" 120 runs_on run 3 $((began + 2))
touch run/stop
wait "$elastic" && fail "it was stopped, but says that it is finished"
elastic=
last=$(steps_of run)
each_step_once run "$last"
echo "$kills kills, $(worlds) worlds, $last steps"
phases run
master=10.213.$(($$ % 250)).1
train_world() { train_world_on_hosts "$@"; }
replay run "$last"
echo fine
