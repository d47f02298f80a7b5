#!/usr/bin/env bash
# Training steps of bench/shapes on this GPU, ours and PyTorch's in turn (bench/peers/torch_lm.py), and each shape's floor.
#   scripts/bench_gpu.sh [--rounds 2] [--steps 10] [--warmup 5] [--output FOLDER] [--append] [--no-peer] [--no-floor]
#                        [--variants default,bf16,deterministic,fp32] [SHAPE...]
# SHAPE: a file in bench/shapes without .yaml; default: all. Writes FOLDER/steps.csv and floors.csv (default build/bench-gpu;
# --append keeps what is there, so that shapes can be measured one by one) and prints a Markdown table of both. What failed is
# listed at the end, with its output in FOLDER/failed.txt. Takes about 2 minutes per shape and round; needs PyTorch and PyYAML.
# RINGMASTER: our program (default build/release/ringmaster). PYTHON: of the peer (default python3).
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
ringmaster="${RINGMASTER:-$root/build/release/ringmaster}"
python="${PYTHON:-python3}"
rounds=2 steps=10 warmup=5 output="$root/build/bench-gpu" append="" peer=1 floor=1 variants=default,bf16,deterministic,fp32
shapes=()

usage() { sed -n '3,4s/^# *//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
need() { [ $# -ge 2 ] || { echo "bench_gpu.sh: $1 needs a value" >&2; usage; }; }
while [ $# -gt 0 ]; do
  case "$1" in
    --rounds) need "$@"; rounds="$2"; shift ;;
    --steps) need "$@"; steps="$2"; shift ;;
    --warmup) need "$@"; warmup="$2"; shift ;;
    --output) need "$@"; output="$2"; shift ;;
    --variants) need "$@"; variants="$2"; shift ;;
    --append) append=1 ;;
    --no-peer) peer="" ;;
    --no-floor) floor="" ;;
    -*) echo "bench_gpu.sh: no such option: $1" >&2; usage ;;
    *) shapes+=("$1") ;;
  esac
  shift
done
if [ ${#shapes[@]} = 0 ]; then
  for file in "$root"/bench/shapes/*.yaml; do shapes+=("$(basename "$file" .yaml)"); done
fi
for shape in "${shapes[@]}"; do
  [ -f "$root/bench/shapes/$shape.yaml" ] || { echo "bench_gpu.sh: no such shape: $shape; see bench/shapes" >&2; exit 2; }
done
for number in "$rounds" "$steps" "$warmup"; do
  [[ "$number" =~ ^[0-9]+$ ]] || { echo "bench_gpu.sh: $number is not a number" >&2; usage; }
done
[ -x "$ringmaster" ] || { echo "bench_gpu.sh: $ringmaster is no program; build it, or set RINGMASTER" >&2; exit 2; }

mkdir -p "$output"
output="$(cd "$output" && pwd)"
[ -n "$append" ] || rm -f "$output"/{steps.csv,floors.csv,failed.txt}
failed=()

# Runs a command whose last lines are worth seeing; a failure does not end the others.
try() {
  local what="$1"
  shift
  if "$@" >"$output/last.txt" 2>&1; then
    grep -E 'tokens/s|floor' "$output/last.txt" | sed "s/^/$what: /" >&2 || true
  else
    failed+=("$what")
    { echo "== $what: $*"; tail -n 20 "$output/last.txt"; } >>"$output/failed.txt"
    echo "$what: failed" >&2
  fi
}

settings_of() {
  local states="optimizer.master=fp32 optimizer.moments=fp32 optimizer.gradients=fp32"
  case "$1" in
    default) echo "run.deterministic=true $states" ;;
    bf16) echo "run.deterministic=false" ;;
    deterministic) echo "run.deterministic=true" ;;
    fp32) echo "run.deterministic=false $states" ;;
    *) echo "bench_gpu.sh: no such variant: $1; default, bf16, deterministic or fp32" >&2; return 1 ;;
  esac
}

ours() {  # SHAPE VARIANT
  local settings
  settings="$(settings_of "$2")" || exit 2
  # shellcheck disable=SC2086  # settings are several words
  try "$1 ringmaster $2" "$ringmaster" bench step "$root/bench/shapes/$1.yaml" --steps "$steps" --warmup "$warmup" \
    --no-ceilings --who "ringmaster-$2" --csv "$output/steps.csv" run.directory="$output/run-$1" $settings
}
theirs() {  # SHAPE
  [ -z "$peer" ] || try "$1 pytorch" "$python" "$root/bench/peers/torch_lm.py" "$1" --steps "$steps" --warmup "$warmup" \
    --csv "$output/steps.csv"
}

IFS=, read -ra chosen <<<"$variants"
for variant in "${chosen[@]}"; do settings_of "$variant" >/dev/null || exit 2; done
for shape in "${shapes[@]}"; do
  for ((round = 0; round < rounds; ++round)); do
    for ((i = 0; i < ${#chosen[@]}; ++i)); do
      ours "$shape" "${chosen[i]}"
      [ "$i" != 0 ] || theirs "$shape"
    done
  done
  [ -z "$floor" ] || try "$shape floor" "$ringmaster" bench floor "$root/bench/shapes/$shape.yaml" --csv "$output/floors.csv" \
    run.directory="$output/run-$shape" run.deterministic=false
done
rm -f "$output/last.txt"
"$python" "$root/scripts/bench_table.py" "$output/steps.csv" "$output/floors.csv"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}" >&2
  echo "see $output/failed.txt" >&2
  exit 1
fi
