#!/usr/bin/env bash
# prometheus.sh PROGRAM REPOSITORY: /metrics of the live page, read by Prometheus's own Python library, and by a real Prometheus
# where one is installed.
set -euo pipefail
program=$1 repository=$2
python3 -c 'import prometheus_client' 2>/dev/null || { echo "skipped: the Python package prometheus-client is not installed"; exit 77; }
work=$(mktemp -d)
page=
trap '[ -z "$page" ] || kill "$page" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
"$program" --quiet train "$repository/recipes/tiny.toml" --set train.steps=8 --set train.threads=1 --out 'runs/a "quoted" \ name'
"$program" --quiet sweep "$repository/recipes/tiny.toml" --search random --trials 2 --steps 4 --slots 2 --param 'optim.learning_rate=log(1e-4,1e-2)' --out runs/sweep >/dev/null
"$program" --quiet dashboard runs --port 0 >said &
page=$!
for _ in $(seq 100); do [ ! -s said ] || break; sleep 0.1; done
url=$(grep -oE 'http://[^/#]+' said)
python3 - "$url" <<'END'
import sys
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

text = urllib.request.urlopen(sys.argv[1] + "/metrics").read().decode()
families = {family.name: family for family in text_string_to_metric_families(text)}
step = {sample.labels["run"]: sample.value for sample in families["trireme_step"].samples}
assert step['a "quoted" \\ name'] == 8, step
assert families["trireme_tokens"].type == "counter", families["trireme_tokens"]
states = families["trireme_trial_state"].samples
assert {sample.labels["trial"] for sample in states} == {"0", "1"} and all(sample.labels["state"] == "done" for sample in states), states
print(f"{len(families)} families, {sum(len(family.samples) for family in families.values())} samples")
END
if command -v prometheus >/dev/null; then
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  printf 'global: {scrape_interval: 1s}\nscrape_configs: [{job_name: trireme, static_configs: [{targets: ["%s"]}]}]\n' "${url#http://}" >config.yml
  prometheus --config.file=config.yml --storage.tsdb.path=data --web.listen-address="127.0.0.1:$port" >prometheus.log 2>&1 &
  scraper=$!
  trap 'kill "$page" "$scraper" 2>/dev/null || true; wait "$scraper" 2>/dev/null || true; rm -rf "$work"' EXIT
  for _ in $(seq 200); do
    curl -sf "http://127.0.0.1:$port/api/v1/query?query=trireme_step" 2>/dev/null | grep -q '"8"' && { echo "a real Prometheus has scraped it"; exit 0; }
    sleep 0.1
  done
  tail -3 prometheus.log
  exit 1
fi
