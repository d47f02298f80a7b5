#!/usr/bin/env bash
# Measures the table of choices for one GPU model (docs/gpu.md#choices-of-algorithms), which is compiled into the
# program: GEMMs and attention of bench/shapes and configs, on a grid of micro-batches and contexts around them.
#   scripts/choice_tables.sh FILE     writes FILE; copy it to kernels/choices/MODEL.yaml and rebuild
# Needs an otherwise idle GPU for about 10 minutes. With several GPUs it instead measures the shapes of tensor and
# context parallelism over 2 and 4 GPUs. Environment variables:
#   RINGMASTER     the program (default build/release/ringmaster)
#   ONLY           a regular expression: runs only the lines "DEGREE CONFIG SETTING..." that match it
set -uo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
ringmaster="${RINGMASTER:-$root/build/release/ringmaster}"
file="${1:?usage: scripts/choice_tables.sh FILE}"
work="$(mktemp -d)"
store="${file%.yaml}.store.yaml"  # kept if the script is interrupted, so that the next call continues
failed=0

# Writes the table: the store without its first line, a hash, so that the table can be reviewed and merged as text.
finish() {
  rm -rf "$work"
  [ -f "$store" ] || return
  grep '^"' "$store" | LC_ALL=C sort >"$file"
  echo "$(wc -l <"$file") choices in $file, $failed failed"
}
trap finish EXIT

measure() {  # DEGREE CONFIG SETTING...
  local degree="$1" config="$2"
  shift 2
  local name="$degree $config $*"
  [[ "$name" =~ ${ONLY:-.} ]] || return 0
  local command=("$ringmaster" bench step "$root/$config.yaml" --steps 1 --warmup 1 --no-ceilings "run.directory=$work/run"
    "run.tuning=$store" train.activation_offload=false "$@")
  [ "$degree" = 1 ] || command=("$ringmaster" launch -n "$degree" -- "${command[@]:1}")
  local began=$SECONDS
  if ! "${command[@]}" >"$work/log.txt" 2>&1; then
    failed=$((failed + 1))
    echo "failed: $name: $(grep -v '^$' "$work/log.txt" | tail -n 1)"
  else
    echo "$((SECONDS - began)) s: $name: $(grep -c '^"' "$store") choices"
  fi
  rm -rf "$work/run"
}

batch() { echo "train.batch_size=$1 train.micro_batch=$1"; }

# Measures the shapes of one process.
# shellcheck disable=SC2046,SC2086
single() {
  for n in 1 2 4 8; do measure 1 bench/shapes/1b model.layers=2 $(batch "$n") "$@"; done
  measure 1 bench/shapes/1b32k model.layers=2 $(batch 1) "$@"
  for shape in gpt2 qwen05 qwen15; do
    for n in 64 32 16 8 4 2 1; do measure 1 "bench/shapes/$shape" model.layers=2 $(batch "$n") "$@"; done
  done
  for t in 8192 4096 16384 2048; do
    for n in 1 2; do measure 1 bench/shapes/8b model.layers=2 "model.context=$t" $(batch "$n") "$@"; done
  done
  for t in 1024 2048 8192 16384 65536 131072; do
    measure 1 bench/shapes/1b model.layers=2 "model.context=$t" $(batch 1) "$@"
  done
}

# Measures the shapes of tensor and context parallelism.
# shellcheck disable=SC2046
several() {  # DEGREE SETTING...
  local degree="$1"
  shift
  for axis in tp cp; do
    for n in 1 2 4; do
      measure "$degree" bench/shapes/1b model.layers=2 "parallel.$axis=$degree" $(batch "$n") "$@"
    done
    for t in 4096 8192; do
      measure "$degree" bench/shapes/8b model.layers=2 "model.context=$t" "parallel.$axis=$degree" $(batch 1) "$@"
    done
  done
}

# The optimizer's states determine the type in which gradients are summed, and run.deterministic determines the kernels.
default=(optimizer.master=fp32 optimizer.moments=fp32 optimizer.gradients=fp32)
fastest=(run.deterministic=false optimizer.master=bf16 optimizer.moments=bf16 optimizer.gradients=bf16)
gpus="$(if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES"; else nvidia-smi -L; fi | wc -l)"
if [ "$gpus" = 1 ]; then
  single "${default[@]}"
  for config in "$root"/configs/*.yaml; do
    grep -qE '^ *device: cpu|_(dp|cp|tp|zero)[0-9]|_[48]gpu' <(basename "$config"; cat "$config") && continue
    measure 1 "configs/$(basename "$config" .yaml)"
  done
  single "${fastest[@]}"
else
  for degree in 2 4; do
    [ "$degree" -le "$gpus" ] || continue
    several "$degree" "${default[@]}"
    several "$degree" "${fastest[@]}"
  done
fi
