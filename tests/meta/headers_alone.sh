#!/usr/bin/env bash
# Compiles every public header of the rooms by itself, some at a time, and names those that lean on their includer.
# Device headers (cuda/) are left to nvcc; those over cuBLAS need the CUDA Toolkit's.
#   headers_alone.sh SOURCE_DIR COMPILER [FLAG...]
set -euo pipefail
cd "$1"
shift
check() {
  local header="$1"
  shift
  if ! printf '#include "%s"\n' "$header" | "$@" -fsyntax-only -x c++ - ; then
    echo "$header does not compile alone" >&2
    return 1
  fi
}
export -f check
left_out=(-path '*/cuda/*')
if ! echo '#include <cublasLt.h>' | "$@" -fsyntax-only -x c++ - 2>/dev/null; then
  left_out+=(-o -path '*/cublas/*')
  echo "no cublasLt.h here: kernels/cublas is left out"
fi
mapfile -t headers < <(find core kernels comm autograd model data parallel checkpoint trainer launcher -name '*.h' \
  -not \( "${left_out[@]}" \) | sort)
if [ ${#headers[@]} -lt 10 ]; then
  echo "only ${#headers[@]} headers found below $PWD: wrong folder?" >&2
  exit 1
fi
printf '%s\0' "${headers[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c 'check "$@"' _ {} "$@"
echo "${#headers[@]} headers compile alone"
