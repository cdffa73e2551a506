#!/usr/bin/env bash
# links_little.sh PROGRAM: the program is linked with no tensor library, no MPI, no CUDA and no OpenSSL, directly or indirectly.
set -euo pipefail
linked=$(ldd "$1" | awk '{print $1}')  # names only: a folder may be called cuda
grep -q libtrireme <<<"$linked" || { printf '%s is not linked with libtrireme; ldd said:\n%s\n' "$1" "$linked"; exit 1; }
if heavy=$(grep -iE 'torch|c10|mpi|cuda|cublas|nccl|gomp|httplib|ssl|crypto' <<<"$linked"); then
  printf '%s must not be linked with:\n%s\n' "$1" "$heavy"
  exit 1
fi
echo "$(wc -l <<<"$linked") libraries, none of them heavy"
