#!/usr/bin/env bash
# Trains a small model on generated questions (docs/recall.md) with each kind of attention, and prints how many answers
# of the validation split each has right.
#   scripts/recall.sh [-c CONFIG] [-t recall|needles] [-n CONTEXT] [-l TAIL] [-o FOLDER] [KIND...]
#                     [-- SETTING=VALUE...]
# KIND: dense, window, dilated, local_global, hierarchical, strided, random, content, learned, importance, pools (of 64
# tokens, beside content), upper_KIND (the own and the last block in the first layer, KIND with more blocks above);
# without one the first seven.
# CONFIG: configs/recall.yaml (2048 tokens), configs/recall_4096.yaml, or configs/recall_cpu.yaml (256). TAIL: the last
# so many tokens hold the queries, with noise between. Runs stay in FOLDER/TASK-CONTEXT[-TAIL]/KIND: those that have
# ended are not trained again while they are there, and others go on. Ends with 1 if a kind has failed.
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
config="$root/configs/recall.yaml" task=recall context='' tail=0 out=runs/recall
usage() { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
while getopts c:t:n:l:o:h option; do
  case $option in
    c) config=$(realpath "$OPTARG") ;;
    t) task=$OPTARG ;;
    n) context=$OPTARG ;;
    l) tail=$OPTARG ;;
    o) out=$OPTARG ;;
    *) usage ;;
  esac
done
if [ "$OPTIND" -gt 1 ] && [ "${*:OPTIND-1:1}" = -- ]; then OPTIND=$((OPTIND - 1)); fi # which getopts takes
shift $((OPTIND - 1))
[ -f "$config" ] || { echo "recall.sh: there is no file $config" >&2; exit 2; }
for number in "${context:-0}" "$tail"; do
  [[ $number =~ ^[0-9]+$ ]] || { echo "recall.sh: $number is not a number of tokens" >&2; exit 2; }
done
kinds=() settings=()
while [ $# -gt 0 ]; do
  if [ "$1" = -- ]; then shift; settings=("$@"); break; fi
  kinds+=("$1"); shift
done
[ ${#kinds[@]} -gt 0 ] || kinds=(dense window dilated local_global hierarchical strided random)
ringmaster="$(realpath -m "${RINGMASTER:-$root/build/release/ringmaster}")"
[ -x "$ringmaster" ] || { echo "recall.sh: there is no $ringmaster: 'make program' builds it" >&2; exit 2; }
if [ -z "$context" ]; then context=$(sed -n 's/.*[{ ]context: *\([0-9]*\).*/\1/p' "$config" | head -n 1); fi

# Pairs, and blocks, that suit the context; a sparse kind computes a quarter of the pairs of query and key, or less.
pairs=$((context >= 2048 ? 32 : 16)) block=$((context >= 8192 ? 128 : 64))
blocks=$((context / block))
keep=$((blocks >= 32 ? blocks / 8 : 3))
# An indexer warms up for half of the steps: dense attention has to find first. Its loss counts all tokens, the model's
# the few answers, and both share a clipped norm.
steps=$(sed -n 's/.*[{ ]steps: *\([0-9]*\).*/\1/p' "$config" | head -n 1)
for setting in ${settings[@]+"${settings[@]}"}; do case $setting in train.steps=*) steps=${setting#*=} ;; esac; done
attention() {
  local rule pattern=$1 more=''
  case $1 in
    dense) echo '{kind: dense}'; return ;;
    window) echo "{kind: window, window: $((context / 8)), sinks: 1}"; return ;;
    dilated)
      echo "{kind: dilated, segments: [$((context / 8)), $((context / 2)), $context], rates: [1, 4, 16]}"
      return
      ;;
    local_global) rule="local: $((blocks / 16 + 1)), first: 1" ;;
    hierarchical) rule='local: 1' ;;
    strided) rule='local: 2, every: 8' ;;
    random) rule='local: 2, density: 0.1' ;;
    content) rule="keep: $keep, local: 1, first: 1" ;;
    learned) rule="keep: $keep, local: 1, first: 1" more=", index_loss: 0.001, index_warmup_steps: $((steps / 2))" ;;
    importance) rule="keep: $keep, local: 1, first: 1, explore: $((keep > 3)), interval: 200" ;;
    pools) pattern=content rule="keep: $keep, local: 1, first: 1" more=', pools: [64]' ;;
    *)
      echo "recall.sh: there is no kind '$1'; there are dense, window, dilated, local_global, hierarchical, strided," \
        "random, content, learned, importance and pools, and each with upper_ before it" >&2
      exit 2
      ;;
  esac
  echo "{kind: block_sparse, block: $block, rules: [{pattern: $pattern, $rule}]$more}"
}
kind_settings() { # one a line
  case $1 in
    upper_*)
      local keep=$((keep + keep / 2 < blocks ? keep + keep / 2 : blocks - 1))
      echo "model.attention=$(attention "${1#upper_}")"
      echo "model.attention_layers=[{layers: \"0\", attention: {kind: block_sparse, block: $block, rules: [{local: 2}]}}]"
      ;;
    *) echo "model.attention=$(attention "$1")" ;;
  esac
}
for kind in "${kinds[@]}"; do attention "${kind#upper_}" > /dev/null; done

folder="$out/$task-$context$([ "$tail" = 0 ] || echo "-$tail")"
mkdir -p "$folder"
cd "$folder"
symbols=$((6 * pairs))
[ -f recall-short.h5 ] || "$ringmaster" data synthesize --context $((4 * pairs)) --pairs "$pairs" --documents 200000 \
  --vocab-size "$symbols" --validation-documents 0 --output recall-short.h5
hidden=$([ "$task" = recall ] && echo "$pairs" || echo 4)
long() { # CONTEXT FILE VALIDATION TAIL
  [ -f "$2" ] || "$ringmaster" data synthesize --kind "$task" --context "$1" --vocab-size "$symbols" --pairs "$hidden" \
    --documents $((60000000 / $1)) --validation-documents "$3" --tail "$4" --output "$2"
}
long "$context" recall.h5 200 "$tail"
if grep -q recall-middle.h5 "$config"; then long $((context / 8)) recall-middle.h5 0 0; fi
failed=0
for kind in "${kinds[@]}"; do # a run that has ended is left as it is, one that was interrupted goes on
  mapfile -t kind_of_run < <(kind_settings "$kind")
  "$ringmaster" train "$config" run.directory="$kind" model.context="$context" "${kind_of_run[@]}" \
    ${settings[@]+"${settings[@]}"} ||
    { echo "recall.sh: $kind has failed" >&2; failed=1; }
done

last() { grep '"group": *"validation"' "$1/metrics.jsonl" | tail -n 1 | sed -n "s/.*\"$2\": *\([0-9.e-]*\).*/\1/p"; }
printf '%-14s %9s %9s\n' "$task" accuracy loss
for kind in "${kinds[@]}"; do
  loss="$(last "$kind" loss 2> /dev/null || true)"
  [ -z "$loss" ] || printf '%-14s %9.4f %9.4f\n' "$kind" "$(last "$kind" accuracy)" "$loss"
done
exit "$failed"
