#!/usr/bin/env bash
# tidy_test.sh REPOSITORY: scripts/tidy looks at the files that a change touches, with the flags of the build less what clang
# does not read, and its status says whether something was found. The tool itself is a stand-in that tells how it was called.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/scripts" "$work/src/room" "$work/build/release/Unity" "$work/bin"
cp "$1/scripts/tidy" "$work/scripts/"
tidy=$work/scripts/tidy

fail() {
  echo "$1"
  cat "$work/said" "$work/calls" 2>/dev/null
  exit 1
}
run() {  # STATUS ARGUMENTS...: its words are in said, the stand-in's calls in calls
  local expected=$1 status=0
  shift
  : >"$work/calls"
  "$tidy" --jobs 1 "$@" >"$work/said" 2>&1 || status=$?
  [ "$status" = "$expected" ] || fail "status $status instead of $expected: tidy $*"
}
said() { grep -qF -- "$1" "$work/said" || fail "it does not say: $1"; }
called() { grep -qE -- "$1" "$work/calls" || fail "no call like: $1"; }
not_called() { grep -qE -- "$1" "$work/calls" && fail "a call like: $1" || true; }

cat >"$work/bin/clang-tidy-14" <<TOOL
#!/bin/bash
echo "\$*" >>"$work/calls"
case \$2 in
  *bad.cpp) echo "\$2:1:1: warning: something is wrong [bugprone-use-after-move]" ;;
  *views.cpp) echo "/usr/include/ranges:1:1: error: constraints not satisfied [clang-diagnostic-error]"; exit 1 ;;
esac
TOOL
chmod +x "$work/bin/clang-tidy-14"
export PATH=$work/bin:$PATH
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t

cd "$work"
printf '/build/\n/bin/\n/said\n/calls\n' >.gitignore
for file in clean.cpp bad.cpp views.cpp alone.cpp header.h; do echo "int x;" >"src/room/$file"; done
git init -q . && git add -A && git commit -qm first

run 1
said "neither an origin/main nor a commit before"
git commit -q --allow-empty -m second
run 0
said "no C++ file has changed"

echo "int y;" >>src/room/clean.cpp
run 1
said "compile_commands.json is not there; configure first"

# clean, bad and views are compiled as one; alone by itself.
printf '#include "room/%s"\n' clean.cpp bad.cpp views.cpp >build/release/Unity/unity_room_0.cpp
cat >build/release/compile_commands.json <<JSON
[{"directory": "$work/build/release", "file": "$work/build/release/Unity/unity_room_0.cpp",
  "command": "/usr/bin/c++ -DROOM=1 -I$work/src -O2 -Werror -Wall -Wno-restrict -fpch-preprocess -std=c++20 -Winvalid-pch -include $work/x/cmake_pch.hxx -o x.o -c $work/build/release/Unity/unity_room_0.cpp"},
 {"directory": "$work/build/release", "file": "../../src/room/alone.cpp",
  "command": "/usr/bin/c++ -DALONE=1 -std=c++20 -o y.o -c ../../src/room/alone.cpp"}]
JSON
run 0
called "src/room/clean.cpp -- -DROOM=1 -I$work/src -std=c\+\+20 -Wno-everything$"
[ "$(wc -l <calls)" = 1 ] || fail "files that did not change were looked at"

run 0 src/room/alone.cpp
called "alone.cpp -- -DALONE=1 -std=c\+\+20"
run 0 src/room/header.h
called "header.h -- -DA?[RL]O[A-Z]*=1 .*-x c\+\+$"
not_called "cmake_pch|fpch-preprocess|-Werror"

run 1 src/room/bad.cpp src/room/clean.cpp
said "something is wrong [bugprone-use-after-move]"
said "2 files, 1 with findings, 0 left out"
run 0 src/room/views.cpp src/room/clean.cpp
said "views.cpp is left out: clang 14 cannot read it"
run 1 src/room/views.cpp
run 1 src/room/nonesuch.cpp
said "no such file"

# A branch: all that it changed since it left origin/main, and what git does not know yet.
git add -A && git commit -qm third
git update-ref refs/remotes/origin/main HEAD
for file in clean alone; do
  echo "int z;" >>src/room/$file.cpp
  git commit -qam "$file"
done
echo "int n;" >src/room/new.cpp
echo "text" >notes.md
run 0
for file in clean alone new; do called "src/room/$file.cpp --"; done
[ "$(wc -l <calls)" = 3 ] || fail "not the three files that changed"

# Without clang-tidy-14.
mkdir bin/few
ln -s "$(command -v git)" bin/few/git
ln -s "$(python3 -c 'import sys; print(sys.executable)')" bin/few/python3
PATH=$work/bin/few run 1
said "apt-get install clang-tidy-14"
echo "ok"
