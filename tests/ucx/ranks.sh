# Sourced by the tests that run ranks over UCX: `ranks N COMMAND...` runs the command as N processes of this machine that
# have torchrun's variables and nothing else; it ends with the first status that is not 0.
set -u
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
process_ranks=$1
unset TRIREME_TOKEN TRIREME_TOKEN_FILE
export TRIREME_LOG=${TRIREME_LOG:-warn}

free_port() {
  local port
  for _ in $(seq 50); do
    port=$((20000 + RANDOM % 10000))
    (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
  echo "no free port" >&2
  exit 1
}

# as_rank R N PORT COMMAND...
as_rank() {
  local rank=$1 count=$2 port=$3
  shift 3
  RANK=$rank WORLD_SIZE=$count LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
    timeout 120 "$@"
}

ranks() {
  local count=$1 port result=0 rank processes=()
  shift
  port=$(free_port)
  for ((rank = 0; rank < count; ++rank)); do
    as_rank "$rank" "$count" "$port" "$@" &
    processes+=($!)
  done
  for rank in "${!processes[@]}"; do
    wait "${processes[$rank]}" || { local status=$?; [ "$result" != 0 ] || result=$status; }
  done
  return "$result"
}
