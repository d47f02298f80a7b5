#!/usr/bin/env bash
# Installs each package in dist/ (wheel, .deb, archive) into a fresh Debian 12 chroot without a compiler, and trains a first
# model there. Prints the seconds from the start of the installation to the sample of the trained model. Needs root,
# debootstrap and about 2 GB in /tmp (or TMPDIR).
#   scripts/try_packages.sh [KIND...]     wheel, deb, archive; default: all
# QUICKSTART_SETTINGS='train.steps=50' shortens the training.
set -euo pipefail
cd "$(dirname "$0")/.."

mirror="${MIRROR:-http://deb.debian.org/debian}"
work="$(mktemp -d)"
root="$work/root"
trap 'umount "$root/proc" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT

inside() { chroot "$root" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/root TMPDIR=/tmp "$@"; }

new_root() {
  umount "$root/proc" 2>/dev/null || true
  rm -rf --one-file-system "$root"
  cp -a "$work/base" "$root"
  cp dist/ringmaster* "$root/tmp/"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  mount -t proc proc "$root/proc"
}

# What a user would do to install each package. Each function prints the path of the installed quickstart.sh.
install_wheel() {
  inside apt-get install -y -q --no-install-recommends python3-venv >&2
  inside python3 -m venv /opt/ringmaster >&2
  inside sh -c '/opt/ringmaster/bin/pip install -q --no-index /tmp/ringmaster-*.whl' >&2
  echo /opt/ringmaster/share/ringmaster/scripts/quickstart.sh
}
install_deb() {
  inside sh -c 'apt-get install -y -q /tmp/ringmaster_*.deb' >&2
  echo /usr/share/ringmaster/scripts/quickstart.sh
}
install_archive() {
  inside sh -c 'tar -C /opt -xzf /tmp/ringmaster-*-linux-*.tar.gz && mv /opt/ringmaster-* /opt/ringmaster'
  echo /opt/ringmaster/share/ringmaster/scripts/quickstart.sh
}

debootstrap --variant=minbase --include=ca-certificates bookworm "$work/base" "$mirror" >"$work/debootstrap.log" ||
  { tail "$work/debootstrap.log" >&2; exit 1; }
chroot "$work/base" apt-get update -q >/dev/null
kinds=("$@")
[ $# -gt 0 ] || kinds=(wheel deb archive)
for kind in "${kinds[@]}"; do
  new_root
  if inside sh -c 'command -v cc c++ gcc' >/dev/null; then
    echo "try_packages.sh: the fresh chroot has a compiler" >&2
    exit 1
  fi
  begin=$(date +%s)
  quickstart="$(install_"$kind")"
  program="${quickstart%/share/*}/bin/ringmaster"
  inside "$program" --version | head -n 1
  # Without Python's standard library, Perl's files are the only text to train on in a fresh chroot.
  texts=()
  [ "$kind" = wheel ] || texts=(QUICKSTART_TEXT=/usr/lib/x86_64-linux-gnu/perl-base QUICKSTART_GLOB='*.p[lm]')
  inside "${texts[@]}" sh -c "cd /root && $quickstart ${QUICKSTART_SETTINGS:-}"
  echo "== $kind: $(($(date +%s) - begin)) s from the installation to the first model's sample"
done
