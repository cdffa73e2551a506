#!/usr/bin/env bash
# docs_test.sh REPOSITORY: the documents hold together: links and anchors, paths of code and tests, types that the
# glossary names, lines that fit a screen, and the field's words in place of private ones.
set -euo pipefail
cd "$1"
bad=0 checked=0
complain() {
  echo "$*"
  bad=$((bad + 1))
}

# Anchors of a page as GitHub makes them from its headings.
anchors() {
  awk '/^```/ { fenced = !fenced } !fenced && /^#+ /' "$1" | sed -E 's/^#+ +//' | tr '[:upper:]' '[:lower:]' |
    sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

while IFS=: read -r document path; do
  checked=$((checked + 1))
  file=${path%%#*} anchor=
  case $path in *'#'*) anchor=${path#*#} ;; esac
  if [ -z "$file" ]; then file=$(basename "$document"); fi
  if [ -e "$(dirname "$document")/$file" ]; then
    file=$(dirname "$document")/$file
  elif [ ! -e "$file" ]; then
    complain "$document points at $path, which is not there"
    continue
  fi
  if [ -n "$anchor" ] && ! anchors "$file" | grep -qxF -- "$anchor"; then
    complain "$document points at $path, but $file has no such heading"
  fi
done < <(
  for document in *.md docs/*.md docs/decisions/*.md src/trireme/*/README.md; do
    # Code in fences is no link, though a lambda looks like one.
    awk '/^```/ { fenced = !fenced } !fenced' "$document" | grep -oE '\]\([^):]+\)' | sed -E "s|^\]\((.*)\)$|$document:\1|" || true
    grep -oE '`(src|tests|bench|scripts|docs|cmake|recipes)/[A-Za-z0-9_./-]*`' "$document" | grep -vE 'NAME|ROOM' | tr -d '`' |
      sed "s|^|$document:|" || true
  done
)
[ "$checked" -gt 20 ] || complain "only $checked pointers were found"

# Every page is found from the README and from the map of the code.
for document in docs/*.md; do
  page=$(basename "$document")
  grep -q "](docs/$page" README.md || complain "README.md does not name $document"
  [ "$page" = architecture.md ] || grep -q "]($page" docs/architecture.md || complain "docs/architecture.md does not name $document"
done

# Benchmarks are not run by tests: those that the pages name are there, and have the options that are printed with them.
benches=0
while IFS=: read -r document command; do
  benches=$((benches + 1))
  name=$(sed -E 's|.*bench/([a-z0-9_]+).*|\1|' <<<"${command%% *}")
  if [ ! -f "bench/$name.cpp" ]; then
    complain "$document runs build/release/bench/$name, but there is no bench/$name.cpp"
    continue
  fi
  for option in $(grep -oE -- '(^| )--[a-z][a-z0-9-]*' <<<"$command" || true); do
    grep -qE -- "[\"!]$option[\",]" "bench/$name.cpp" bench/*.h || complain "$document gives bench/$name.cpp $option, which it has not"
  done
done < <(grep -noE 'build/release/bench/[a-z0-9_]+( [^`|#;)]*)?' README.md docs/*.md | sed -E 's/^([^:]*):[0-9]+:/\1:/' | sort -u)
[ "$benches" -gt 20 ] || complain "only $benches commands of benchmarks were found"

types=0
for type in $(grep -ohE '`[A-Z][A-Za-z0-9]+`' docs/glossary.md docs/architecture.md | tr -d '`' | sort -u); do
  types=$((types + 1))
  grep -rqE --include='*.h' "(class|struct|using)( \[\[nodiscard\]\])? $type\b" src ||
    complain "$(grep -lF "\`$type\`" docs/glossary.md docs/architecture.md | tr '\n' ' ')names $type, which no header has"
done
[ "$types" -gt 50 ] || complain "only $types types were found in docs/glossary.md and docs/architecture.md"
# Headers that the map of the code names are there.
while IFS= read -r header; do
  [ -e "src/trireme/$header" ] || complain "docs/architecture.md names $header, which is not there"
done < <(grep -oE '`[a-z]+/[a-z_/]+\.(h|cpp)`' docs/architecture.md | tr -d '`' | sort -u)

# Recipe keys and flags that the glossary names are those of the program.
keys=$(awk '/^## `\[/ { gsub(/[^a-z0-9_.]/, "", $2); section = $2 } /^- `/ { sub(/`/, "", $2); print section "." $2 }' docs/recipe.md)
flags=$(grep -oE -- '--[a-z][a-z0-9-]+' docs/commands.md | sort -u)
named=0
while IFS= read -r key; do
  named=$((named + 1))
  grep -qxF -- "$key" <<<"$keys" || complain "docs/glossary.md names the key $key, which no recipe has"
done < <(grep -oE '`(run|model|experts|data|comm|emulated|layout|pipeline|compress|optim|lr_schedule|batch|precision|train|distill|downpour|eval|checkpoint|health|elastic)\.[a-z0-9_.]+' docs/glossary.md |
  tr -d '`' | sort -u)
while IFS= read -r flag; do
  named=$((named + 1))
  grep -qxF -- "$flag" <<<"$flags" || complain "docs/glossary.md names the flag $flag, which no command has"
done < <(grep -oE -- '`[^`|]*`' docs/glossary.md | grep -oE -- '--[a-z][a-z0-9-]+' | sort -u)
[ "$named" -gt 100 ] || complain "only $named keys and flags were found in docs/glossary.md"

# Rows of tables cannot be wrapped; `make format` wraps the rest at 120.
while IFS= read -r line; do complain "more than 160 columns: $line"; done < <(
  for document in *.md docs/*.md docs/decisions/*.md src/trireme/*/README.md; do
    awk -v name="$document" '/^```/ { fenced = !fenced } length($0) > 160 && !/^\|/ && !fenced { print name ":" FNR }' "$document"
  done
)

# Words that this project once had for what the field has a name for; the name is beside each. This file is left out,
# and where a retired key is listed so that an error can name its successor.
private='rounded by chance|:stochastic rounding
made again|:recomputed
[Rr]ecorded step|:CUDA graph
8-bit product|:FP8 GEMM
numbers? that (is|are) none|:NaN or Inf
become no numbers|:NaN
sick (step|number)|:NaN/Inf, anomaly
SickSteps|:AnomalyHandler
scattered sum|:reduce-scatter
scatter_sum|:reduce_scatter
[Pp]ut-off gradient|:deferred weight gradients
adds_in_passing|:fuses_residual
forget_gradients|:zero_grad
multiply_back|:grad_input
run_back\b|:backward
\ba_turned\b|:transpose_a
LiveNumbers|:DeviceScalars
CoinTable|:DropoutRngState
KeptMemory|:RegisteredBuffer
RecordedCalls|:CapturedCollectives
ChoiceGround|:TuningKey
StepsTogether|:MultiStepEngine
RunNews|:StepStatus
make_foresight|:make_weight_predictor
spec::Pace|pace_at|recipe pace|:hyperparameters
(nn|train|parallel)::(Team|Formation|Replicas)\b|:ParallelContext, ParallelGroups, DataParallel
\bmodel\.(width|inner|positions|heads|kv_heads|head_size)\b|:model.hidden_size, ffn_size, ...
\bmodel\.rotary\.(low_frequency|high_frequency|original_positions)\b|:model.rotary.low_freq_factor, ...
\bdata\.sequence\b|:data.seq_len
\bbatch\.size\b|:batch.global_batch_tokens
\btrain\.(microbatch|capture|tune|remake_norms|keep_active)\b|:train.micro_batch_size, cuda_graphs, ...
\bprecision\.(products|products_keep|masters)\b|:precision.gemm, gemm_exclude, master_weights
\boptim\.(states|clip)\b|:optim.state_dtype, grad_clip_norm
\blayout\.(shares|cp_inner|keep_gathered|offload_delay)\b|:layout.dp_batch_weights, ...
\bcheckpoint\.failures\b|:checkpoint.mtbf
\bhealth\.(not_finite|most_skips)\b|:health.non_finite, max_skips'
words=0
while IFS= read -r row; do
  words=$((words + 1))
  pattern=${row%:*} name=${row##*:}
  pattern=${pattern%|}
  while IFS= read -r hit; do complain "$hit -- say $name"; done < <(
    grep -rnE --include='*.md' --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh' --include='*.toml' --include='*.sh' \
      -e "$pattern" README.md CONTRIBUTING.md CHANGELOG.md docs src recipes tests bench examples 2>/dev/null |
      grep -vE '^tests/scripts/docs_test.sh:|^tests/spec/recipe_test.cpp:|batch\.size\(|section\.retired' | cut -c1-160
  )
done <<<"$private"
[ "$words" -gt 20 ] || complain "only $words private words are known"

echo "$checked pointers, $types types, $benches benchmarks, $words words: $bad complaints"
[ "$bad" = 0 ]
