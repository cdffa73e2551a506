# graphs_nccl.sh BUILD: operator graphs with a strategy on ranks that are processes on this machine's GPUs, over NCCL; several
# may share one. Every loss, every gradient and every collective beside the whole graph on a CPU.
set -u
build=$(cd "$1" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
as_root=()
[ "$(id -u)" = 0 ] && as_root=(--allow-run-as-root)
failures=0

# ranks N COMMAND...: under mpirun; where there is none, processes by hand, which meet over UCX.
port=29640
ranks() {
  local count=$1 rank status=0 started=()
  shift
  if command -v mpirun >/dev/null; then
    timeout 300 mpirun "${as_root[@]}" --oversubscribe --bind-to none -n "$count" "$@"
    return
  fi
  port=$((port + 1))
  for ((rank = 0; rank < count; ++rank)); do
    RANK=$rank WORLD_SIZE=$count LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 300 "$@" &
    started+=($!)
  done
  for one in "${started[@]}"; do wait "$one" || status=$?; done
  return "$status"
}
# verified NAME RANKS GRAPH ARGUMENTS...
verified() {
  local name=$1 count=$2 start=$SECONDS
  shift 2
  if ranks "$count" "$build/trireme" --quiet graph run "$@" --small --device cuda --dtype fp64 --verify >"$folder/said" 2>&1; then
    echo "ok      $name ($((SECONDS - start)) s): $(grep -i -m 1 'gradient' "$folder/said")"
  else
    echo "FAILED  $name ($((SECONDS - start)) s)"
    cat "$folder/said"
    failures=$((failures + 1))
  fi
}

verified "GPT, data and tensor parallel" 4 gpt --mesh dp=2,tp=2 --layout n:dp,heads:tp,ffn:tp --steps 2
verified "VGG-16, height and width with halos" 4 vgg16 --mesh a=2,b=2 --layout h64:a,w64:b
verified "ResNet-50, batch norm over two ranks" 2 resnet50 --mesh dp=2 --layout n:dp
verified "LSTM, data and vocabulary" 4 lstm --mesh dp=2,tp=2 --layout n:dp,vocab:tp --steps 2
verified "experts, GShard's annotations" 2 moe --mesh a=2 --annotate "hidden groups:a; layer0.experts.up experts:a" --steps 2
verified "AlexNet, random strategies" 2 alexnet --mesh a=2 --random 3
[ "$failures" = 0 ] && echo "all fine"
exit "$failures"
