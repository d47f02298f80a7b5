#!/usr/bin/env bash
# Builds dist/ringmaster-VERSION-linux-ARCH.tar.gz: the program, every library it needs except glibc's and the GPU driver's,
# the configurations, pages and completions. It runs on any machine of the architecture whose glibc is as new as the one here, without root.
# `make wheel` turns the same files into a Python wheel (scripts/wheel.py).
#   scripts/package.sh [CMAKE_ARGUMENT...]     for example -DRING_CUDA=ON
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/portable
cmake --preset portable "$@"
cmake --build --preset portable
version="$("$build/ringmaster" --version | sed -n '1s/^ringmaster \([^ ]*\).*/\1/p')"
name="ringmaster-$version-linux-$(uname -m)"
stage="$build/package/$name"
rm -rf "$build/package"
lib="$stage/lib/ringmaster"
mkdir -p "$lib" "$stage/licenses" dist
cmake --install "$build" --prefix "$stage" --strip >/dev/null

# Libraries of the system that must be the target machine's own: glibc comes with its loader, libcuda with its driver.
own='^(ld-linux.*|linux-vdso|lib(c|m|mvec|dl|rt|pthread|util|resolv|anl|nsl|nss_.*|cuda))\.so'
# OpenBLAS is opened by name on first use, so the linker does not list it.
opened="$(PATH="$PATH:/sbin:/usr/sbin" ldconfig -p | awk '$1 == "libopenblas.so.0" && !seen++ { print $NF }')"
{ ldd "$build/ringmaster" ${opened:+"$opened"}; echo "openblas => ${opened:-none}"; } |
  awk '/not found/ { print $1 > "/dev/stderr"; bad = 1 } $3 ~ /^\// { print $3 } END { exit bad }' | sort -u |
  while read -r library; do
    soname="$(basename "$library")"
    [[ "$soname" =~ $own ]] && continue
    cp -L "$library" "$lib/$soname"
    strip --strip-unneeded "$lib/$soname"
    package="$(dpkg-query -S "$(readlink -f "$library")" 2>/dev/null | head -n 1 | cut -d: -f1 || true)"
    if [ -n "$package" ] && [ -f "/usr/share/doc/$package/copyright" ]; then
      cp -L "/usr/share/doc/$package/copyright" "$stage/licenses/$package"
    fi
  done

for text in LICENSE NOTICE; do  # of Arrow, where scripts/arrow.sh brought it
  if compgen -G "$lib/libarrow.so.*" >/dev/null && [ -f "build/deps/arrow/$text.txt" ]; then
    cp "build/deps/arrow/$text.txt" "$stage/licenses/libarrow.$text"
  fi
done

glibc="$(objdump -T "$stage/bin/ringmaster" "$lib"/* | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 | cut -d_ -f2)"
cat >"$stage/README.txt" <<TEXT
Ringmaster $version for Linux on $(uname -m), glibc $glibc or newer.
Start bin/ringmaster from anywhere; bin/ and lib/ must stay side by side. "bin/ringmaster --help" lists the commands.
share/ringmaster/scripts/quickstart.sh trains a first model. licenses/ holds the terms of the libraries in
lib/ringmaster/. share/ has configurations, manual pages and completions for shells.
TEXT
if grep -q '^RING_CUDA:.*=ON$' "$build/CMakeCache.txt"; then
  cat >>"$stage/README.txt" <<TEXT
For GPUs the machine must have a driver for CUDA 13 (release 580 or newer), libcublasLt.so.13, and for several GPUs
libnccl.so.2; libcudnn.so.9 (9.13 or newer) makes attention faster. They are found in lib/ringmaster/, in LD_LIBRARY_PATH
and where the system has them; share/ringmaster/scripts/cuda_libraries.sh brings them to lib/ringmaster/. "bin/ringmaster
doctor" shows what is found.
TEXT
fi

# The proof: unpacked elsewhere, with an empty environment, every library comes from the package or from glibc.
archive="dist/$name.tar.gz"
tar --sort=name --owner=0 --group=0 --numeric-owner -C "$build/package" -czf "$archive" "$name"
trial="$(mktemp -d)"
trap 'rm -rf "$trial"' EXIT
tar -C "$trial" -xzf "$archive"
foreign="$(env -i ldd "$trial/$name/bin/ringmaster" | awk '/=>/ { print $1, $3 }' |
  while read -r soname path; do
    [[ "$soname" =~ $own ]] || [[ "$path" == "$trial/$name/"* ]] || [[ "$path" == "$trial/$name/bin/../lib/ringmaster/"* ]] || echo "$soname ($path)"
  done)"
if [ -n "$foreign" ]; then
  echo "package.sh: the package would use libraries from outside of it: $foreign" >&2
  exit 1
fi
(cd / && env -i "$trial/$name/bin/ringmaster" --version >/dev/null)
echo "$archive ($(du -h "$archive" | cut -f1)), needs glibc $glibc"
