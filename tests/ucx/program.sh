# The program as ranks over UCX: with a launcher's variables, and starting its ranks by itself.
source "$(dirname "$0")/ranks.sh" "$@"
set -e
trireme=$2
few=(bench comm --op all_reduce --algo auto,ring --bytes 1K --seconds 0.001 --json)

output=$(ranks 3 "$trireme" --quiet "${few[@]}")
grep -q '"transport": "ucx"' <<<"$output"
grep -q '"ranks": 3' <<<"$output"

output=$(timeout 60 "$trireme" --quiet "${few[@]}" --transport ucx --ranks 2)
grep -q '"transport": "ucx"' <<<"$output"
grep -q '"ranks": 2' <<<"$output"

# By name, by network, and by a name that there is not.
timeout 60 "$trireme" --quiet "${few[@]}" --transport ucx --ranks 2 --ranks-per-node 1 --set comm.interface=lo >/dev/null
timeout 60 "$trireme" --quiet "${few[@]}" --transport ucx --ranks 2 --ranks-per-node 1 --set comm.interface=127.0.0.0/8 >/dev/null
if output=$(timeout 60 "$trireme" --quiet "${few[@]}" --transport ucx --ranks 2 --set comm.interface=eth77 2>&1); then exit 1; fi
grep -q 'no network interface of this machine is meant by "eth77"' <<<"$output"
grep -q 'lo (127.0.0.1' <<<"$output"

# Ranks with different recipes are named; threads beside a launcher's variables are a mistake that is told.
if output=$(ranks 2 bash -c 'exec "$0" --quiet bench comm --op all_reduce --bytes 1K --seconds 0.001 --set comm.segment=$((1024 + RANK * 1024))' \
  "$trireme" 2>&1); then exit 1; fi
grep -q "has another recipe" <<<"$output"
if output=$(ranks 2 "$trireme" "${few[@]}" --transport threads 2>&1); then exit 1; fi
grep -q "but threads were asked for as ranks" <<<"$output"
echo fine
