# storm.sh PROGRAM KILLS: members are killed at random moments and replaced; the run finishes, counts every step once, and has the bits
# of its worlds one by one.
[ $# -gt 1 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
source "$(dirname "$0")/run.sh" "$@"
kills=$2 steps=100000
RANDOM=${SEED:-7}
elastic_start storm --ranks 3 --min-ranks 1 --snapshot-every 1 --cooldown 100ms --cooldown-max 100ms --reset-limit 0 -- --set train.steps=$steps
wait_for "the first world" 60 runs_on storm 3 1
for ((kill = 1; kill <= kills; ++kill)); do
  before=$(steps_of storm)
  sleep "0.$((RANDOM % 10))"
  victims=($(members))
  kill -KILL "${victims[$((RANDOM % ${#victims[@]}))]}" 2>/dev/null || true
  # Every third at once with another: two deaths in one epoch. The others when the run has gone on.
  [ $((kill % 3)) = 0 ] || wait_for "a step after kill $kill" 60 has_steps storm $((before + 2))
done
wait_for "a world of all" 60 runs_on storm 3 2
touch storm/stop
wait "$elastic" && fail "it was stopped, but says that it is finished"
elastic=
last=$(steps_of storm)
each_step_once storm "$last"
worlds=$(grep -c '"phase":"running"' storm/timeline.jsonl)
echo "$kills kills, $worlds worlds, $last steps"
[ "$worlds" -gt 4 ] || fail "hardly anything happened"
replay storm "$last"
echo fine
