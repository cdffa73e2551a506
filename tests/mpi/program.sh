# The program as MPI ranks: started by mpirun, and starting mpirun by itself.
source "$(dirname "$0")/mpirun.sh" "$1"
set -e
trireme=$2
few=(bench comm --op all_reduce --algo auto,ring,native --bytes 1K --seconds 0.001 --json)

output=$(timeout 60 mpirun "${as_root[@]}" --oversubscribe --bind-to none -n 3 "$trireme" --quiet "${few[@]}")
grep -q '"transport": "mpi"' <<<"$output"
grep -q '"ranks": 3' <<<"$output"
grep -q '"algorithm": "native"' <<<"$output"

output=$(timeout 60 "$trireme" --quiet "${few[@]}" --transport mpi --ranks 2)
grep -q '"ranks": 2' <<<"$output"

# Asking for threads, or for another number of ranks, under mpirun is a mistake that is told.
if output=$(timeout 60 mpirun "${as_root[@]}" --oversubscribe -n 2 "$trireme" "${few[@]}" --transport threads 2>&1); then exit 1; fi
grep -q "but threads were asked for as ranks" <<<"$output"
if output=$(timeout 60 mpirun "${as_root[@]}" --oversubscribe -n 2 "$trireme" "${few[@]}" --ranks 3 2>&1); then exit 1; fi
grep -q "comm.ranks is 3, but 2 ranks were started" <<<"$output"

# SIGUSR1 writes what each rank is at, while it hangs.
cd "$(mktemp -d)"
mpi 2 hang >ready.txt 2>&1 &
wait_for() { for _ in $(seq 300); do "$@" && return; sleep 0.1; done; }
both_ready() { [ "$(grep -c ready ready.txt)" = 2 ]; }
both_written() { [ -f flight-0.json ] && [ -f flight-1.json ]; }
wait_for both_ready
mapfile -t processes < <(awk '/ready/ { print $2 }' ready.txt)
kill -USR1 "${processes[@]}"
wait_for both_written
kill -KILL "${processes[@]}"
wait || true
grep -q '"state": "pending"' flight-0.json
grep -q 'asked for by SIGUSR1' flight-1.json
echo fine
