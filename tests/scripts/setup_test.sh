#!/usr/bin/env bash
# setup_test.sh REPOSITORY: scripts/setup says what is wrong and what to do, and changes nothing when only asked to check.
set -euo pipefail
work=$(mktemp -d "$PWD/setup_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/scripts"
cp "$1/scripts/setup" "$1/scripts/libtorch.txt" "$1/scripts/cudnn.txt" "$1/scripts/highs.txt" "$work/scripts/"
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
for made in cache build; do [ ! -e "$work/$made" ] || { echo "--check made $made"; exit 1; }; done

mkdir -p "$work/half/include"
expect 1 'is no usable LibTorch: include/ATen/core/Tensor.h is not there' env TRIREME_LIBTORCH="$work/half" "$setup" --no-packages
expect 1 'site-packages/torch' env TRIREME_LIBTORCH="$work/half" "$setup" --no-packages

# A package that only `make check` needs may be missing where the system has none; one that is needed may not.
mkdir "$work/apt"
cat >"$work/apt/dpkg-query" <<'END'
#!/bin/sh
shift 3
for package; do [ "$package" = "$MISSING" ] || echo "$package installed"; done
END
printf '#!/bin/sh\n[ "$2" != "$UNKNOWN" ]\n' >"$work/apt/apt-cache"
printf '#!/bin/sh\nexit 1\n' >"$work/apt/apt-get"
chmod +x "$work/apt"/*
lacks() { env "PATH=$work/apt:$PATH" MISSING="$1" UNKNOWN="$2" "$setup" --check --no-torch; }
expect 0 'except clang-format-14, which this system does not have' lacks clang-format-14 clang-format-14
expect 1 'system packages missing: clang-format-14' lacks clang-format-14 none
expect 1 'system packages missing: cmake' lacks cmake cmake
expect 0 'are installed' lacks none none

# Every way to fetch is closed: no index, no folder of wheels.
expect 1 'pip could not fetch' env PIP_NO_INDEX=1 PIP_FIND_LINKS="$work/none" "$setup" --no-packages
expect 1 'PIP_INDEX_URL' env PIP_NO_INDEX=1 PIP_FIND_LINKS="$work/none" "$setup" --no-packages
[ "$(ls "$work/cache")" = lock ]  # a failed attempt leaves nothing half done

expect 0 '' "$setup" --no-packages --no-torch
grep -q 'set(TRIREME_SETUP_LIBTORCH "")' "$work/build/setup.cmake"

# cuDNN's headers come where nvcc is found, also to a LibTorch that is there already. Without them the build goes on.
mkdir -p "$work/torch/include/ATen/core" "$work/torch/include/c10/core" "$work/torch/lib" "$work/bin"
touch "$work/torch/include/ATen/core/Tensor.h" "$work/torch/include/c10/core/ScalarType.h" "$work/torch/lib/libc10.so"
cp "$(command -v bash)" "$work/torch/lib/libtorch_cpu.so"  # any file that the loader can make sense of
printf '#!/bin/sh\n' >"$work/bin/nvcc"
chmod +x "$work/bin/nvcc"
with_nvcc=(env "PATH=$work/bin:$PATH" "TRIREME_LIBTORCH=$work/torch" PIP_NO_INDEX=1 "PIP_FIND_LINKS=$work/none")
expect 1 "cuDNN's headers are not in" "${with_nvcc[@]}" "$setup" --check --no-packages
expect 0 'attention on GPUs will ask cuDNN through ATen' "${with_nvcc[@]}" "$setup" --no-packages
grep -q 'set(TRIREME_SETUP_CUDNN "")' "$work/build/setup.cmake"
[ "$(ls "$work/cache")" = $'cudnn-not-fetched\nlock' ]
# It is not tried at every build, but tomorrow.
expect 0 'could not be fetched today' "${with_nvcc[@]}" "$setup" --no-packages
touch -d '1 day ago' "$work/cache/cudnn-not-fetched"
expect 0 'pip could not fetch what scripts/cudnn.txt lists' "${with_nvcc[@]}" "$setup" --no-packages
expect 0 "LibTorch: $work/torch" "${with_nvcc[@]}" "$setup" --check --no-packages --no-cudnn

# Both are pinned, and the folder that they are kept in tells their versions: another version is another folder.
pinned() { sed -nE "s/^$1==([0-9.]+) --hash=sha256:[0-9a-f]{64}\$/\1/p" "$work/scripts/cudnn.txt"; }
headers=$work/cache/cudnn-$(pinned nvidia-cudnn-cu13)-frontend-$(pinned nvidia-cudnn-frontend)
mkdir -p "$headers/include"
expect 0 "cuDNN's headers: $headers/include" "${with_nvcc[@]}" "$setup" --no-packages
grep -qF "set(TRIREME_SETUP_CUDNN \"$headers/include\")" "$work/build/setup.cmake"

# HiGHS is fetched when it is asked for, to the folder of its pinned version, which the program knows.
expect 1 'HiGHS is not in' "$setup" --check --no-packages --no-torch --highs
expect 1 'pip could not fetch what scripts/highs.txt lists' env PIP_NO_INDEX=1 PIP_FIND_LINKS="$work/none" \
  "$setup" --no-packages --no-torch --highs
highs=highs-$(sed -nE 's/^highspy==([0-9.]+) --hash=sha256:[0-9a-f]{64}$/\1/p' "$work/scripts/highs.txt")
grep -qF "\"$highs\"" "$1/src/trireme/plan/graph/search/highs.cpp"
mkdir -p "$work/cache/$highs"
touch "$work/cache/$highs/libhighs.so.1"
expect 0 "TRIREME_HIGHS_LIBRARY=$work/cache/$highs/libhighs.so.1" "$setup" --no-packages --no-torch --highs
