#!/usr/bin/env bash
# install_and_use.sh BUILD_DIR PROGRAMS runtime|core: installs into a folder of its own, moves it, builds programs against what was
# installed with find_package alone (PROGRAMS/consumer, and with `runtime` PROGRAMS/trainer, which trains), and runs them and
# the installed trireme.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$1" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/prefix"  # nothing installed may depend on where it was put first
# uses NAME: the program of that name is configured, built and ends well.
uses() {
  cmake -S "$programs/$1" -B "$work/$1" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release
  cmake --build "$work/$1"
  "$work/$1/$1"
}
programs=$2
uses consumer
if [ "$3" = runtime ]; then
  uses trainer
elif cmake -S "$programs/trainer" -B "$work/refused" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/said" 2>&1; then
  echo "the component runtime was found in an installation without it"
  exit 1
fi
if [ -x "$1/trireme" ]; then  # what was built must be installed
  "$work/prefix/bin/trireme" --version
  # The small libraries come from the folder itself, or are linked in: it runs where their packages are not installed.
  ldd "$work/prefix/bin/trireme" >"$work/ldd"
  for name in libfmt libspdlog libtomlplusplus libpcre2-8 libutf8proc libxxhash libzstd libsqlite3; do
    grep -q "^\s$name" "$work/ldd" || continue
    grep -q "^\s$name.* => $work/prefix/" "$work/ldd" || {
      echo "$name is not taken from the installed folder:"
      cat "$work/ldd"
      exit 1
    }
  done
  # Once more for real: a root with nothing but this folder, the loader and the libraries of C, C++ and zlib.
  mkdir -p "$work/root/tmp" "$work/root/proc"
  cp -r "$work/prefix" "$work/root/trireme"
  grep -oE '/[^ ]*/(ld-linux[^ /]*|lib(c|m|stdc\+\+|gcc_s|z|dl|pthread|rt)\.so[^ /]*)' "$work/ldd" | while read -r file; do
    mkdir -p "$work/root${file%/*}" && cp -L "$file" "$work/root$file"
  done
  as_root=(--mount)
  [ "$(id -u)" = 0 ] || as_root=(--map-root-user --mount)
  there() {  # in that root, with /proc, by which the loader finds what lies beside a program
    unshare "${as_root[@]}" sh -c 'mount --rbind /proc "$0/proc" && exec chroot "$0" "$@"' "$work/root" "$@"
  }
  if ! unshare "${as_root[@]}" mount --rbind /proc "$work/root/proc" 2>"$work/said"; then
    echo "this machine allows no other root, so it was not tried in an empty one: $(cat "$work/said")"
  elif there /trireme/bin/trireme --version; then
    printf 'a text of some words\n' >"$work/root/tmp/text.txt"
    there /trireme/bin/trireme -q tokenize /tmp/text.txt --tokenizer bytes --out /tmp/shards
    there /trireme/bin/trireme inspect /tmp/shards >/dev/null
    there /trireme/bin/trireme check /trireme/share/trireme/recipes/tiny.toml >/dev/null
  else
    echo "the installed folder does not run in a root without the packages it was built with"
    exit 1
  fi
fi
