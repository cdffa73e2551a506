#!/usr/bin/env bash
# setup_test.sh REPOSITORY: scripts/setup says what is wrong and what to do, and changes nothing when only asked to check.
set -euo pipefail
work=$(mktemp -d "$PWD/setup_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/scripts"
cp "$1/scripts/setup" "$1/scripts/libtorch.txt" "$work/scripts/"
unset TRIREME_LIBTORCH
export TRIREME_CACHE=$work/cache

expect() {  # STATUS TEXT COMMAND...
  local status=0 said
  said=$("${@:3}" 2>&1) || status=$?
  if [ "$status" != "$1" ] || ! grep -qF -- "$2" <<<"$said"; then
    printf 'expected status %s and "%s", got status %s and:\n%s\n' "$1" "$2" "$status" "$said"
    exit 1
  fi
  printf 'as expected: %s\n' "$2"
}

setup=$work/scripts/setup
expect 0 'TRIREME_LIBTORCH' "$setup" --help
expect 1 'unknown option --nonesuch' "$setup" --nonesuch
expect 1 'LibTorch 2.11.0 is not in' "$setup" --check --no-packages
expect 1 'run scripts/setup' "$setup" --check --no-packages
[ ! -e "$work/cache" ] && [ ! -e "$work/build" ]

mkdir -p "$work/half/include"
expect 1 'is no usable LibTorch: include/ATen/core/Tensor.h is not there' env TRIREME_LIBTORCH="$work/half" "$setup" --no-packages
expect 1 'site-packages/torch' env TRIREME_LIBTORCH="$work/half" "$setup" --no-packages

# Every way to fetch is closed: no index, no folder of wheels.
expect 1 'pip could not fetch' env PIP_NO_INDEX=1 PIP_FIND_LINKS="$work/none" "$setup" --no-packages
expect 1 'PIP_INDEX_URL' env PIP_NO_INDEX=1 PIP_FIND_LINKS="$work/none" "$setup" --no-packages
[ "$(ls "$work/cache")" = lock ]  # a failed attempt leaves nothing half done

expect 0 '' "$setup" --no-packages --no-torch
grep -q 'set(TRIREME_SETUP_LIBTORCH "")' "$work/build/setup.cmake"
