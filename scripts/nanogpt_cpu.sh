#!/usr/bin/env bash
# Trains nanoGPT's CPU configuration (configs/nanogpt_cpu.yaml) on the characters of a text, split 90/10 in order.
#   scripts/nanogpt_cpu.sh TEXT [SEED] [SETTING=VALUE...]
# The last line is val_loss=<nats per character over the whole validation split> step_ms=<median time of a step>.
set -euo pipefail

if [ $# -lt 1 ] || [ ! -f "$1" ]; then
  echo "usage: scripts/nanogpt_cpu.sh TEXT [SEED] [SETTING=VALUE...]   (TEXT: a text file)" >&2
  exit 2
fi
text="$(realpath "$1")"
seed="${2:-1337}"
shift $(($# < 2 ? $# : 2))
root="$(cd "$(dirname "$0")/.." && pwd)"
cd "$root"
ringmaster="${RINGMASTER:-$root/build/release/ringmaster}"
if [ ! -x "$ringmaster" ]; then
  [ -z "${RINGMASTER:-}" ] || { echo "nanogpt_cpu.sh: RINGMASTER=$RINGMASTER is no program" >&2; exit 2; }
  make program CUDA=OFF >&2
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"$ringmaster" data prepare --input "$text" --tokenizer chars --split tail --validation-fraction 0.1 --output "$work/text.h5"
"$ringmaster" train configs/nanogpt_cpu.yaml run.directory="$work/run" run.seed="$seed" data.path="$work/text.h5" \
  train.log_interval=1 "$@" | grep -v '^to sample'
loss="$("$ringmaster" eval "$work/run" | sed 's/^loss \([0-9.]*\).*/\1/')"
step="$(sed -n 's/.*"group": *"train".*"step_ms": *\([0-9.]*\).*/\1/p' "$work/run/metrics.jsonl" | sort -n |
  awk '{ v[NR] = $1 } END { if (!NR) exit 1; printf "%.2f", v[int((NR + 1) / 2)] }')"
echo "val_loss=$loss step_ms=$step"
