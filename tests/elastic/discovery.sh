# discovery.sh PROGRAM: hosts come and go as a script says. Ranks of hosts that go are ended, hosts that come get ranks, a host whose
# rank dies is barred for its cooldown; every step has the bits of its world.
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
source "$(dirname "$0")/run.sh" "$@"

# Stands for ssh: the line runs here, under the host's name.
unshare --uts true 2>/dev/null || { echo "skipped: hosts cannot have names of their own here (root is needed)"; exit 77; }
cat >reach <<'END'
#!/bin/sh
exec unshare --uts sh -c "hostname $1; $2"
END
chmod +x reach
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >token && chmod 600 token
export TRIREME_TOKEN_FILE=$folder/token
address=$(hostname -I 2>/dev/null | tr ' ' '\n' | grep -m 1 -E '^[0-9.]+$' || true)
[ -n "$address" ] || { echo "skipped: this machine has no address but the loopback one"; exit 77; }
printf 'h1:1\nh2:1\n' >hosts
elastic_start run --host "$address" --host-discovery-script "cat $folder/hosts" --discovery-interval 100ms --ssh "$folder/reach" \
  --min-ranks 1 --snapshot-every 100000 --cooldown 1s --cooldown-max 1s -- --set train.steps=100000
wait_for "a world of two hosts" 120 runs_on run 2 1

echo "== a host comes"
printf 'h1:1\nh2:1\nh3:1\n' >hosts
wait_for "a world of three" 60 runs_on run 3 2
echo "== a host goes"
printf 'h1:1\nh3:1\n' >hosts
wait_for "a world of two" 60 runs_on run 2 3
# Its rank has left at the edge of a step: the others go on from there, though the last snapshot was long before.
edge=$(grep '"event":"edge"' run/timeline.jsonl | tail -n 1 | grep -oE '"step":[0-9]+')
grep '"phase":"running"' run/timeline.jsonl | tail -n 1 | grep -q "$edge[,}]" || fail "steps were lost: the last edge was at $edge"
grep -E 'member [0-9]+ on h2 .*signal' run.said && fail "the rank of the host that went was killed"
grep -q 'h2 has no place for member' run.said || fail "nobody said that h2 is gone"
before=$(steps_of run)
wait_for "a step after it" 60 has_steps run $((before + 2))
echo "== a script that fails changes nothing"
mv hosts gone
sleep 0.5
mv gone hosts
grep -q 'the hosts known before stay' run.said || fail "nobody said that the script failed"
before=$(steps_of run)
wait_for "a step after it" 60 has_steps run $((before + 2))
echo "== SIGTERM saves and ends, on all hosts"
kill -TERM "$elastic"
wait "$elastic" && fail "it was stopped, but says that it is finished"
elastic=
pgrep -f "$folder/run" >/dev/null && fail "a rank outlived its run"
last=$(steps_of run)
each_step_once run "$last"
master=$address
train_world() { train_world_on_hosts "$@"; }
replay run "$last"
echo fine
