# first_hour.sh PROGRAM ROOT: runs every command of docs/first-hour.md, in order, and looks for what the page shows; its
# Python where transformers is installed.
set -euo pipefail
program=$(realpath "$1") root=$(realpath "$2")
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
mkdir "$home/bin" && ln -s "$program" "$home/bin/trireme" && ln -s "$root/docs" "$home/docs"
export PATH="$home/bin:$PATH" TRIREME_LOG=info OMP_NUM_THREADS=1
cd "$home"

# Blocks of the page, one file each: 00-sh, 01-text, ...
awk -v home="$home" '
  /^```(sh|text|python)$/ && !inside { inside = 1; file = sprintf("%s/block-%02d-%s", home, count++, substr($0, 4)); printf "" >file; next }
  /^```$/ { inside = 0; next }
  inside { print >file }' "$root/docs/first-hour.md"

for block in "$home"/block-*; do
  case $block in
    *-sh)
      # In this shell, so that "cd" holds for the next block. Every command counts, not only the last.
      status=0
      set +e
      trap 'status=$?' ERR
      eval "$(cat "$block")" >"$home/said" 2>&1
      trap - ERR
      set -e
      [ $status = 0 ] || { cat "$block" "$home/said"; echo "FAILED with status $status"; exit 1; }
      ;;
    *-text)
      while IFS= read -r line; do
        # Everything but the dots, as it stands, in this order, in one line of what was said.
        pattern=$(sed -e 's/[][\.*^$+?(){}|\\]/\\&/g' -e 's/…/.*/g' <<<"$line")
        grep -Eq -- "$pattern" "$home/said" || { cat "$home/said"; echo "FAILED: nothing says: $line"; exit 1; }
      done <"$block"
      ;;
    *-python)
      if python3 -c 'import transformers, torch' 2>/dev/null; then
        python3 "$block"
      else
        echo "transformers is not installed: its block was not run"
        # What it would read: the ids that it would compare.
        grep -q '"eos_token_id"' exported/config.json && grep -q '"eos_token_id"' exported/generation_config.json
        grep -q '"eos_token": "<|endoftext|>"' exported/tokenizer_config.json
        grep -q '"model_input_names"' exported/tokenizer_config.json  # without token types, which generate() refuses
      fi
      ;;
  esac
done
echo fine
