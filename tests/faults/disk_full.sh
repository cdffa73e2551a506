# disk_full.sh PROGRAM RECIPE: a file system with room for one checkpoint and a half.
#
# The run goes on without the checkpoints that do not fit and says so, the one that fits stays whole, and with more room
# the run ends with the bits of one that had it all the time.
set -u
source "$(dirname "$0")/../same_runs.sh"
trireme=$1 recipe=$2
if [ "${3:-}" != inside ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  alone=(unshare --mount)
  [ "$(id -u)" = 0 ] || alone=(unshare --mount --map-root-user)
  if ! "${alone[@]}" mount -t tmpfs -o size=1m none "$folder" 2>/dev/null; then
    echo "skipped: mounting a small file system is not permitted here"
    exit 77
  fi
  "${alone[@]}" bash "$0" "$trireme" "$recipe" inside "$folder"
  exit $?
fi
folder=$4
sets=(--set train.steps=40 --set train.threads=1 --set train.hash_every=10 --set checkpoint.every=10 --set batch.global_batch_tokens=512
      --set eval.every=0)
fail() { echo "$1"; shift; [ $# -eq 0 ] || cat "$@"; exit 1; }

mkdir "$folder/small"
"$trireme" --quiet train "$recipe" "${sets[@]}" --ranks 2 --out "$folder/whole" >"$folder/said" 2>&1 || fail "the run by itself failed:" "$folder/said"
bytes=$(du -sb "$folder/whole/checkpoints/step-00000040" | cut -f1)
mount -t tmpfs -o size=$((bytes * 3 / 2)) none "$folder/small" || exit 1

"$trireme" --quiet train "$recipe" "${sets[@]}" --ranks 2 --out "$folder/small/run" >"$folder/said" 2>&1
status=$?
[ $status -eq 1 ] || fail "a run without room for its last checkpoint ended with status $status:" "$folder/said"
grep -q "free some space and resume" "$folder/said" || fail "it does not say what to do:" "$folder/said"
[ "$(grep -c '"event":"checkpoint_failed"' "$folder/small/run/events.jsonl")" -ge 2 ] || fail "failures are not told:" "$folder/small/run/events.jsonl"
[ "$(wc -l <"$folder/small/run/metrics.jsonl")" -eq 40 ] || fail "the run did not go on to its end:" "$folder/said"
[ "$(ls "$folder/small/run/checkpoints")" = step-00000010 ] || fail "other checkpoints than the one that fits: $(ls "$folder/small/run/checkpoints")"
"$trireme" inspect "$folder/small/run/checkpoints/step-00000010" --verify >"$folder/said" 2>&1 || fail "it is not whole:" "$folder/said"

mount -o remount,size=$((bytes * 10)) "$folder/small" || exit 1
"$trireme" --quiet train "$recipe" "${sets[@]}" --ranks 2 --out "$folder/small/run" --resume >"$folder/said" 2>&1 || fail "with more room it does not go on:" "$folder/said"
same_runs "$trireme" "$folder/whole" "$folder/small/run" >"$folder/said" 2>&1 || fail "it is another run:" "$folder/said"
echo "fine: one checkpoint of $bytes bytes stayed, the run went on, and resumed with more room it is the same"
