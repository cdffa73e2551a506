# ray.sh PROGRAM REPOSITORY: examples/ray_launch.py on a Ray cluster of two hosts (network namespaces), really run: two ranks on two hosts
# have the bits of two ranks that are threads.
# RAY_PYTHON names a Python that has Ray. Skipped with a sentence without Ray, UCX or namespaces.
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
set -u
trireme=$(realpath "$1") repository=$(realpath "$2") here=$(dirname "$(realpath "$0")")
python=${RAY_PYTHON:-python3}
"$python" -c 'import ray' 2>/dev/null || { echo "skipped: $python has no Ray (RAY_PYTHON names one that has)"; exit 77; }
source "$here/hosts.sh"
source "$here/../same_runs.sh"
folder=$(mktemp -d)
trap 'hosts_down; rm -rf "$folder"' EXIT
fail() { echo "FAILED: $*"; tail -n 20 "$folder"/said*; exit 1; }
hosts_up 2 || fail "the hosts did not come up"
unset TRIREME_TOKEN TRIREME_TOKEN_FILE  # the example draws one
export TRIREME_LOG=warn OMP_NUM_THREADS=1 RAY_USAGE_STATS_ENABLED=0
ray=("$python" -m ray.scripts.scripts)
sets=(--set train.steps=10 --set train.threads=1 --set train.hash_every=5 --set checkpoint.every=5 --set batch.global_batch_tokens=512 --set eval.every=0)
start=(--num-cpus 1 --object-store-memory 100000000 --temp-dir "$folder/ray" --disable-usage-stats)
"$trireme" --quiet train "$repository/recipes/tiny.toml" "${sets[@]}" --ranks 2 --out "$folder/threads" >"$folder/said" 2>&1 || fail "the run on threads"
on h1 "${ray[@]}" start --head --port 6379 --node-ip-address "$(host_address 1)" --include-dashboard false "${start[@]}" >"$folder/said-1" 2>&1 ||
  fail "ray start on the first host"
on h2 "${ray[@]}" start --address "$(host_address 1):6379" --node-ip-address "$(host_address 2)" --num-cpus 1 \
  --object-store-memory 100000000 --disable-usage-stats >"$folder/said-2" 2>&1 || fail "ray start on the second host"
on h1 env RAY_ADDRESS="$(host_address 1):6379" timeout 200 "$python" "$repository/examples/ray_launch.py" "$repository/recipes/tiny.toml" --nodes 2 \
  --ranks-per-node 1 --out "$folder/ray-run" --program "$trireme" "${sets[@]}" >"$folder/said-3" 2>&1 || fail "ray_launch.py ended with $?"
same_runs "$trireme" "$folder/threads" "$folder/ray-run" || fail "two hosts have other bits than two threads"
echo fine
