# hosts.sh PROGRAM [KILLS]: parameter servers on three hosts (network namespaces with links of 1 Gbit/s), killed there one after the other
# while a worker pushes from outside; the last tenth are frozen instead. Two copies: no acknowledged push is lost, the weights are
# those of as many serial steps, bit for bit.
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
set -u
trireme=$(realpath "$1") kills=${2:-3}
source "$(dirname "$(realpath "$0")")/../lab/hosts.sh"
folder=$(mktemp -d)
trap 'hosts_down; rm -rf "$folder"' EXIT
fail() { echo "FAILED: $*"; cat "$folder/said"; exit 1; }
hosts_up 3 1gbit || fail "the hosts did not come up"
hosts_reach "$folder/reach"
(umask 077; head -c 32 /dev/urandom | base64 >"$folder/token")
unset TRIREME_TOKEN
export TRIREME_TOKEN_FILE=$folder/token TRIREME_LOG=warn
frozen=$(((kills + 9) / 10))
timeout 290 "$trireme" ps drill --kills "$kills" --frozen "$frozen" --heartbeat 3 --servers 3 --copies 2 --seed 7 \
  --host "$(host_address 254)" --hosts h1,h2,h3 --ssh "$folder/reach" >"$folder/said" 2>&1 || fail "the drill ended with $?"
tail -n 5 "$folder/said"
grep -q "^weights equal, bit for bit, those of [0-9]* serial steps$" "$folder/said" || fail "the weights differ"
[ "$(grep -c '^kill ' "$folder/said")" = "$kills" ] || fail "these were not $kills kills"
echo fine
