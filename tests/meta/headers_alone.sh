#!/usr/bin/env bash
# Names the public headers of the rooms that do not compile by themselves, where the headers of the standard library are
# precompiled as in the build. A header that NAME.cpp includes first is left to `make debug` and `make tidy`, which
# compile each file by itself. Device headers (cuda/) are left to nvcc; headers over cuBLAS need the CUDA Toolkit's.
#   headers_alone.sh SOURCE_DIR STANDARD_HEADERS COMPILER [FLAG...]: STANDARD_HEADERS is a file that includes them
set -euo pipefail
cd "$1"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$2" "$folder/standard.h"
shift 2
"$@" -x c++-header "$folder/standard.h" -o "$folder/standard.h.gch"
set -- "$@" -include "$folder/standard.h"
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
headers=() built=0
while read -r header; do
  if grep -s -m 1 '^#include' "${header%.h}.cpp" | grep -qxF "#include \"$header\""; then
    built=$((built + 1))
  else
    headers+=("$header")
  fi
done < <(find ./*/ -name '*.h' -not -path './build/*' -not -path './tests/*' -not \( "${left_out[@]}" \) |
  sed 's#^\./##' | sort)
if [ $((${#headers[@]} + built)) -lt 100 ]; then
  echo "only $((${#headers[@]} + built)) headers found below $PWD: wrong folder?" >&2
  exit 1
fi
printf '%s\0' "${headers[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c 'check "$@"' _ {} "$@"
echo "${#headers[@]} headers compile alone, and $built are left to other builds"
