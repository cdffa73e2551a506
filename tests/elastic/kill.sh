# kill.sh PROGRAM: a rank of three is killed, the other two go on; a third joins; then the leader is killed. Every step has the bits
# of a run that had that world from that step on.
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
source "$(dirname "$0")/run.sh" "$@"

echo "== a program that is not there"
timeout 30 "$trireme" elastic --ranks 2 -- ./no-such-trireme train "$recipes/tiny.toml" --out "$folder/none" >none.said 2>&1 && fail "it ran"
grep -q '"./no-such-trireme" cannot be started on this machine' none.said || fail "that is not what was wrong"

echo "== a rank dies, another joins, the leader dies"
elastic_start run --ranks 3 --min-ranks 2 --snapshot-every 1 --cooldown 500ms --cooldown-max 500ms -- --set train.steps=120 \
  --inject "kill rank 1 at step 12" --inject "stall rank 0 at step 30 for 4s" --inject "kill rank 0 at step 60" \
  --inject "stall rank 0 at step 80 for 4s"
ended_well
each_step_once run 120
[ "$(grep -c '"phase":"running"' run/timeline.jsonl)" -ge 4 ] || fail "fewer worlds than three deaths and joins make"
grep -q '"phase":"running".*"step":11' run/timeline.jsonl || grep -q '"step":11.*"phase":"running"' run/timeline.jsonl ||
  fail "the survivors did not go on from step 11"
replay run 120 
echo fine
