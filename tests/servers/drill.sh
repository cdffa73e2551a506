# drill.sh PROGRAM [KILLS]: server processes are killed under load, each time one of three with two copies, and the last of them frozen
# instead (SIGSTOP), which only its heartbeat tells; the weights are those of as many serial steps, bit for bit. By hand with 50:
# tests/servers/drill.sh build/release/trireme 50
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
set -euo pipefail
program=$1 kills=${2:-4}
output=$(timeout 280 "$program" ps drill --kills "$kills" --frozen 1 --heartbeat 3 --servers 3 --copies 2 --seed 7)
echo "$output"
grep -q "^weights equal, bit for bit, those of [0-9]* serial steps$" <<<"$output"
[ "$(grep -c '^kill ' <<<"$output")" -eq "$kills" ]
grep -q "^kill $kills: server [0-9]* froze" <<<"$output"
echo fine
