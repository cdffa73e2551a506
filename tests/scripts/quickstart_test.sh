# quickstart_test.sh ROOT: the quickstart on another text, a few steps long: every part is there and says what it should.
set -euo pipefail
cd "$1"
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
# Our own pages, several times over: text enough for the vocabulary of the recipe.
for _ in 1 2 3 4 5 6 7 8; do for page in docs/*.md README.md CONTRIBUTING.md; do cat "$page"; echo; done; done >"$home/pages.txt"

said=$(scripts/quickstart --steps 20 --text "$home/pages.txt" --home "$home/made" 2>&1) || { echo "$said"; exit 1; }
for word in "unigram entropy" "finished 20 steps" "validation loss" "bits per byte" "And it came to pass" "What to try next"; do
  grep -q "$word" <<<"$said" || { echo "$said"; echo "quickstart did not say: $word"; exit 1; }
done
grep -q "<svg" "$home/made/report.html"
# Its last step's loss is below its first one's.
awk -F '"loss":' '{ split($2, parts, ","); loss = parts[1]; if (NR == 1) first = loss } END { exit !(loss < first) }' \
  "$home/made/run/metrics.jsonl"

if said=$(scripts/quickstart --step 20 2>&1); then echo "an unknown option was taken"; exit 1; fi
grep -q "unknown option --step" <<<"$said"
echo fine
