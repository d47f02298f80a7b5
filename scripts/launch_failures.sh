#!/usr/bin/env bash
# Searches for the kernel that fails when several processes share one GPU by time slicing
# (docs/when_it_fails.md#several-runs-on-one-gpu), and prints how each process ended.
#   scripts/launch_failures.sh [-s SECONDS] [-o FOLDER] PART...
# Runs each PART for SECONDS (60), with its processes in parallel on the first GPU:
#   kernels   bench_one_kernel: one process for each of ringmaster's kernels
#   plain     time_slices: plain CUDA without ringmaster's code, one process for each set of ingredients
#   runs      eight training runs of recall models on packed documents
#   blocking  the same with CUDA_LAUNCH_BLOCKING=1: the error then names the kernel
#   dumps     the same with core dumps of the GPU, in FOLDER/dumps-*.cudacore
#   own_sm90, own_mma, own_simt   the same with only this attention kernel
#   any_order the same with run.deterministic=false
#   alone     one such run, alone on the GPU
# RINGMASTER, ONE_KERNEL and TIME_SLICES name the programs (default: those of build/release). Exits with 1 if a process
# failed.
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
seconds=60 out=runs/launch_failures
usage() { sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 2; }
while getopts s:o:h option; do
  case $option in
    s) seconds=$OPTARG ;;
    o) out=$OPTARG ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || usage
program() { realpath -m "${!1:-$root/build/release/$2}"; }
ringmaster=$(program RINGMASTER ringmaster)
one_kernel=$(program ONE_KERNEL bench/programs/bench_one_kernel)
time_slices=$(program TIME_SLICES bench/programs/time_slices)
config="${RECALL_CONFIG:-$root/configs/recall.yaml}"
mkdir -p "$out"
cd "$out"

failed=0
names=() pids=()
start() { # NAME COMMAND...: runs in the background for $seconds, with its output in NAME.log
  local name=$1
  shift
  timeout --preserve-status -s TERM -k 30 "$((seconds + 60))" "$@" > "$name.log" 2>&1 &
  names+=("$name") pids+=($!)
}
kernel_log() { dmesg 2> /dev/null | grep -c -i 'NVRM: Xid' || true; }
finish() { # waits for all started processes and prints a line for each
  local i code end xids
  for i in "${!pids[@]}"; do
    code=0
    wait "${pids[i]}" || code=$?
    end=ok
    case $code in
      0 | 75) ;; # 75: training stopped by a signal
      143) end='did not end' ;;
      137) end='had to be killed' ;;
      *) end='FAILED' ;;
    esac
    [ "$end" = ok ] || failed=1
    printf '%-28s %-16s %4d  %s\n' "${names[i]}" "$end" "$code" \
      "$(grep -a -v '^\s*$' "${names[i]}.log" | grep -a -E 'CUDA|error|calls of|launches of|ringmaster:|step ' | tail -n 1 |
        cut -c 1-1500)"
  done
  xids=$(kernel_log)
  [ "$xids" = "$xids_before" ] || dmesg | grep -i 'NVRM: Xid' | tail -n $((xids - xids_before))
  xids_before=$xids
  names=() pids=()
}
xids_before=$(kernel_log)

kernels() {
  local k="$one_kernel --seconds $seconds"
  start forward-sm90 $k forward --candidate own_sm90
  start backward-sm90 $k backward --candidate own_sm90
  start backward-sm90-any $k backward --candidate own_sm90 --any-order
  start backward-sm90-128 $k backward --candidate own_sm90 --head-dim 128 --heads 2
  start backward-sm90-content $k backward --candidate own_sm90 --keep 4
  start backward-mma $k backward --candidate own_mma
  start backward-cudnn $k backward --candidate cudnn --length 128
  start matmul $k matmul
  start norm $k norm
  finish
}
plain() {
  local word
  for word in twmro wmro tmro twro twmo twmr two t; do
    start "plain-$word" "$time_slices" "$seconds" 2000 "$word"
  done
  finish
}

corpora() { # creates small corpora once
  local symbols=192
  [ -f recall-short.h5 ] || "$ringmaster" data synthesize --context 128 --pairs 32 --documents 20000 \
    --vocab-size $symbols --validation-documents 0 --output recall-short.h5 > /dev/null
  [ -f recall.h5 ] || "$ringmaster" data synthesize --kind recall --context 2048 --vocab-size $symbols --pairs 32 \
    --documents 3000 --validation-documents 50 --output recall.h5 > /dev/null
  sed 's/20e6/1e6/g' "$config" > recall.yaml # so that long documents come early
}
content='{kind: block_sparse, block: 64, rules: [{pattern: content, keep: 4, local: 1, first: 1}]}'
near='[{layers: "0", attention: {kind: block_sparse, block: 64, rules: [{local: 2}]}}]'
train() { # NAME KIND SETTING...
  local name=$1 kind=$2
  shift 2
  local settings=("run.directory=$name" run.device=cuda run.threads=2 train.steps=1000000 checkpoint.interval=1000000)
  case $kind in
    dense) settings+=('model.attention={kind: dense}') ;;
    window) settings+=('model.attention={kind: window, window: 256, sinks: 1}') ;;
    content) settings+=("model.attention=$content") ;;
    upper) settings+=("model.attention=$content" "model.attention_layers=$near") ;;
  esac
  rm -rf "$name"
  timeout --preserve-status -s TERM -k 30 "$seconds" "$ringmaster" train recall.yaml "${settings[@]}" "$@"
}
runs() { # VARIANT SETTING...
  local variant=$1 n=0 kind
  shift
  corpora
  for kind in dense content upper window dense content upper dense; do
    n=$((n + 1))
    [ "$variant" != alone ] || [ $n = 1 ] || break
    start_train "$variant-$n-$kind" "$kind" "$@"
  done
  finish
}
start_train() {
  local name=$1
  train "$@" > "$name.log" 2>&1 &
  names+=("$name") pids+=($!)
}
forced() { # CANDIDATE: short runs measure; then all choices of attention are changed to CANDIDATE
  corpora
  local settings=(run.tuning=measured.yaml) kind
  for kind in dense content upper window; do
    seconds=25 train "measures-$kind" $kind "${settings[@]}" > "measures-$kind.log" 2>&1 || true
  done
  python3 - measured.yaml "$1.yaml" "$1" << 'END'
import re, sys
source, target, candidate = sys.argv[1:]
lines = open(source).read().split('\n', 1)[1]
chosen = re.compile(r'^("attention[^"]*[ |]%s[|,][^"]*": )"[^"]*"$' % candidate, re.M)
lines = chosen.sub(r'\1"%s"' % candidate, lines)
h = 14695981039346656037  # FNV-1a, as in kernels/choice_file.cpp
for c in lines.encode(): h = (h ^ c) * 1099511628211 & (1 << 64) - 1
open(target, 'w').write('# ringmaster choices, version 1, hash %016x\n%s' % (h, lines))
END
  echo "$1: $(grep -c "^\"attention.*: \"$1\"\$" "$1.yaml" || true) choices of attention"
  runs "$1" "run.tuning=$1.yaml"
}

printf '%-28s %-16s %4s  %s\n' process end code 'last message'
for part in "$@"; do
  echo "-- $part, $seconds s"
  case $part in
    kernels | plain) $part ;;
    runs | alone) runs "$part" ;;
    any_order) runs any_order run.deterministic=false ;;
    blocking) CUDA_LAUNCH_BLOCKING=1 runs blocking ;;
    dumps)
      CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1 CUDA_COREDUMP_FILE="$PWD/dumps-%p.cudacore" \
        CUDA_COREDUMP_GENERATION_FLAGS=skip_nonrelocated_elf_images,skip_global_memory,skip_local_memory,skip_abort \
        runs dumps
      ;;
    own_sm90 | own_mma | own_simt) forced "$part" ;;
    *) usage ;;
  esac
done
exit "$failed"
