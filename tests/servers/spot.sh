# spot.sh PROGRAM [EVICTIONS]: machines as processes, of which all spot ones are killed at once, again and again; every clock was committed
# once and the weights are those of one machine, bit for bit. By hand with 20: tests/servers/spot.sh build/release/trireme 20
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
set -euo pipefail
program=$1 evictions=${2:-2}
output=$(timeout 240 "$program" ps spot --evictions "$evictions" --reliable 2 --spot 4 --every 3 --seed 7)
echo "$output"
grep -qx "every clock was committed once, in order" <<<"$output"
grep -qx "weights equal, bit for bit, those of one machine" <<<"$output"
grep -q " $((4 * evictions)) spot machines killed (SIGKILL) in $evictions evictions" <<<"$output"
echo fine
