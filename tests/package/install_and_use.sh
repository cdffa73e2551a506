#!/usr/bin/env bash
# install_and_use.sh BUILD_DIR CONSUMER_DIR: installs into a folder of its own, moves it, builds a program against what was
# installed with find_package alone, and runs both that and the installed trireme.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$1" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/prefix"  # nothing installed may depend on where it was put first
cmake -S "$2" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release
cmake --build "$work/build"
"$work/build/consumer"
if [ -x "$work/prefix/bin/trireme" ]; then "$work/prefix/bin/trireme" --version; fi
