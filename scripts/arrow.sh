#!/usr/bin/env bash
# Brings Arrow's C++ libraries, which Parquet tables are read with, to build/deps/arrow, where the next configuration
# finds them. They come from the Python package pyarrow (Apache licence), of one version, checked by its hash: Debian 12
# and Ubuntu 24.04 have no package of them. Not needed where Apache's own are installed (libarrow-dev, libparquet-dev).
set -euo pipefail
cd "$(dirname "$0")/.."

version=26.0.1
target=build/deps/arrow
fail() {
  echo "arrow.sh: $1" >&2
  exit 1
}

case "$(uname -m)" in
  x86_64) hash=c718bf97a92a6dea97fd1062c3b9f9e2e83cb9cc926e752289fa4ffff41738f9 ;;
  aarch64) hash=6c18167774fb599d42444b7ac558a893d49e750fb14232b538955e6f0d1d51ea ;;
  *) fail "there is no package of pyarrow for $(uname -m); build Arrow and name its folder with -DRING_ARROW=FOLDER" ;;
esac
if [ "$(cat "$target/version" 2>/dev/null)" = "$version" ]; then
  echo "arrow.sh: Arrow $version is in $target"
  exit 0
fi
command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 ||
  fail "there is no pip to fetch pyarrow with: install python3-pip"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
echo "pyarrow==$version --hash=sha256:$hash" >"$work/wanted.txt"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes --retries 1 --timeout 10 \
  --python-version 3.12 --platform "manylinux_2_28_$(uname -m)" --dest "$work" -r "$work/wanted.txt" >"$work/log" 2>&1 ||
  fail "pyarrow $version could not be fetched ($(tail -n 1 "$work/log"))"
python3 -m zipfile -e "$work"/*.whl "$work/wheel" || fail "the package of pyarrow could not be unpacked"
rm -rf "$target"
mkdir -p "$target/lib"
mv "$work/wheel/pyarrow/include" "$target/include"
mv "$work"/wheel/pyarrow/libarrow.so.* "$work"/wheel/pyarrow/libparquet.so.* "$target/lib/"
cp "$work"/wheel/*.dist-info/licenses/*.txt "$target/" 2>/dev/null || true
echo "$version" >"$target/version"
echo "arrow.sh: Arrow $version is in $target; build again"
