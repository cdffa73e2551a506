# Sourced by tests that compare runs: `same_runs PROGRAM RUN OTHER` holds only of two whole runs with the same bits.
#
# `trireme diff` compares the steps that both have, so that a run can be held against a longer one. Here both must have the
# same last step and hashes of it: a run that ended early, or two that wrote no hashes, would be equal as far as they go.

# last_number FILE KEY: the KEY of the file's last line; status 1 where the file is not there, is empty, or has none.
last_number() { tail -n 1 "$1" 2>/dev/null | grep -oE "\"$2\":-?[0-9.]+(e[-+]?[0-9]+)?" | cut -d: -f2 | grep .; }

same_runs() {
  local program=$1 run file one other
  shift
  for run in "$1" "$2"; do
    for file in metrics.jsonl hashes.jsonl; do [ -s "$run/$file" ] || { echo "$run has no $file, or an empty one"; return 1; }; done
  done
  for file in metrics.jsonl hashes.jsonl; do
    one=$(last_number "$1/$file" step) && other=$(last_number "$2/$file" step) || { echo "a last line of $file names no step"; return 1; }
    [ "$one" = "$other" ] || { echo "$file ends at step $one in $1 and at step $other in $2"; return 1; }
  done
  "$program" diff "$1" "$2"
}
