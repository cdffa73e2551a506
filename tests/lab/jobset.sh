#!/usr/bin/env bash
# jobset.sh PROGRAM REPOSITORY: the JobSets that `trireme launch --jobset` prints are valid by the published schemas, and the check
# itself finds a misspelt key. Skipped where the packages that have the schemas are missing (validate_jobset.py).
set -eu
program=$1 repository=$2 here=$(dirname "$(realpath "$0")")
check() { "${PYTHON:-python3}" "$here/validate_jobset.py"; }
manifest() { "$program" --quiet launch "$repository/recipes/tiny.toml" --jobset --image registry/trireme:1 --claim runs --out /runs/x --dry-run "$@"; }
code=0
manifest --ranks 1 | check || code=$?
[ $code != 77 ] || exit 77
[ $code = 0 ] || exit 1
manifest --ranks 4 --nodes 2 --cpus-per-rank 8 --namespace "team-a" --set run.device=cuda --set "run.name=it's \"a\": run #1" \
  --env "GREETING=yes: 'no' # maybe" --restarts 3 | check
if manifest --ranks 4 --nodes 2 | sed 's/backoffLimit/backofLimit/' | check; then echo "a misspelt key was not found"; exit 1; fi
if manifest --ranks 4 --nodes 2 | sed 's/maxRestarts: 10/maxRestarts: often/' | check; then echo "a wrong type was not found"; exit 1; fi
echo fine
