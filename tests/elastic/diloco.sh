# diloco.sh PROGRAM: DiLoCo's workers drop out and join. One of three dies in the midst of an interval, the other two go on; a third joins,
# with the weights of the last round and without moments, and says so. Every step has the bits of a run that had that world from that step on.
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
source "$(dirname "$0")/run.sh" "$@"

echo "== a worker drops out, another joins"
compress=(--set compress.kind=diloco --set compress.interval=5)
elastic_start run --ranks 3 --min-ranks 2 --snapshot-every 1 --cooldown 500ms --cooldown-max 500ms -- --set train.steps=60 "${compress[@]}" \
  --inject "kill rank 1 at step 12" --inject "stall rank 0 at step 23 for 4s"
ended_well
each_step_once run 60
[ "$(grep -c '"phase":"running"' run/timeline.jsonl)" -ge 3 ] || fail "fewer worlds than a death and a join make"
grep -q 'DiLoCo: 1 of 3 copies are new' run.said || fail "nobody said that a worker is new"
replay run 60 "${compress[@]}"
echo fine
