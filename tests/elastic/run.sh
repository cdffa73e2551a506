# Sourced by tests of elastic runs: elastic_start NAME OPTIONS... -- SETTINGS... starts one in the background; the rest looks at it.
set -eu
trireme=$(realpath "$1") recipes=$(realpath "$(dirname "$0")/../../recipes")
source "$(dirname "$0")/../same_runs.sh"
export TRIREME_LOG=${TRIREME_LOG:-info}
unset TRIREME_TOKEN TRIREME_TOKEN_FILE TRIREME_ELASTIC TRIREME_MEMBER
folder=$(mktemp -d)
cd "$folder"
elastic=
clean_up() {
  [ -z "$elastic" ] || kill -KILL "$elastic" 2>/dev/null || true
  for process in $(members 2>/dev/null); do kill -KILL "$process" 2>/dev/null || true; done
  cd / && rm -rf "$folder"
}
trap clean_up EXIT
fail() { echo "FAILED: $*"; tail -n 60 "$folder"/*.said; exit 1; }

# Few threads and small batches: what is tested is who computes, not how fast.
sets=(--set train.threads=1 --set train.hash_every=1 --set eval.every=0 --set batch.global_batch_tokens=768 --set checkpoint.every=${checkpoint_every:-1000})

elastic_start() {
  local name=$1 options=()
  shift
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  "$trireme" elastic --join-file "$folder/$name.join" "${options[@]}" -- "$trireme" train "$recipes/tiny.toml" --out "$folder/$name" "${sets[@]}" "$@" \
    >"$name.said" 2>&1 &
  elastic=$!
}
# Processes of the members that it has started.
members() { [ -z "$elastic" ] || pgrep -P "$elastic" || true; }
steps_of() { wc -l <"$folder/$1/metrics.jsonl" 2>/dev/null || echo 0; }
wait_for() { # WHAT SECONDS COMMAND...
  local what=$1 until=$((SECONDS + $2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$until" ] || fail "$what did not happen"
    kill -0 "$elastic" 2>/dev/null || "$@" >/dev/null 2>&1 || fail "$what did not happen: trireme elastic has ended"
    sleep 0.05
  done
}
has_steps() { [ "$(steps_of "$1")" -ge "$2" ]; }
runs_on() { # NAME RANKS EPOCHS: at least so many epochs have begun, and the last one has so many ranks
  local epochs ranks
  epochs=$(grep -c '"phase":"running"' "$folder/$1/timeline.jsonl") && [ "$epochs" -ge "$3" ] || return 1
  ranks=$(grep '"phase":"running"' "$folder/$1/timeline.jsonl" | tail -n 1 | grep -o '"members":\[[^]]*\]' | tr -cd , | wc -c)
  [ $((ranks + 1)) = "$2" ]
}
# train_world RANKS RUN SETTINGS...: a run of so many ranks goes on; on this host, unless a test says otherwise. Where the elastic run's ranks
# are on several hosts, so must be those of its replay: ranks of one host add up in another order.
train_world() {
  local ranks=$1 run=$2
  shift 2
  "$trireme" --quiet train "$recipes/tiny.toml" --out "$run" --resume --elastic --ranks "$ranks" --set comm.transport=ucx "$@"
}
# With hosts h1, h2, ... that ./reach HOST LINE reaches, in place of the above.
train_world_on_hosts() {
  local ranks=$1 run=$2 hosts
  shift 2
  hosts=$(seq -s, -f 'h%g' "$ranks")
  printf '#!/bin/sh\nexec "%s" "$@" --elastic\n' "$trireme" >"$folder/train" && chmod +x "$folder/train"
  "$trireme" launch "$recipes/tiny.toml" --hosts "$hosts" --ranks "$ranks" --ssh "$folder/reach" --program "$folder/train" --out "$run" \
    --master-addr "$master" --resume "$@"
}
# replay NAME STEPS SETTINGS...: the same worlds one after the other, each a run of its own that is started from a checkpoint of the
# step at which the elastic one's began. Then both must have the same losses and hashes at every step.
replay() {
  local name=$1 steps=$2 begins=() ranks=() i end
  shift 2
  while read -r begin count; do
    # What a world computed beyond the step that a later one went back to is gone.
    while [ ${#begins[@]} -gt 0 ] && [ "${begins[-1]}" -ge "$begin" ]; do unset 'begins[-1]' 'ranks[-1]'; done
    begins+=("$begin") ranks+=("$count")
  done < <(grep '"phase":"running"' "$folder/$name/timeline.jsonl" |
    sed -E 's/.*"members":\[([^]]*)\].*"step":(-?[0-9]+).*/\2 \1/; t; s/.*"step":(-?[0-9]+).*"members":\[([^]]*)\].*/\1 \2/' |
    while read -r begin list; do echo "$begin $(($(tr -cd , <<<"$list" | wc -c) + 1))"; done)
  begins+=("$steps")
  for i in "${!ranks[@]}"; do
    end=${begins[$((i + 1))]}
    echo "world $((i + 1)): ${ranks[$i]} ranks, steps ${begins[$i]} to $end"
    [ "$end" -gt "${begins[$i]}" ] || continue
    train_world "${ranks[$i]}" "$folder/$name-replay" "${sets[@]}" "$@" --set train.steps="$end" >"$name-replay.said" 2>&1 ||
      fail "world $((i + 1)) of the replay"
  done
  same_runs "$trireme" "$folder/$name-replay" "$folder/$name" || fail "$name is not the same as its worlds one by one"
}
# The time now, for the list of kills that recoveries() reads.
note_kill() { date +%s.%N >>"$folder/kills"; }
# figures WHAT: median and longest of the numbers that come in.
figures() { sort -g | awk -v what="$1" '{t[NR] = $1} END {if (NR) printf "%-12s median %.3f s, longest %.3f s, of %d\n", what, t[int((NR + 1) / 2)], t[NR], NR}'; }
# recoveries NAME: from a kill until the coordinator knows, where a world was running; from the last of some kills until the next world's
# first step is over. The median of the latter is at most 3 s.
recoveries() {
  local file=$folder/$1/timeline.jsonl stamp='s/.*"time":([0-9.]+).*/\1/'
  { sed 's/$/ kill/' "$folder/kills"
    grep '"phase":"agreeing"' "$file" | sed -E "$stamp; s/\$/ agreeing/"
    grep '"phase":"running"' "$file" | sed -E "$stamp; s/\$/ running/"
    grep '"event":"first_step"' "$file" | sed -E "$stamp; s/\$/ stepped/"; } | sort -g |
    awk '$2 == "kill" { killed = $1; if (runs) unknown = $1; next }
      $2 == "agreeing" { if (unknown) print "detecting", $1 - unknown; unknown = 0; runs = 0 }
      $2 == "running" { runs = 1 }
      $2 == "stepped" { if (killed && runs) print "recovery", $1 - killed; killed = 0 }' >"$folder/recoveries"
  sed -n 's/^detecting //p' "$folder/recoveries" | figures detecting
  phases "$1"
  sed -nE 's/.*"event":"first_step".*"seconds":([0-9.e-]+).*/\1/p' "$file" | figures "warming up"
  sed -n 's/^recovery //p' "$folder/recoveries" | figures "all of it"
  sed -n 's/^recovery //p' "$folder/recoveries" | sort -g | awk '{t[NR] = $1} END {exit !(NR > 0 && t[int((NR + 1) / 2)] <= 3)}' ||
    fail "a recovery takes longer than 3 s"
}
# phases NAME: how long it took from a lost rank to the next world's first step, phase by phase, as the coordinator tells.
phases() {
  local phase next
  while read -r phase next; do
    sed -nE 's/.*"phase":"'"$next"'".*"before_s":([0-9.e-]+),.*/\1/p' "$folder/$1/timeline.jsonl" | sed 1d | figures "$phase"
  done <<<'agreeing replanning
replanning moving
moving running'
}
# each_step_once NAME STEPS
each_step_once() {
  diff <(seq "$2") <(grep -oE '"step":[0-9]+' "$folder/$1/metrics.jsonl" | cut -d: -f2) >/dev/null || fail "$1 did not count every step once"
}
# samples_once NAME STEPS: the tokens that each step has seen so far are those of that many whole batches, neither fewer nor more.
samples_once() {
  grep -oE '"tokens":[0-9]+' "$folder/$1/metrics.jsonl" | cut -d: -f2 |
    awk -v steps="$2" 'NR == 1 { batch = $1 } $1 != NR * batch { exit 1 } END { exit !(NR == steps && batch > 0) }' ||
    fail "$1 did not count every sample once"
}
ended_well() { wait "$elastic" || fail "trireme elastic ended with $?"; elastic=; }
