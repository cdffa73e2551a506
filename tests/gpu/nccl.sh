# nccl.sh BUILD [speed]: ranks that are processes on this machine's GPUs, over NCCL; several may share one. With `speed`: how long calls take.
set -u
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
recipe=$root/recipes/verify-tiny.toml
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
as_root=()
[ "$(id -u)" = 0 ] && as_root=(--allow-run-as-root)
failures=0

ranks() {
  local count=$1
  shift
  timeout 300 mpirun "${as_root[@]}" --oversubscribe --bind-to none -n "$count" "$@"
}
# succeeds NAME COMMAND...: it ends well.
succeeds() {
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$folder/said" 2>&1; then
    echo "ok      $name ($((SECONDS - start)) s)"
  else
    echo "FAILED  $name ($((SECONDS - start)) s)"
    cat "$folder/said"
    failures=$((failures + 1))
  fi
}
# fails NAME SECONDS PATTERN COMMAND...: it ends with an error, in time, that says PATTERN.
fails() {
  local name=$1 seconds=$2 pattern=$3 start=$SECONDS status
  shift 3
  "$@" >"$folder/said" 2>&1
  status=$?
  if [ "$status" != 0 ] && [ "$status" != 124 ] && ((SECONDS - start <= seconds)) && grep -Eq "$pattern" "$folder/said"; then
    echo "ok      $name ($((SECONDS - start)) s)"
  else
    echo "FAILED  $name: status $status after $((SECONDS - start)) s, expected '$pattern'"
    cat "$folder/said"
    failures=$((failures + 1))
  fi
}

if [ "${2:-}" = speed ]; then
  for count in 2 4; do ranks "$count" "$build/bin/gpu_ranks" speed; done
  exit
fi

for count in 2 4; do
  for what in collectives streams graphs; do succeeds "$what on $count ranks" ranks "$count" "$build/bin/gpu_ranks" "$what"; done
done
fails "calls that differ" 60 "do not agree on call number [0-9]+ of group .world.: rank . called all_reduce of [56]00 x f32" ranks 2 "$build/bin/gpu_ranks" mismatch
fails "a GPU that is late" 60 "passed its deadline of 2 s .*although the GPU was given it.*rank 1 had not begun it" \
  ranks 2 "$build/bin/gpu_ranks" late
fails "a rank that is killed" 60 "cannot be completed: rank 1 is lost" ranks 2 "$build/bin/gpu_ranks" killed

# Layouts of processes beside one rank, in double.
verify() {
  local count=$1
  shift
  local sets=()
  for set in "$@"; do sets+=(--set "$set"); done
  succeeds "verify $* on $count ranks" ranks "$count" "$build/trireme" --quiet verify "$recipe" --set run.device=cuda \
    --set precision.compute=fp64 --steps "${steps:-3}" "${sets[@]}"
}
verify 2
verify 2 layout.tp=2
verify 2 layout.tp=2 layout.sequence_parallel=true
verify 2 layout.pp=2
verify 2 layout.zero=1
verify 2 layout.zero=3
verify 2 layout.cp=2 layout.cp_kind=ring
verify 4 layout.pp=2 layout.tp=2
verify 4 layout.tp=2 layout.zero=2
# CUDA graphs with the gradient reduction inside: the third step captures, later ones replay. Two micro-batches a rank.
steps=6 verify 2 train.cuda_graphs=true
steps=6 verify 4 train.cuda_graphs=true layout.bucket_mb=0.001
steps=6 verify 2 train.cuda_graphs=true layout.zero=1
steps=6 verify 4 train.cuda_graphs=true layout.zero=1 layout.bucket_mb=0.001
steps=6 verify 4 train.cuda_graphs=true layout.zero=1 layout.zero_group=2
# Tensor-parallel ranks communicate in every micro-batch; beside data parallelism, collectives of two groups are in one graph.
steps=6 verify 2 train.cuda_graphs=true layout.tp=2
steps=6 verify 2 train.cuda_graphs=true layout.tp=2 layout.sequence_parallel=true
steps=6 verify 4 train.cuda_graphs=true layout.tp=2 layout.bucket_mb=0.001
steps=6 verify 4 train.cuda_graphs=true layout.tp=2 layout.sequence_parallel=true layout.zero=1 layout.bucket_mb=0.001
succeeds "train on 2 ranks" ranks 2 "$build/trireme" --quiet train "$root/recipes/tiny.toml" --set run.device=cuda \
  --set train.steps=20 --set batch.global_batch_tokens=512 --set train.gemm_autotune=false --out "$folder/run"
succeeds "train on 2 ranks, CUDA graphs" ranks 2 "$build/trireme" --quiet train "$root/recipes/tiny.toml" --set run.device=cuda \
  --set train.steps=20 --set batch.global_batch_tokens=512 --set train.gemm_autotune=false --set train.cuda_graphs=true --out "$folder/graphs"
# losses RUN: the losses of a run's steps, one a line.
losses() { grep -o '"loss":[0-9.e-]*' "$folder/$1/metrics.jsonl"; }
# equal_losses STEPS ONE OTHER: both runs are there with so many losses, and they are the same.
equal_losses() {
  local steps=$1 one other
  one=$(losses "$2") && other=$(losses "$3") || { echo "a run has no losses"; return 1; }
  [ "$(wc -l <<<"$one")" = "$steps" ] && [ "$(wc -l <<<"$other")" = "$steps" ] || {
    echo "expected $steps losses of each, but $2 has $(wc -l <<<"$one") and $3 $(wc -l <<<"$other")"
    return 1
  }
  diff <(echo "$one") <(echo "$other")
}
succeeds "CUDA graphs give the losses of steps without" equal_losses 20 run graphs
# Ranks agree on FP8 scales after each step, with CUDA graphs or without.
for capture in false true; do
  succeeds "train on 2 ranks, delayed FP8 scaling, train.cuda_graphs=$capture" ranks 2 "$build/trireme" --quiet train "$recipe" --set run.device=cuda \
    --set precision.compute=bf16 --set precision.gemm=fp8-delayed --set precision.fp8_history=3 --set train.steps=10 \
    --set train.gemm_autotune=false --set train.cuda_graphs=$capture --out "$folder/scales-$capture"
done
succeeds "CUDA graphs give the same delayed scales" equal_losses 10 scales-false scales-true
[ "$failures" = 0 ] && echo "all fine"
exit "$failures"
