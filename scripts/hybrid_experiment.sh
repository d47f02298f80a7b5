#!/usr/bin/env bash
# Compares three models with equal tokens and equal parameters on your texts: dense attention
# (configs/hybrid_dense.yaml), three gated delta nets for each layer of attention (configs/hybrid.yaml), and windows
# below blocks selected by content (configs/hybrid_selected.yaml). Prints a table of the validation loss, the needles
# found by length of the prompt, tokens/s in training, and the time of a training step with long sequences.
#   scripts/hybrid_experiment.sh TEXTS [FOLDER]
# TEXTS is a folder of text files, better 100 MB or more. Runs stay in FOLDER (runs/hybrid): finished parts are not
# repeated. Environment variables: SEEDS ("1 2 3"), STEPS (640), GLOB ('*'), TRIALS (20 prompts per length and depth),
# BENCH ("65536 262144": tokens per sequence of the timed steps), RINGMASTER (the program). MODEL=tiny is a trial on a
# CPU, for example with STEPS=3. Exits with status 1 if a run failed.
#
# Estimated work on one GPU, FLOPs of the models as docs/training.md counts them (640 steps of 32,768 tokens):
#   training      dense 11.2, hybrid 6.7, selected 6.4 PFLOP a run; three seeds 73 PFLOP: 245 s at 300 TFLOP/s
#   steps of 64K  0.17, 0.06 and 0.02 PFLOP, five each: 1.2 PFLOP; of 256K 2.6, 0.7, 0.08, five each: 17 PFLOP: 45 s
#   needles       1.5 million tokens a run: 14 million tokens, about 30 s
# With the start of 24 processes, about 7 minutes after the texts were tokenized, which runs on CPUs.
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
die() { echo "hybrid_experiment.sh: $1" >&2; exit 2; }
if [ $# -lt 1 ] || [ $# -gt 2 ] || [ "$1" = -h ]; then sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
[ -e "$1" ] || die "there is no $1: give a folder of text files"
texts="$(realpath "$1")" out="${2:-runs/hybrid}" seeds="${SEEDS:-1 2 3}" steps="${STEPS:-640}" trials="${TRIALS:-20}"
for number in $seeds $steps $trials ${BENCH:-}; do
  [[ $number =~ ^[1-9][0-9]*$ ]] || die "expected a positive number in SEEDS, STEPS, TRIALS and BENCH, got $number"
done
ringmaster="$(realpath -m "${RINGMASTER:-$root/build/release/ringmaster}")"
[ -x "$ringmaster" ] || die "there is no $ringmaster: 'make program' builds it"
context=8192 bench="${BENCH:-65536 262144}" settings=()
case ${MODEL:-small} in
  small) ;;
  tiny)
    context=2048 bench="${BENCH:-4096 8192}" trials="${TRIALS:-2}"
    settings=(model.context=2048 model.width=64 model.heads=1 model.kv_heads=1 model.mlp_width=128 train.batch_size=1
      data.validation_batches=2)
    ;;
  *) die "expected MODEL=small or MODEL=tiny, got ${MODEL:-}" ;;
esac
settings+=(model.vocab_size=8192)
configs=(hybrid_dense hybrid hybrid_selected)

# questions SEED DOCUMENTS FEWEST SENTENCES: JSON Lines. A document hides FEWEST to 16 numbers in up to SENTENCES
# sentences of filler (log-uniform), and asks for each of them. The wording is that of `eval --long-tasks needles`.
questions() {
  awk -v state="$1" -v documents="$2" -v fewest="$3" -v sentences="$4" '
    function below(n) { state = state * 48271 % 2147483647; return int(state / 2147483647 * n) } # MINSTD
    function shuffle(a, n, i, j, t) { for (i = n; i > 1; i--) { j = 1 + below(i); t = a[i]; a[i] = a[j]; a[j] = t } }
    BEGIN {
      names = split("apple bridge candle desert engine forest garden hammer island jacket kettle ladder mirror " \
                    "needle orange pencil", name, " ")
      split(" The grass is green.| The sky is blue.| The sun is yellow.| Here we go.| There and back again.", said, "|")
      for (d = 0; d < documents; d++) {
        shuffle(name, names)
        count = fewest + below(names - fewest + 1)
        length_ = sentences ? int(exp(below(1000000) / 1000000 * log(sentences + 1))) : 0
        split("", at)
        for (i = 1; i <= count; i++) {
          number[name[i]] = sprintf("%05d", below(100000))
          place = below(length_ + 1)
          at[place] = at[place] "\\nThe number of " name[i] " is " number[name[i]] ".\\n"
        }
        text = "Read the text below with care. A question about it follows at its end.\\n"
        for (i = 0; i <= length_; i++) text = text at[i] (i < length_ ? said[1 + (d + i) % 5] : "")
        shuffle(name, count) # the questions have a different order from the facts
        for (i = 1; i <= count; i++)
          text = text "\\nWhat is the number of " name[i] "? The number of " name[i] " is " number[name[i]]
        print "{\"text\": \"" text "\"}"
      }
    }'
}

mkdir -p "$out"
cd "$out"
prepare() { "$ringmaster" data prepare --tokenizer tokenizer.rmt "$@"; }
[ -f tokenizer.rmt ] || "$ringmaster" tokenizer train --input "$texts" --glob "${GLOB:-*}" --kind byte-bpe \
  --vocab-size 8192 --output tokenizer.rmt
[ -f text.h5 ] || prepare --input "$texts" --glob "${GLOB:-*}" --output text.h5
[ -f questions-short.h5 ] || { questions 1 8000 16 0 > questions-short.jsonl
  prepare --input questions-short.jsonl --validation-fraction 0 --output questions-short.h5; }
[ -f questions.h5 ] || { questions 2 4000 4 1300 > questions.jsonl
  prepare --input questions.jsonl --validation-fraction 0 --output questions.h5; }

failed=0
attempt() { "$@" || { echo "hybrid_experiment.sh: failed: $*" >&2; failed=1; return 1; } }
lengths="$((context / 8)),$((context / 4)),$((context / 2)),$context"
for seed in $seeds; do
  for config in "${configs[@]}"; do
    run="$config-$seed"
    attempt "$ringmaster" train "$root/configs/$config.yaml" run.directory="$run" run.seed="$seed" \
      train.steps="$steps" schedule.warmup_steps=$((steps / 16)) schedule.decay_steps=$((steps / 3)) \
      train.log_interval=$((steps < 40 ? 1 : 20)) "${settings[@]}" || continue
    [ -s "$run/needles.csv" ] || { attempt "$ringmaster" eval "$run" --long --long-tasks needles --lengths "$lengths" \
      --trials "$trials" --batches 1 --csv > "$run/needles.part" && mv "$run/needles.part" "$run/needles.csv"; } || true
  done
done
for length in $bench; do
  for config in "${configs[@]}"; do
    csv="bench-$config-$length.csv"
    [ -s "$csv" ] || { rm -f "$csv.part" && attempt "$ringmaster" bench step "$root/configs/$config.yaml" \
      "${settings[@]}" model.context="$length" train.batch_size=1 --warmup 2 --steps 3 --no-ceilings \
      --csv "$csv.part" && mv "$csv.part" "$csv"; } || true
  done
done

# value RUN GROUP KEY FORMAT: the formatted value in the last record of this group; - if there is none
value() {
  local found
  found=$(grep "\"group\": *\"$2\"" "$1/metrics.jsonl" 2> /dev/null | tail -n 1 |
    sed -n "s/.*\"$3\": *\([0-9.e+-]*\).*/\1/p" || true)
  if [ -n "$found" ]; then awk -v x="$found" "BEGIN { printf \"$4\", x }"; else echo -; fi
}
needles() { # RUN LENGTH
  [ -s "$1/needles.csv" ] || { echo -; return; }
  awk -F, -v tokens="$2" '$1 == "needles" && $2 == tokens { n++; exact += $7; log_probability += $8 }
    END { printf "%.1f%% %.3f", 100 * exact / n, log_probability / n }' "$1/needles.csv"
}
step_ms() { # CONFIG LENGTH
  [ -s "bench-$1-$2.csv" ] || { echo -; return; }
  awk -F, 'END { printf "%.1f", $3 }' "bench-$1-$2.csv"
}
echo "needles: exact answers, and mean log-probability of their tokens; ms: a training step over one sequence"
printf '%-16s %4s %7s' config seed loss
for length in ${lengths//,/ }; do printf ' %14s' "needles $length"; done
printf ' %10s' tokens/s
for length in $bench; do printf ' %12s' "ms $length"; done
echo
for config in "${configs[@]}"; do
  for seed in $seeds; do
    run="$config-$seed"
    printf '%-16s %4s %7s' "$config" "$seed" "$(value "$run" validation loss %.4f)"
    for length in ${lengths//,/ }; do printf ' %14s' "$(needles "$run" "$length")"; done
    printf ' %10s' "$(value "$run" train tokens_per_second %.0f)"
    for length in $bench; do printf ' %12s' "$(step_ms "$config" "$length")"; done
    echo
  done
done
exit "$failed"
