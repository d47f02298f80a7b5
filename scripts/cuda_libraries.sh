#!/usr/bin/env bash
# Brings cuBLAS, cuDNN and NCCL from NVIDIA's Python packages to a machine that has a driver and nothing else, in the
# versions that docs/performance.md was measured with. Needs python3 with pip, not root; 1.4 GB.
#   scripts/cuda_libraries.sh [DIR]     default: lib/ringmaster of the installation of this script, else of the ringmaster in PATH
set -euo pipefail

fail() {
  echo "cuda_libraries.sh: $1" >&2
  exit 1
}

program="$(cd "$(dirname "$0")" && readlink -f ../../../bin/ringmaster || true)"  # in a package
[ -x "$program" ] || program="$(command -v ringmaster || true)"
own="${program:+$(dirname "$(dirname "$(readlink -f "$program")")")/lib/ringmaster}"
target="${1:-$own}"
[ -n "$target" ] || fail "say where to: scripts/cuda_libraries.sh DIR (there is no ringmaster in PATH)"
python3 -m pip --version >/dev/null 2>&1 || fail "python3 with pip is missing"
mkdir -p "$target" && [ -w "$target" ] || fail "cannot write into $target"

work="$(mktemp -d "$target/.fetch.XXXXXX")"
trap 'rm -rf "$work"' EXIT
PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --only-binary=:all: --target "$work" \
  nvidia-cublas==13.1.0.3 nvidia-cudnn-cu13==9.19.0.56 nvidia-cuda-nvrtc==13.0.88 nvidia-nccl-cu13==2.28.9 || fail "pip could not fetch them"
for library in "$work"/nvidia/*/lib/*.so*; do
  mv -f "$library" "$target/"
done
echo "cuBLAS 13.1, cuDNN 9.19 and NCCL 2.28.9 are in $target"
[ "$target" = "$own" ] ||
  echo "export LD_LIBRARY_PATH=$target\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
echo "ringmaster doctor shows what is found."
