#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that Ringmaster builds with; does nothing when all are there.
# Without root and without passwordless sudo it prints the one line to run and exits with 1.
#   scripts/install_deps.sh           packages to build, test and run
#   scripts/install_deps.sh --dev     also clang-format and clang-tidy
#   scripts/install_deps.sh --print   only prints the packages that are missing
# With a CUDA toolkit and cuDNN there, it also fetches the headers of cuDNN's frontend into build/deps (optional).
set -euo pipefail

required=(ca-certificates g++ cmake ninja-build pkg-config
  libeigen3-dev libhdf5-dev libyaml-cpp-dev libspdlog-dev libfmt-dev libsentencepiece-dev
  nlohmann-json3-dev libcli11-dev libxxhash-dev libssl-dev libgtest-dev)
optional=(ccache libopenblas-dev libdnnl-dev libgloo-dev zlib1g-dev libzstd-dev libutf8proc-dev libpcre2-dev
  libmicrohttpd-dev)
# With a CUDA toolkit: NCCL, which NVIDIA's package repository has, unless the toolkit brought it along.
nvcc="${CUDACXX:-$(command -v nvcc || echo "${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}/bin/nvcc")}"
if [ -x "$nvcc" ] && [ ! -e "$(dirname "$(dirname "$(readlink -f "$nvcc")")")/include/nccl.h" ]; then
  optional+=(libnccl-dev)
fi
mode=install
for arg in "$@"; do
  case "$arg" in
    --dev) required+=(clang-format clang-tidy) ;;
    --print) mode=print ;;
    *) echo "install_deps.sh: unknown argument '$arg' (known: --dev, --print)" >&2; exit 2 ;;
  esac
done

if [ "$mode" = install ]; then
  "$(dirname "$0")/cudnn_frontend.sh" || true  # no Debian package has it
fi
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install_deps.sh: no apt here, nothing installed. Needed, by their Debian names: ${required[*]}" >&2
  echo "install_deps.sh: optional: ${optional[*]}" >&2
  exit 0
fi

# Prints those of its arguments that are not installed.
missing_of() {
  local installed
  installed=" $(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
    sed -n 's/^installed //p' | tr '\n' ' ' || true)"
  local package
  for package in "$@"; do
    case "$installed" in *" $package "*) ;; *) echo "$package" ;; esac
  done
}

mapfile -t missing < <(missing_of "${required[@]}")
mapfile -t missing_optional < <(missing_of "${optional[@]}")
if [ "$mode" = print ]; then
  printf '%s\n' "${missing[@]}" "${missing_optional[@]}" | sed '/^$/d'
  exit 0
fi
if [ $((${#missing[@]} + ${#missing_optional[@]})) -eq 0 ]; then
  echo "install_deps.sh: all packages are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
  elif [ ${#missing[@]} -eq 0 ]; then
    echo "install_deps.sh: optional packages are missing and there is no root to install them: ${missing_optional[*]}" >&2
    exit 0
  else
    echo "install_deps.sh: packages are missing and there is no root to install them. Run this, then start again:" >&2
    echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]} ${missing_optional[*]}" >&2
    exit 1
  fi
fi
apt() { ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@"; }

# Without a network, missing optional packages must not stop a build.
if ! apt update; then
  [ ${#missing[@]} -eq 0 ] || exit 1
  echo "install_deps.sh: no package lists to be had; building without ${missing_optional[*]}" >&2
  exit 0
fi
# An optional package that this distribution does not have is reported and left out.
known=()
for package in ${missing_optional[@]+"${missing_optional[@]}"}; do
  if [ -n "$(apt-cache madison "$package" 2>/dev/null)" ]; then
    known+=("$package")
  else
    echo "install_deps.sh: optional package $package is not in this distribution; building without it" >&2
  fi
done
wanted=(${missing[@]+"${missing[@]}"} ${known[@]+"${known[@]}"})
[ ${#wanted[@]} -eq 0 ] && exit 0
echo "install_deps.sh: installing ${wanted[*]}"
apt install -y --no-install-recommends "${wanted[@]}" >/dev/null
