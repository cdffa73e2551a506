#!/usr/bin/env bash
# Runs for real what searches find: for each model and method a strategy or plan for four devices of the published size,
# taken over to the model's small sibling, on four ranks in fp64, beside the whole graph under autograd.
#
#   bench/found_strategies.sh [build/release/trireme] [MODEL ...]
#
# Says of each whether it is more than data parallelism, whether it has halos, and the largest difference of a gradient.
# Ends with 1 where one differs, or where a model has fewer than three that are more than data parallelism.
set -euo pipefail
trireme=${1:-build/release/trireme}
shift || true
models=("$@")
[ ${#models[@]} -gt 0 ] || models=(alexnet vgg16 resnet50 inception-v3 lstm gpt)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0 halos=0
for model in "${models[@]}"; do
  case $model in
    lstm) batch=4 ;;
    *) batch=2 ;;  # fewer samples than devices: images, heads and channels are split
  esac
  "$trireme" search --graph "$model" --cluster dgx2-v100 --gpus 4 --batch $batch --method data-parallel -o "$folder/dp" > /dev/null
  more=0
  for method in optcnn flexflow tofu alpa-intra alpa rannc galvatron pipedream torchgpipe; do
    plan=$folder/$model.$method
    "$trireme" search --graph "$model" --cluster dgx2-v100 --gpus 4 --batch $batch --method $method -o "$plan" > /dev/null
    [ -s "$plan" ] || { echo "found_strategies.sh: $method of $model wrote no plan" >&2; exit 1; }
    what="more than data parallel"
    if cmp -s "$plan" "$folder/dp"; then what="data parallel"; else more=$((more + 1)); fi
    if "$trireme" graph check "$model" --batch $batch --plan "$plan" | grep -q 'halo exchange'; then
      what="$what, halos"
      halos=$((halos + 1))
    fi
    if result=$("$trireme" graph run "$model" --small --batch $batch --plan "$plan" --dtype fp64 --verify 2>&1); then
      printf '%-13s %-10s %s, %s\n' "$model" "$method" "$(grep -o 'largest difference.*' <<< "$result")" "$what"
    else
      printf '%-13s %-10s FAILED: %s\n' "$model" "$method" "$(tail -n 1 <<< "$result")"
      failed=$((failed + 1))
    fi
  done
  if [ $more -lt 3 ]; then
    echo "$model: only $more are more than data parallel"
    failed=$((failed + 1))
  fi
done
echo "$failed failed; $halos with halos"
[ $failed -eq 0 ] && [ $halos -gt 0 ]
