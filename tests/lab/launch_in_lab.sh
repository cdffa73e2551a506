# launch_in_lab.sh PROGRAM REPOSITORY TRAINER: what launch.sh runs on the controller of its cluster.
set -u
program=$1 repository=$2 trainer=$3
runs=/var/tmp/lab-runs
rm -rf $runs && mkdir -p $runs && cd $runs
cp -r "$repository/recipes" .
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fail() { echo "FAILED: $*"; tail -n 15 $runs/*/slurm-*.out 2>/dev/null; exit 1; }
sets=(--set train.steps=120 --set train.threads=1 --set train.hash_every=20 --set checkpoint.every=50 --set eval.every=0 --set checkpoint.grace=20s)
short=(--set train.steps=4 --set eval.every=0 --set train.threads=1 --set checkpoint.grace=20s)
last_hash() { grep -o '"hash":"[^"]*"' "$1/metrics.jsonl" | tail -n 1; }
same_end() {  # the runs' last hash, and the number of steps they have told of
  [ -n "$(last_hash "$1")" ] && [ "$(last_hash "$1")" = "$(last_hash "$2")" ] ||
    fail "$2 ended with $(last_hash "$2"), $1 with $(last_hash "$1")"
}
submit() { "$program" launch recipes/tiny.toml --slurm --program "$trainer" --time 10m --signal 30s --cpus-per-rank 1 "$@" | tee submitted |
  grep -oE '[0-9]+$' || fail "nothing was submitted: $(cat submitted)"; }
state() { scontrol show job -o "$1" 2>/dev/null | grep -oE 'JobState=[A-Z]+' | head -n 1 | cut -d= -f2; }
finish() {  # a requeued job need not wait for its turn; while it is requeued it may look as if it had failed
  local failures=0
  for _ in $(seq 600); do
    case $(state "$1") in
      COMPLETED) return 0 ;;
      FAILED | NODE_FAIL) failures=$((failures + 1)); [ $failures -lt 150 ] || fail "job $1 has failed" ;;
      TIMEOUT | CANCELLED | OUT_OF_MEMORY) fail "job $1 is $(state "$1")" ;;
      # Not within the second in which it was killed: slurmd takes the new start for the revoked one, and the job fails for good.
      PENDING) sleep 2; scontrol update jobid="$1" StartTime=now 2>/dev/null ;;
    esac
    sleep 0.2
  done
  fail "job $1 did not finish: $(state "$1")"
}
wait_for_step() {
  for _ in $(seq 300); do
    [ "$(wc -l 2>/dev/null <"$1/metrics.jsonl" || echo 0)" -ge "$2" ] && return 0
    sleep 0.1
  done
  fail "$1 never reached step $2"
}

"$trainer" --quiet train recipes/tiny.toml "${sets[@]}" --ranks 1 --out one || fail "the undisturbed run"
"$trainer" --quiet train recipes/tiny.toml "${sets[@]}" --ranks 2 --out two || fail "the undisturbed run of two ranks"

echo "== two ranks on two nodes"
job=$(submit "${sets[@]}" --ranks 2 --nodes 2 --out slurm-two)
finish "$job"
grep -h 'after it was submitted' slurm-two/slurm-*.out || fail "no queue time was told"
same_end two slurm-two

echo "== two ranks on two nodes without PMIx: over UCX"
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >token && chmod 600 token
job=$(TRIREME_TOKEN_FILE=$runs/token submit "${sets[@]}" --ranks 2 --nodes 2 --mpi none --out slurm-ucx)
finish "$job"
same_end two slurm-ucx

echo "== signalled and requeued"
job=$(submit "${sets[@]}" --ranks 1 --out signalled)
wait_for_step signalled 30
scancel --batch --signal=USR1 "$job"
finish "$job"
grep -h 'saved, and requeued' signalled/slurm-"$job".out || fail "it was not requeued"
grep -qh 'restart 1' signalled/slurm-"$job".out || fail "it was not started again"
same_end one signalled

echo "== preempted"
job=$(submit "${sets[@]}" --ranks 1 --out preempted --partition low --sbatch exclusive)
wait_for_step preempted 30
srun --quiet -p main -N4 --exclusive true || fail "srun"
finish "$job"
grep -qh 'restart 1' preempted/slurm-"$job".out || fail "it was not preempted"
same_end one preempted

echo "== a sweep"
job=$(submit "${short[@]}" --sweep optim.learning_rate=1e-3,3e-3 --sweep run.seed=1,2 --ranks 1 --out sweep)
for i in 0 1 2 3; do
  for _ in $(seq 300); do [ "$(wc -l 2>/dev/null <sweep/$i/metrics.jsonl || echo 0)" -ge 4 ] && break; sleep 0.2; done
  [ "$(wc -l <sweep/$i/metrics.jsonl)" -ge 4 ] || fail "run $i of the sweep"
done
grep -q 'learning_rate = 0.003' sweep/2/recipe.toml || grep -q 'learning_rate = 3e-0*3' sweep/2/recipe.toml || fail "run 2 has another rate"

echo "== odd names"
job=$(submit "${short[@]}" --set "run.name=it's \"a\" run" --ranks 1 --out "odd 'run' \"name\"")
finish "$job"
[ -e "odd 'run' \"name\"/slurm-$job.out" ] || fail "the output of an odd name is not where it belongs"

echo "== hosts"
printf '#!/bin/sh\nexec nsenter --target $(cat $LAB/node${1#n}) --net --mount --uts --root sh -c "$2"\n' >reach && chmod +x reach
"$program" launch recipes/tiny.toml --hosts n3 --ssh "$runs/reach" --program "$trainer" "${sets[@]}" --out on-n3 >said 2>&1 || fail "$(cat said)"
grep -q '^\[rank 0\] finished 120 steps' said || fail "$(cat said)"
same_end one on-n3
TRIREME_TOKEN_FILE=$runs/token "$program" launch recipes/tiny.toml --hosts n3,n4 --ranks 2 --ssh "$runs/reach" --program "$trainer" "${sets[@]}" \
  --out on-two >said 2>&1 || fail "$(cat said)"
same_end two on-two  # over UCX
"$program" launch recipes/tiny.toml --hosts n3,n4 --ranks 2 --ssh "$runs/reach" --program /bin/false --out none >said 2>&1 && fail "false succeeded"
grep -qE 'rank [01] on n[34] ended with status 1' said || fail "who failed was not told: $(cat said)"

echo "== a node dies at step 20"
job=$(submit "${sets[@]}" --set checkpoint.every=10 --ranks 2 --nodes 2 --out node-died)
wait_for_step node-died 20
on=$(squeue -h -j "$job" -o %N) && victim=$(scontrol show hostnames "$on" | tail -n 1)
network=$(readlink "/proc/$(cat "$LAB/node${victim#n}")/ns/net")
for process in /proc/[0-9]*; do  # all that runs on it, at once
  [ "$(readlink "$process/ns/net" 2>/dev/null)" != "$network" ] || kill -KILL "${process#/proc/}" 2>/dev/null
done
scontrol update nodename="$victim" state=down reason=dead || fail "scontrol"
finish "$job"
grep -qh 'restart 1' node-died/slurm-"$job".out || fail "it was not requeued"
scontrol show job -o "$job" | grep -oE ' NodeList=[^ ]*' | grep -q "$victim" && fail "it ran on $victim again"
echo "it ran on $on, and without $victim on $(scontrol show job -o "$job" | grep -oE ' NodeList=[^ ]*' | cut -d= -f2)"
same_end two node-died
echo fine
