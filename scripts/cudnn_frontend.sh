#!/usr/bin/env bash
# Brings the headers of cuDNN's frontend, which the GPU attention of cuDNN is built with, to build/deps/cudnn_frontend. They
# come from the Python package of the same name (MIT licence), of one version, checked by its hash.
# Does nothing on a machine without nvcc or without cuDNN's headers. Never fails: without them own kernels serve.
set -euo pipefail
cd "$(dirname "$0")/.."

version=1.32.0
case "$(uname -m)" in
  x86_64) hash=8b354a8e550c083eb247f1eb39a7d69a4a269075f5a01e4fcbd2531680b17239 ;;
  aarch64) hash=dd1c9d84725ee278116ff5537cb5aff885094ea93028ef15ce265236543eb5f6 ;;
  *) exit 0 ;;
esac
target=build/deps/cudnn_frontend

skip() {
  echo "cudnn_frontend.sh: $1; building without cuDNN's attention (own kernels serve)" >&2
  exit 0
}

[ "$(cat "$target/version" 2>/dev/null)" = "$version" ] && exit 0
nvcc="${CUDACXX:-$(command -v nvcc || echo "${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}/bin/nvcc")}"
[ -x "$nvcc" ] || exit 0
toolkit="$(dirname "$(dirname "$(readlink -f "$nvcc")")")"
found=""
for folder in "$toolkit"/include "$toolkit"/targets/*/include /usr/include /usr/include/*-linux-gnu; do
  [ -e "$folder/cudnn.h" ] && found=1
done
[ -n "$found" ] || exit 0
command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 || skip "there is no pip to fetch cuDNN's frontend with"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
echo "nvidia-cudnn-frontend==$version --hash=sha256:$hash" >"$work/wanted.txt"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes --retries 1 --timeout 10 \
  --python-version 3.12 --platform "manylinux_2_28_$(uname -m)" --dest "$work" -r "$work/wanted.txt" >"$work/log" 2>&1 ||
  skip "cuDNN's frontend $version could not be fetched ($(tail -n 1 "$work/log"))"
python3 -m zipfile -e "$work"/*.whl "$work/wheel" || skip "the package of cuDNN's frontend could not be unpacked"
rm -rf "$target"
mkdir -p "$target"
mv "$work/wheel/include" "$target/include"
cp "$work"/wheel/*.dist-info/licenses/* "$target/" 2>/dev/null || true
echo "$version" >"$target/version"
echo "cudnn_frontend.sh: headers of cuDNN's frontend $version are in $target"
