#!/usr/bin/env bash
# jobset.sh PROGRAM REPOSITORY: the JobSets that `trireme launch --jobset` prints are valid by the published schemas, and the check
# itself finds a misspelt key. Skipped where the packages that have the schemas are missing (validate_jobset.py).
set -euo pipefail
program=$1 repository=$2 here=$(dirname "$(realpath "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
check() { "${PYTHON:-python3}" "$here/validate_jobset.py"; }
manifest() { "$program" --quiet launch "$repository/recipes/tiny.toml" --jobset --image registry/trireme:1 --claim runs --out /runs/x --dry-run "$@"; }
code=0
manifest --ranks 1 >"$folder/one"
check <"$folder/one" || code=$?
[ $code != 77 ] || exit 77
[ $code = 0 ] || exit 1
manifest --ranks 4 --nodes 2 --token-secret trireme-token --cpus-per-rank 8 --namespace "team-a" --set run.device=cuda --set "run.name=it's \"a\": run #1" \
  --env "GREETING=yes: 'no' # maybe" --restarts 3 | check
manifest --ranks 4 --nodes 2 --token-secret trireme-token >"$folder/four"
grep -q backoffLimit "$folder/four" && grep -q 'maxRestarts: 10' "$folder/four"  # else nothing would be misspelt
if sed 's/backoffLimit/backofLimit/' "$folder/four" | check; then echo "a misspelt key was not found"; exit 1; fi
if sed 's/maxRestarts: 10/maxRestarts: often/' "$folder/four" | check; then echo "a wrong type was not found"; exit 1; fi
echo fine
