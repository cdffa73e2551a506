# hosts.sh PROCESS_RANKS PROGRAM: two hosts, of which one goes away. The supervisor goes on with fewer ranks on the other, with
# the same samples, to about the same loss.
#
# Hosts are network namespaces joined by a cable. Skipped where these are not permitted.
set -u
source "$(dirname "$0")/mpirun.sh" "$1"
trireme=$2
recipe=$(dirname "$0")/../../recipes/tiny.toml
folder=$(mktemp -d)
a=trireme-a-$$ b=trireme-b-$$
clean() {
  for host in $a $b; do
    ip netns pids "$host" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
    ip netns delete "$host" 2>/dev/null
  done
  rm -rf "$folder"
}
trap clean EXIT
if ! { ip netns add $a && ip netns add $b && ip link add tv-a-$$ type veth peer name tv-b-$$; } 2>/dev/null; then
  echo "skipped: network namespaces are not permitted here"
  exit 77
fi
ip link set tv-a-$$ netns $a && ip link set tv-b-$$ netns $b || exit 1
for end in a:1 b:2; do
  name=trireme-${end%:*}-$$
  ip netns exec "$name" ip addr add "10.77.0.${end#*:}/24" dev "tv-${end%:*}-$$"
  ip netns exec "$name" ip link set "tv-${end%:*}-$$" up
  ip netns exec "$name" ip link set lo up
done
# What ssh is elsewhere: runs a command on the other host, unless that is gone.
cat >"$folder/reach" <<REACH
#!/bin/bash
[ ! -e "$folder/gone" ] || { echo "ssh: connect to host: No route to host" >&2; exit 255; }
while [ "\$1" != 10.77.0.2 ]; do shift || exit 1; done
shift
exec ip netns exec $b unshare --uts bash -c "hostname b; \$*"
REACH
chmod +x "$folder/reach"
on_a() { ip netns exec $a unshare --uts bash -c 'hostname a; exec "$@"' on_a "$@"; }
sets=(--set train.steps=60 --set train.threads=1 --set train.hash_every=0 --set checkpoint.every=5 --set batch.global_batch_tokens=2048
      --set eval.every=0)
mpi=(mpirun "${as_root[@]}" --bind-to none --novm --host 10.77.0.1,10.77.0.2 --map-by node
     --mca plm_rsh_agent "$folder/reach" --mca oob_tcp_if_include 10.77.0.0/24
     --mca btl_tcp_if_include 10.77.0.0/24 --mca btl self,tcp --mca pml ob1)

on_a timeout 100 "$trireme" --quiet train "$recipe" "${sets[@]}" --ranks 2 --out "$folder/whole" || exit 1
on_a timeout 200 "$trireme" supervise --restarts 5 --ranks 2,1 --hang 4s --start 20s --wait 100ms -- \
  "${mpi[@]}" -n '{ranks}' "$trireme" --quiet train "$recipe" "${sets[@]}" --out "$folder/run" >"$folder/said" 2>&1 &
supervisor=$!
# Once both hosts have brought a checkpoint, one of them goes.
for _ in $(seq 600); do
  [ -d "$folder/run/checkpoints/step-00000010" ] && break
  kill -0 $supervisor 2>/dev/null || break
  sleep 0.1
done
touch "$folder/gone"
ip netns exec $b ip link set tv-b-$$ down
ip netns pids $b | xargs -r kill -KILL
wait $supervisor || { echo "the supervisor gave up:"; cat "$folder/said"; exit 1; }
grep -q '"event":"fewer"' "$folder/run/timeline.jsonl" || { echo "it was never fewer ranks:"; cat "$folder/said" "$folder/run/timeline.jsonl"; exit 1; }
loss() { tail -n 1 "$folder/$1/metrics.jsonl" | grep -o '"loss":[0-9.]*' | cut -d: -f2; }
tokens() { tail -n 1 "$folder/$1/metrics.jsonl" | grep -o '"tokens":[0-9]*' | cut -d: -f2; }
echo "loss $(loss whole) on two hosts that stay, $(loss run) where one went"
for run in whole run; do [ -n "$(loss $run)" ] && [ -n "$(tokens $run)" ] || { echo "$run has no loss or no tokens"; exit 1; }; done
[ "$(tokens whole)" = "$(tokens run)" ] || { echo "other samples: $(tokens run) instead of $(tokens whole) tokens"; exit 1; }
awk -v a="$(loss whole)" -v b="$(loss run)" 'BEGIN { d = a - b; exit !(d < 1e-3 && d > -1e-3) }' || exit 1
echo fine
