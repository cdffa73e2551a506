# three.sh PROGRAM: rank 2 of four is killed at step 50, and nobody takes its place: from then on every step has the bits of a run that was
# started with three ranks from a checkpoint of step 49.
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
source "$(dirname "$0")/run.sh" "$@"
elastic_start run --ranks 4 --min-ranks 3 --snapshot-every 1 --cooldown 1h --cooldown-max 1h -- --set train.steps=70 --inject "kill rank 2 at step 50"
ended_well
each_step_once run 70
samples_once run 70
worlds=$(grep '"phase":"running"' run/timeline.jsonl | sed -E 's/.*"members":\[([^]]*)\].*/\1/' | tr -cd ',\n')
[ "$worlds" = ",,,"$'\n'",," ] || fail "these were not four ranks and then three: $(grep '"phase":"running"' run/timeline.jsonl)"
grep '"phase":"running"' run/timeline.jsonl | tail -n 1 | grep -q '"step":49' || fail "the three did not go on from step 49"
replay run 70
echo fine
