#!/usr/bin/env bash
# commands_test.sh REPOSITORY PROGRAM: every command that README.md, docs/*.md and the command column of docs/systems.md
# print is run, so that a stale one fails. Long ones are run short (two steps), those for GPUs are checked and not run. Of
# commands in the middle of a sentence, which often leave out what they are given, words and flags must be the program's.
set -euo pipefail
repository=$1 program=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
ln -s "$program" "$work/bin/trireme"
PATH=$work/bin:$PATH
[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1

# "PAGE|COMMAND" of every fenced sh block and of code in tables of docs/systems.md; backslashes join lines, comments go.
commands() {
  for page in README.md docs/*.md; do
    # Made by the program itself, or run as a whole by tests/program/first_hour.sh.
    case $page in docs/commands.md | docs/recipe.md | docs/first-hour.md) continue ;; esac
    awk -v page="$page" '
      /^```sh/ { fenced = 1; next }
      /^```/ { fenced = 0 }
      fenced { line = line $0; if (sub(/\\$/, " ", line)) next
               sub(/[ \t]+#.*/, "", line); if (line !~ /^#|^[ \t]*$/) print page "|" line; line = "" }' "$page"
  done
  grep -oE '`(mpirun[^`]* )?trireme [^`]*`' docs/systems.md | tr -d '`' | sed 's/^/docs\/systems.md|/'
}

# "PAGE:LINE|COMMAND" of commands within sentences, without what stands before the program's name.
mentions() {
  grep -noE '`[^`]*`' README.md docs/*.md | grep -vE '^docs/(commands|recipe|combinations|systems)\.md:' |
    sed -nE 's/^([^:]*:[0-9]+):`((mpirun|torchrun|srun) [^`]* |build\/release\/)?trireme ([a-z][^`]*)`$/\1|\4/p'
}

# What is wrong with the words and flags of "plan roofline --tp 4"; nothing: nothing.
faults_of() {
  local -a words
  read -ra words <<<"$1"
  local path=${words[0]} help flag
  help=$(trireme "$path" --help 2>&1 || true)
  grep -q "^Usage: trireme $path\b" <<<"$help" || { echo "there is no command $path"; return; }
  while grep -qE "^Usage: .*SUBCOMMAND" <<<"$help" && [ "${#words[@]}" -gt 1 ] && [[ ${words[1]} =~ ^[a-z][a-z-]*$ ]]; do
    words=("${words[@]:1}")
    if grep -qE "^  ${words[0]}( |$)" <<<"$help"; then
      path+=" ${words[0]}"
      help=$(trireme $path --help 2>&1)
    elif grep -qE "^Usage: .* SUBCOMMAND" <<<"$help"; then
      echo "trireme $path has no ${words[0]}"
      return
    fi
  done
  for flag in $(grep -oE '(^| )--[a-z][a-z-]*' <<<"$1" || true); do
    grep -qE -- "(^|[ ,])$flag\b" <<<"$help" || echo "trireme $path has no $flag"
  done
}

# What the pages take for granted: recipes, runs, a model in Hugging Face's format, texts, a cluster, a schedule.
prepare() {
  ln -s "$repository/recipes" recipes
  mkdir -p models books runs
  cp -r "$repository/tests/fixtures/models/gpt2" models/gpt2
  mkdir models/qwen && cp "$repository/tests/fixtures/tokenizers/qwen.json" models/qwen/tokenizer.json
  for i in $(seq 400); do echo "Line $i of a book: the quick brown fox jumps over the lazy dog $((i * 37 % 101)) times."; done >books/one.txt
  for i in $(seq 200); do echo "A verse of a song: the moon is cold and the sea is wide, $((i * 29 % 97)) ships sail by night."; done >songs.txt
  echo '{"text": "A page of the web."}' >web.jsonl
  echo '{"messages": [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Yes."}]}' >chats.jsonl
  echo '[[3, 1, 2]]' >ids.json
  printf '{"_step": 0, "loss": 2.5}\n{"_step": 1, "loss": 2.25}\n' >history.jsonl
  local imports=$repository/tests/cli/imports
  cp "$imports/ds-zero2-bf16.json" ds_config.json
  cp "$imports/mg-gpt-345m.args" arguments.txt
  cp "$imports/tt-llama3-8b.toml" llama3_8b.toml
  cp "$repository/tests/fixtures/iris.csv" iris.csv
  cp "$repository/tests/fixtures/digits.txt" digits.txt
  cp "$repository/tests/fixtures/onnx/small.onnx" net.onnx
  cp "$repository/tests/fixtures/onnx/resnet50.onnx" resnet50.onnx
  echo secret >secret.txt
  awk 'BEGIN { print "x,y"; for (i = 0; i < 200; ++i) { x = i / 100 - 1; print x "," (x < 0 ? -x : 2 * x) + 0.01 * sin(i) } }' >data.csv
  cp data.csv more.csv
  cp recipes/tiny.toml recipe.toml
  printf '[model]\nfamily = "gpt2"\nnum_layers = 6\nhidden_size = 256\nnum_heads = 4\nvocab_size = 4096\n' >small.toml
  trireme schedule show --kind 1f1b --stages 4 --microbatches 8 >mine.txt
  for run in a b one-rank two-ranks tiny; do
    trireme --quiet train recipes/tiny.toml --set train.steps=4 --set checkpoint.every=2 --out "runs/$run"
  done
}

# The command as it is run here; nothing: not run.
short() {
  local command=$1
  command=${command//RECIPE/recipes/verify-tiny.toml}
  command=${command//DIRECTORY/models/gpt2}
  command=${command//chats.jsonl.zst/chats.jsonl}  # no program to pack it with
  # Launchers that are not installed everywhere, and hosts that are nowhere: what they would start, as one rank.
  command=$(sed -E 's/^(torchrun|srun|RANK=[0-9]+ ).* (trireme (train|bench) )/\2/' <<<"$command")
  case $command in
    *tensorboard* | "echo '["*) return ;;                      # another project's; numbers of a larger vocabulary
    make*) command="make -n -C $repository ${command#make }" ;;  # that the target exists
    *--images*) command=$(sed -E 's/--steps [0-9]+/--steps 2/' <<<"$command") ;;
    *--matrix*)  # two ranks have every schedule too; once is enough
      case $1 in *RECIPE*) return ;; esac
      command="${command/--ranks 8/--ranks 2} --steps 1"
      ;;
    *run.device=cuda* | *gpt2-124m.toml* | *-100m.toml*) command=$(sed -E 's/^mpirun -n [0-9]+ //; s/trireme (train|verify)/trireme check --no-files/' <<<"$command") ;;
    *"trireme verify"*compress.kind*) ;;  # some begin to compress after a few steps, and nothing compressed is a failure
    *"trireme verify"*) command+=" --steps 1" ;;
    *"trireme launch"*) command+=" --set train.steps=2 --set eval.every=0" ;;
    *"trireme train"*)
      command=$(sed -E 's/drain_every=[0-9]+/drain_every=2/; s/at step 50/at step 1/' <<<"$command")
      command+=" --set train.steps=2 --set checkpoint.every=2 --set eval.every=0 --set train.hash_every=0"
      case $command in *pipedream-tiny*) command+=" --set pipeline.drain_every=2" ;; esac  # saves are between drains
      ;;
    *"trireme sweep"*) command=$(sed -E 's/--trials [0-9]+/--trials 2/; s/$/ --steps 4 --set train.hash_every=0/' <<<"$command") ;;
    "trireme dashboard"*) command="timeout --preserve-status -s INT 2 $command --port 0" ;;  # it serves until it is told to end
    *"trireme serve"*) command="timeout --preserve-status -s TERM 10 ${command/8000/0}" ;;  # it drains, and ends well
    *"trireme bench hardware"*) command+=" --seconds 0.01 --steps 6" ;;
    *"--vocab-size 32k"*) command=${command/32k/300} ;;
  esac
  printf '%s\n' "$command"
}

cd "$repository"
mapfile -t all < <(commands | awk -F'|' '!seen[$2]++')
[ "${#all[@]}" -gt 80 ] || { echo "only ${#all[@]} commands were found"; exit 1; }
mkdir "$work/prepared" && cd "$work/prepared"
prepare >/dev/null
bad=0 ran=0 page=
for entry in "${all[@]}"; do
  if [ "${entry%%|*}" != "$page" ]; then  # commands of a page go on from each other; pages do not
    page=${entry%%|*}
    cd "$work" && rm -rf here && cp -r prepared here && cd here
  fi
  command=$(short "${entry#*|}")
  [ -n "$command" ] || continue
  ran=$((ran + 1))
  # Where runs go that say nothing else: empty for a new one, and there for what reads one.
  case $command in
    *--resume*) ;;
    "trireme report"* | "trireme quantize runs/tiny"*) [ -d runs/tiny ] || cp -r "$work/prepared/runs/tiny" runs/ ;;
    *) rm -rf runs/tiny ;;
  esac
  code=0
  timeout 300 bash -c "$command" >said 2>&1 </dev/null || code=$?
  case $command in *--inject*"kill "*) code=$((code == 0)) ;; esac  # it is meant to die
  if [ $code -ne 0 ]; then
    bad=$((bad + 1))
    printf '%s prints a command that ends with %d:\n  %s\n' "${entry%%|*}" "$code" "$command"
    tail -n 5 said | sed 's/^/    /'
  fi
done
cd "$repository"
looked=0
while IFS='|' read -r place command; do
  looked=$((looked + 1))
  faults=$(faults_of "$command")
  [ -z "$faults" ] || { bad=$((bad + 1)); printf '%s mentions `trireme %s`: %s\n' "$place" "$command" "$faults"; }
done < <(mentions)
[ "$looked" -gt 80 ] || { echo "only $looked mentions of commands were found"; exit 1; }
echo "$ran of ${#all[@]} commands were run, $looked more looked at, $bad failed"
exit $((bad > 0))
