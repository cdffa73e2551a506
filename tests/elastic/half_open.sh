# half_open.sh PROGRAM: connections that are half open are found by heartbeat. Of three hosts (network namespaces) one is unplugged while
# its rank lives and nobody closes anything: once while ranks send to each other all the time, once while all wait for one that stalls and
# nothing is on its way. The others go on, and those that were cut off do not count a step.
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
source "$(dirname "$0")/../lab/hosts.sh"
source "$(dirname "$0")/run.sh" "$1"
trap 'clean_up; hosts_down' EXIT
hosts_up 3 || fail "the hosts did not come up"
hosts_reach "$folder/reach"
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >token && chmod 600 token
export TRIREME_TOKEN_FILE=$folder/token
seconds_heard() { sed -nE 's/.*"phase":"agreeing".*nothing was heard from it for ([0-9.]+) s.*/\1/p' "$1/timeline.jsonl"; }
start() { # NAME INJECTIONS...
  local name=$1
  shift
  elastic_start "$name" --host "$(host_address 254)" --hosts h1,h2,h3 --ssh "$folder/reach" --min-ranks 2 --snapshot-every 1 --cooldown 1h \
    --cooldown-max 1h --heartbeat 2s -- --set train.steps=100000 --set comm.deadline=60s "$@"
  wait_for "a world of three hosts" 120 runs_on "$name" 3 1
}
check() { # NAME CUT: the world without that host, and how its loss was found
  wait_for "a world without the host" 60 runs_on "$1" 2 2
  wait_for "steps without it" 60 has_steps "$1" $(($(steps_of "$1") + 3))
  grep '"phase":"agreeing"' "$1/timeline.jsonl" | grep -q 'nothing was heard from it for' ||
    fail "it was not found by its heartbeat: $(grep '"phase":"agreeing"' "$1/timeline.jsonl")"
  touch "$1/stop"
  wait "$elastic" && fail "it was stopped, but says that it is finished"
  elastic=
  each_step_once "$1" "$(steps_of "$1")"
  samples_once "$1" "$(steps_of "$1")"
}

echo "== while ranks send"
start busy
wait_for "some steps" 60 has_steps busy 20
host_link 3 down
check busy
host_link 3 up

echo "== while nothing is on its way"
start idle --inject "stall rank 0 at step 20 for 12s"
wait_for "the stall" 60 has_steps idle 19
sleep 1
before=$(steps_of idle)
host_link 3 down
wait_for "the verdict" 10 grep -q '"phase":"agreeing"' idle/timeline.jsonl
[ "$(steps_of idle)" = "$before" ] || fail "ranks went on: the stall is not what was tested"
check idle
echo fine
