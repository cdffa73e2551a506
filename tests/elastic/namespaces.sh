# namespaces.sh PROGRAM [KILLS]: an elastic world on three hosts, which are network namespaces with names and addresses of their own. Ranks
# are killed and come again, and a host is cut off while its rank lives: its heartbeat tells. Every step has the bits of its world.
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
kills=${2:-4} checkpoint_every=25  # two deaths at once of three ranks leave no whole snapshot: the run goes back to a checkpoint
source "$(dirname "$0")/../lab/hosts.sh"
source "$(dirname "$0")/run.sh" "$1"
trap 'clean_up; hosts_down' EXIT
hosts_up 3 || fail "the hosts did not come up"
hosts_reach "$folder/reach"
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >token && chmod 600 token
export TRIREME_TOKEN_FILE=$folder/token
RANDOM=${SEED:-7}
elastic_start run --host "$(host_address 254)" --hosts h1,h2,h3 --ssh "$folder/reach" --min-ranks 1 --snapshot-every 1 \
  --cooldown 100ms --cooldown-max 100ms --heartbeat 2s --reset-limit 0 -- --set train.steps=100000 --set comm.deadline=20s
wait_for "a world of three hosts" 120 runs_on run 3 1
rank_of() { ip netns pids $hosts_tag-$1 | while read -r process; do grep -qz TRIREME_MEMBER "/proc/$process/environ" 2>/dev/null &&
  [ "$(readlink "/proc/$process/exe")" = "$trireme" ] && echo "$process" && break; done || true; }
worlds() { grep -c '"phase":"running"' run/timeline.jsonl; }

# What happened so far, by the coordinator's own account: ranks that were in a world and not in the next, and the other way round.
joins() {
  grep '"phase":"running"' run/timeline.jsonl | sed -E 's/.*"members":\[([^]]*)\].*/\1/' |
    awk -F, 'NR > 1 { for (i = 1; i <= NF; ++i) if (!($i in was)) ++joins } { split("", was); for (i = 1; i <= NF; ++i) was[$i] = 1 } END { print joins + 0 }'
}

echo "== kills and joins"
# Not only while all is well: of four kills, one comes at once after another, in whatever state the world is in by then.
for ((killed = 0; killed < kills;)); do
  sleep "0.$((RANDOM % 5))"
  victim=$(rank_of "${hosts[$((RANDOM % 3))]}")
  [ -n "$victim" ] || continue
  began=$(worlds)
  kill -KILL "$victim" 2>/dev/null || continue
  note_kill
  killed=$((killed + 1))
  [ $((killed % 4)) != 3 ] || continue
  wait_for "a world of three after kill $killed" 120 runs_on run 3 $((began + 1))
  [ $((killed % 20)) != 0 ] || echo "$killed kills, $(worlds) worlds, $(steps_of run) steps"
done
wait_for "a world of three after all kills" 120 runs_on run 3 2
[ "$(joins)" -ge $((kills * 3 / 5)) ] || fail "only $(joins) ranks came again after $killed kills"
echo "== a host is cut off"
began=$(worlds) before=$(steps_of run)
host_link 2 down
echo "cut off at $(date +%s.%N)"
wait_for "a world without it" 60 runs_on run 2 $((began + 1))
wait_for "steps without it" 60 has_steps run $((before + 3))
host_link 2 up
wait_for "a world with it again" 120 runs_on run 3 $((began + 2))
touch run/stop
wait "$elastic" && fail "it was stopped, but says that it is finished"
elastic=
last=$(steps_of run)
each_step_once run "$last"
samples_once run "$last"
grep -E 'Assertion|Aborted|Segmentation' run.said && fail "a rank ended otherwise than it was killed"
echo "$killed kills, $(joins) joins, $(worlds) worlds, $last steps"
recoveries run
master=$(host_address 1)
train_world() { train_world_on_hosts "$@"; }
replay run "$last"
echo fine
