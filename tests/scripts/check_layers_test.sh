#!/usr/bin/env bash
# check_layers_test.sh REPOSITORY: scripts/check-layers passes on the tree and fails, with file, line, room and what is
# allowed, on each kind of wrong line put into a copy of it.
set -euo pipefail
repository=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$repository/scripts/check-layers"

expect() {  # FILE LINE WHAT_IT_MUST_SAY: put the line into FILE of a fresh copy
  rm -rf "$work/copy"
  mkdir -p "$work/copy/docs" "$work/copy/src"
  cp "$repository/docs/architecture.md" "$work/copy/docs/"
  cp -r "$repository/src/trireme" "$work/copy/src/"
  local file=$work/copy/src/trireme/$1
  mkdir -p "$(dirname "$file")"
  echo "$2" >>"$file"
  local line
  line=$(wc -l <"$file")
  if "$repository/scripts/check-layers" "$work/copy" >"$work/said.txt"; then
    echo "not noticed in $1: $2"
    exit 1
  fi
  if ! grep -qF "src/trireme/$1:$line: $3" "$work/said.txt"; then
    echo "expected: src/trireme/$1:$line: $3"
    cat "$work/said.txt"
    exit 1
  fi
  echo "noticed in $1: $2"
}

expect base/error.h '#include "trireme/comm/types.h"' 'room base includes "trireme/comm/types.h"; it may use: base'
expect comm/types.h '#include "trireme/device/tensor_buffer.h"' \
  'room comm includes "trireme/device/tensor_buffer.h"; it may use: base, comm, cost, layout'
expect cost/collectives.h '  #  include "trireme/nonesuch/x.h"' 'includes "trireme/nonesuch/x.h", but docs/architecture.md'
expect comm/types.h '#include <ATen/core/Tensor.h>' 'room comm includes <ATen/core/Tensor.h>; it must not know'
expect comm/types.h '#include <mpi.h>' 'room comm includes <mpi.h>; it must not know'
expect base/error.h '#include <cuda_runtime.h>' 'room base includes <cuda_runtime.h>; it must not know'
expect base/error.cpp 'const char* home = std::getenv("HOME");' 'reads the environment; only base/env.cpp does'
expect base/error.cpp '#include "error.h"' 'includes "error.h"; our own headers'

# What is allowed stays allowed: MPI in its plugin, the plain C doors to the runtime and to CUDA anywhere.
rm -rf "$work/copy"
mkdir -p "$work/copy/docs" "$work/copy/src/trireme/comm/mpi_plugin"
cp "$repository/docs/architecture.md" "$work/copy/docs/"
echo '#include <mpi.h>' >"$work/copy/src/trireme/comm/mpi_plugin/plugin.cpp"
printf '#include "trireme/device/%s"\n' runtime.h cuda_runtime.h >"$work/copy/src/trireme/comm/x.cpp"
"$repository/scripts/check-layers" "$work/copy"
