# pods.sh PROGRAM REPOSITORY: what the pods of a JobSet run, as processes of two hosts (network namespaces). Command and variables are those
# of the manifest that `trireme launch --jobset` prints; the token is in the environment, as from a secret. Pod 0 gets its name late, and
# at first it leads to an address where nobody answers, as it may after a restart.
#   1. two pods of a rank each have the bits of two ranks that are threads
#   2. a pod dies, the other one ends; the set is started again, goes on, and ends with the same bits
# It is no cluster: nothing of Kubernetes is run.
[ $# -gt 0 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
set -u
trireme=$(realpath "$1") repository=$(realpath "$2") here=$(dirname "$(realpath "$0")")
command -v python3 >/dev/null || { echo "skipped: no python3, which reads the manifest"; exit 77; }
source "$here/hosts.sh"
source "$here/../same_runs.sh"
folder=$(mktemp -d)
trap 'hosts_down; rm -rf "$folder"' EXIT
fail() { echo "FAILED: $*"; tail -n 20 "$folder"/said-*; exit 1; }
hosts_up 2 || fail "the hosts did not come up"
cd "$folder" && ln -s "$repository/recipes" recipes && mkdir runs
unset TRIREME_TOKEN
(umask 077; head -c 32 /dev/urandom | base64 >token)
export TRIREME_TOKEN_FILE=$folder/token TRIREME_LOG=warn
sets=(--set train.steps=200 --set train.threads=1 --set train.hash_every=50 --set checkpoint.every=20 --set batch.global_batch_tokens=512 --set eval.every=0)
"$trireme" --quiet train recipes/tiny.toml "${sets[@]}" --ranks 2 --out threads || fail "the run on threads"

"$trireme" --quiet launch recipes/tiny.toml "${sets[@]}" --jobset --ranks 2 --nodes 2 --image registry/trireme:1 --claim runs --mount "$folder/runs" \
  --token-secret trireme-token --out "$folder/runs/pods" --program "$trireme" --dry-run >manifest || fail "trireme launch"
grep -A 4 'name: TRIREME_TOKEN$' manifest | tr -d ' \n' | grep -q 'secretKeyRef:name:"trireme-token"key:token' || fail "the manifest names no secret"
python3 - manifest >pod <<'END' || fail "the manifest cannot be read"
import json, re, shlex, sys
text = open(sys.argv[1]).read()
words = json.loads(re.search(r"command: (\[.*\])", text)[1])
given = [json.loads(name) + "=" + json.loads(value) for name, value in re.findall(r'- name: (".*")\n +value: (".*")', text)]
assert not any(each.startswith("TRIREME_TOKEN") for each in given), "the token, or a path of this machine, is in the manifest"
print("exec env", *map(shlex.quote, given + words))
END
master=$(grep -oE -- '--master-addr [^ ]*' manifest | cut -d' ' -f2)
names=$(cat "$hosts_names")
pod_0_is_at() { printf '%s\n%s %s\n' "$names" "$1" "$master" >"$hosts_names"; }
pod() { # INDEX: in the background
  on h$(($1 + 1)) env -i PATH="$PATH" HOME="$folder" JOB_COMPLETION_INDEX="$1" TRIREME_TOKEN="$(cat token)" timeout 120 sh "$folder/pod" >"$folder/said-$1" 2>&1 &
  pods[$1]=$!
}
pods=()
steps() { if [ -e runs/pods/metrics.jsonl ]; then wc -l <runs/pods/metrics.jsonl; else echo 0; fi; }

echo "== a pod dies"
ip -n "$hosts_tag-h2" neigh add "$(host_address 99)" lladdr 02:00:00:00:00:99 dev eth0 || fail "no neighbour that never answers"
pod 1
sleep 1
pod_0_is_at "$(host_address 99)"
sleep 2
pod_0_is_at "$(host_address 1)"
pod 0
for _ in $(seq 600); do [ "$(steps)" -lt 60 ] || break; sleep 0.1; done
[ "$(steps)" -ge 60 ] || fail "no 60 steps"
ip netns pids "$hosts_tag-h2" | xargs -r kill -KILL
began=$SECONDS
wait "${pods[0]}" && fail "pod 0 went on without pod 1"
((SECONDS - began < 30)) || fail "pod 0 took $((SECONDS - began)) s to see that pod 1 is gone"
wait "${pods[1]}"
grep -q "rank 1 is lost" said-0 || fail "pod 0 did not say who is lost"
[ "$(steps)" -lt 200 ] || fail "the run had ended before the pod was killed"

echo "== the set is started again"
pod 0
pod 1
for index in 0 1; do wait "${pods[$index]}" || fail "pod $index ended with $?"; done
grep -q TRIREME_TOKEN said-? && fail "a warning about the token, which the ranks have"
same_runs "$trireme" threads runs/pods || fail "two pods have other bits than two threads"
echo fine
