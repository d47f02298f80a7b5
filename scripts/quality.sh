#!/usr/bin/env bash
# Trains a small model on a corpus of text (docs/measured/attention.md) with each kind of attention, at equal tokens,
# and prints validation losses beside that of dense attention.
#   scripts/quality.sh [-c CONFIG] [-s SEEDS] [-f STEP] [-o FOLDER] CORPUS [KIND...] [-- SETTING=VALUE...]
# KIND: dense, window, local_global, content, learned, distances (learned, with biases by distance), importance, pools
# (of 64 tokens, beside content), mixed (heads by turns content and local_global), quarter (every fourth head content);
# without one all of them. upper_KIND has windows in the lower half of the layers and KIND in the upper. Sparse kinds
# compute a quarter of the pairs of query and key, or less, from 2048 tokens on. SEEDS: "1 2 3" unless given. With -f
# each kind but dense goes on from dense's checkpoint of that step, instead of beginning anew; fit_content and
# fit_learned then choose for each layer by `attention fit`. CONFIG: configs/quality.yaml, which keeps checkpoints of
# every 650 steps. Runs stay in FOLDER/KIND[-from-STEP]-SEED: those that have ended are not trained again while they are
# there, and others go on. Ends with 1 if a run has failed.
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
config="$root/configs/quality.yaml" seeds='1 2 3' from='' out=runs/quality
usage() { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
die() { echo "quality.sh: $1" >&2; exit 2; }
while getopts c:s:f:o:h option; do
  case $option in
    c) config=$(realpath "$OPTARG") ;;
    s) seeds=$OPTARG ;;
    f) from=$OPTARG ;;
    o) out=$OPTARG ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || usage
corpus=$(realpath -m "$1")
shift
for number in $seeds ${from:+"$from"}; do
  [[ $number =~ ^[0-9]+$ ]] || die "$number is not a number"
done
[ -f "$config" ] || die "there is no file $config"
[ -f "$corpus" ] || die "there is no corpus $corpus: 'ringmaster data prepare' makes one"
kinds=() settings=()
while [ $# -gt 0 ]; do
  if [ "$1" = -- ]; then shift; settings=("$@"); break; fi
  kinds+=("$1"); shift
done
[ ${#kinds[@]} -gt 0 ] || kinds=(dense window local_global content learned distances importance pools mixed quarter)
ringmaster="$(realpath -m "${RINGMASTER:-$root/build/release/ringmaster}")"
[ -x "$ringmaster" ] || die "there is no $ringmaster: 'make program' builds it"

# A number from the settings, or else from the file.
number() {
  local value setting
  value=$(sed -n "s/.*[{ ]$2: *\([0-9]*\).*/\1/p" "$config" | head -n 1)
  for setting in ${settings[@]+"${settings[@]}"}; do case $setting in "$1.$2="*) value=${setting#*=} ;; esac; done
  [ -n "$value" ] || die "neither $config nor a setting says $1.$2"
  [[ $value =~ ^[0-9]+$ ]] || die "$1.$2=$value is not a number"
  echo "$value"
}
context=$(number model context) steps=$(number train steps)
block=64 blocks=$((context / 64))
keep=$((blocks / 8 > 4 ? blocks / 8 : 4))
# An indexer learns from all of attention until attention itself knows where to look: half of the steps, or a fifth of
# those that are left to one which goes on from dense attention; above windows a sixth was enough.
warm=$((from ? from + (steps - from) / 5 : steps / 2)) soon=$((from ? warm : steps / 6))
attention() { # KIND [STEPS]: with indexers that learn from all of attention for so many steps
  local near="local: $((keep / 2 + (keep > 4))), first: 1" rule pattern=$1 more='' warm=${2:-$warm}
  case $1 in
    dense) echo '{kind: dense}'; return ;;
    window) echo "{kind: window, window: $((context / 8)), sinks: 4}"; return ;;
    local_global) rule="local: $((keep - 1)), first: 1" ;;
    content) rule="$near, keep: $keep" ;;
    learned) rule="$near, keep: $keep" more=", index_warmup_steps: $warm" ;;
    distances) pattern=learned rule="$near, keep: $keep" more=", index_warmup_steps: $warm, index_distances: 32" ;;
    importance) rule="$near, keep: $keep, explore: $((keep > 4)), interval: 50" ;;
    pools) pattern=content rule="$near, keep: $keep" more=', pools: [64]' ;;
    mixed) pattern=content rule="$near, keep: $keep}, {local: $((keep - 1)), first: 1" more=', heads: [0, 1]' ;;
    quarter)
      pattern=content rule="$near, keep: $keep}, {local: $((keep - 1)), first: 1" more=', heads: [1, 1, 1, 0]'
      ;;
    *) die "there is no kind '$1'" ;;
  esac
  echo "{kind: block_sparse, block: $block, rules: [{pattern: $pattern, $rule}]$more}"
}
kind_settings() { # KIND SEED: one a line
  local layers
  case $1 in
    fit_*)
      "$ringmaster" attention fit "$(checkpoint_of "$2")" --pattern "${1#fit_}" |
        tee "fit-${1#fit_}-$from-$2.txt" | sed -n "s/^ *'\(model\..*\)'\( \\\\\)\{0,1\}$/\1/p"
      ;;
    upper_*)
      layers=$(number model layers)
      echo "model.attention=$(attention window)"
      echo "model.attention_layers=[{layers: $((layers / 2))-$((layers - 1)), attention: $(attention "${1#upper_}" "$soon")}]"
      ;;
    *) echo "model.attention=$(attention "$1")" ;;
  esac
}
for kind in "${kinds[@]}"; do
  case $kind in
    fit_content | fit_learned) [ -n "$from" ] || die "$kind goes on from dense: give -f STEP" ;;
    *) attention "${kind#upper_}" > /dev/null ;;
  esac
done

mkdir -p "$out"
cd "$out"
run_of() { if [ -z "$from" ] || [ "$1" = dense ]; then echo "$1-$2"; else echo "$1-from-$from-$2"; fi; }
checkpoint_of() { echo "dense-$1/checkpoints/step-$(printf '%09d' "$from")"; }
# The directory of a run that begins as dense did.
fork() {
  local checkpoint
  checkpoint=$(checkpoint_of "$2")
  [ -d "$checkpoint" ] || die "there is no $out/$checkpoint: train dense first, with checkpoints of this step"
  mkdir -p "$1/checkpoints"
  cp -r "$checkpoint" "$1/checkpoints"
  cp "dense-$2/tokenizer.rmt" "$1"
}
failed=0
train() { # KIND SEED
  local run more=()
  run=$(run_of "$1" "$2")
  if [ "$run" != "$1-$2" ]; then
    [ -d "$run/checkpoints" ] || fork "$run" "$2"
    more=(--allow-changes)
  fi
  mapfile -t kind_of_run < <(kind_settings "$1" "$2")
  [ ${#kind_of_run[@]} -gt 0 ] || { echo "quality.sh: $run has no settings" >&2; failed=1; return; }
  "$ringmaster" train "$config" run.directory="$run" run.seed="$2" data.path="$corpus" "${kind_of_run[@]}" \
    ${settings[@]+"${settings[@]}"} ${more[@]+"${more[@]}"} ||
    { echo "quality.sh: $run has failed" >&2; failed=1; }
}
for seed in $seeds; do
  for kind in "${kinds[@]}"; do train "$kind" "$seed"; done
done

last() {
  local loss
  loss=$(grep '"group": *"validation"' "$1/metrics.jsonl" 2> /dev/null | tail -n 1 |
    sed -n 's/.*"loss": *\([0-9.e-]*\).*/\1/p' || true)
  echo "${loss:--}"
}
# Mean of the validation losses of a kind, their range, and the mean of how much they are above dense's of the seed.
for kind in "${kinds[@]}"; do
  for seed in $seeds; do
    echo "$kind $(last "$(run_of "$kind" "$seed")") $(last "dense-$seed")"
  done
done | awk -v seeds="$(wc -w <<< "$seeds")" '
  BEGIN { printf "%-16s %5s %9s %21s %10s\n", "kind", "seeds", "loss", "range", "to dense" }
  $2 != "-" { if (!n[$1]++) { order[++kinds] = $1; low[$1] = high[$1] = $2 }
              sum[$1] += $2; if ($2 < low[$1]) low[$1] = $2; if ($2 > high[$1]) high[$1] = $2
              if ($3 != "-") { beside[$1]++; above[$1] += $2 / $3 - 1 } }
  END { for (i = 1; i <= kinds; i++) { k = order[i]
          printf "%-16s %5d %9.4f %9.4f to %8.4f", k, n[k], sum[k] / n[k], low[k], high[k]
          if (beside[k]) printf " %+8.2f %%", 100 * above[k] / beside[k]
          printf "\n" } }'
exit "$failed"
