# storm_in_lab.sh PROGRAM KILLS: what storm.sh runs on the controller of its cluster.
set -- "$(realpath "$1")" "$2"
kills=$2
source "$(dirname "$(realpath "$0")")/../elastic/run.sh" "$1"
RANDOM=${SEED:-11}
# Ranks of a replay are on one machine: without shared memory sums have the same order there as between nodes.
sets+=(--set comm.ranks_per_node=1)
(umask 077; head -c 32 /dev/urandom | base64 >"$folder/token")
export TRIREME_TOKEN_FILE=$folder/token

on_node() { local node; node=$(cat "$LAB/node$1"); shift; nsenter --target "$node" --net --mount --uts "$@"; }
declare -A member
start_member() { # NODE
  TRIREME_ELASTIC=$(cat "$folder/lab.join") TRIREME_SNAPSHOT_EVERY=1 TRIREME_HEARTBEAT_MS=3000 on_node "$1" \
    "$trireme" train "$recipes/tiny.toml" --out "$folder/lab" "${sets[@]}" --set train.steps=1000000 >>"$folder/n$1.said" 2>&1 &
  member[$1]=$!
}
kill_member() { kill -KILL "${member[$1]}" 2>/dev/null || true; wait "${member[$1]}" 2>/dev/null || true; }
link() { on_node "$1" ip link set "eth-n$1" "$2"; }
trap 'for node in 1 2 3 4; do kill_member $node; done; clean_up' EXIT

elastic_start lab --ranks 0 --min-ranks 2 --host 10.79.0.1 --heartbeat 3s --snapshot-every 1 --reset-limit 0 -- --set train.steps=1000000
wait_for "the coordinator" 30 test -s "$folder/lab.join"
for node in 1 2 3 4; do start_member $node; done
wait_for "a world of four" 120 runs_on lab 4 1
links=0
for ((kill = 1; kill <= kills; ++kill)); do
  sleep "0.$((RANDOM % 10))"
  node=$((1 + RANDOM % 4)) worlds=$(grep -c '"phase":"running"' lab/timeline.jsonl)
  if [ $((kill % 4)) = 0 ]; then
    links=$((links + 1))
    link $node down  # half open: its member lives, and nobody tells the others
    wait_for "the world without node $node" 60 runs_on lab 3 $((worlds + 1))
    link $node up
    kill_member $node
  else
    kill_member $node
    wait_for "the world without node $node" 60 runs_on lab 3 $((worlds + 1))
  fi
  before=$(steps_of lab)
  wait_for "steps of three" 60 has_steps lab $((before + 2))
  start_member $node
  wait_for "the world with node $node again" 120 runs_on lab 4 $((worlds + 2))
done
touch lab/stop
wait "$elastic" && fail "it was stopped, but says that it is finished"
elastic=
last=$(steps_of lab)
each_step_once lab "$last"
echo "$((kills - links)) kills, $links links down, $kills joins, $(grep -c '"phase":"running"' lab/timeline.jsonl) worlds, $last steps"
replay lab "$last"
echo fine
