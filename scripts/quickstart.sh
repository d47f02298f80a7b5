#!/usr/bin/env bash
# From nothing to a trained language model, in a few minutes on two cores: a vocabulary and a corpus of the C++ standard
# library headers of the installed compiler, a small Llama-style model, its validation loss, and a sample of what it writes.
#   scripts/quickstart.sh [SETTING=VALUE...]     for example train.steps=100
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
cd "$root"
ringmaster="${RINGMASTER:-build/release/ringmaster}"
work="${QUICKSTART_DIR:-runs/quickstart-data}"
run="${QUICKSTART_RUN:-runs/quickstart}"

if [ ! -x "$ringmaster" ]; then
  echo "quickstart.sh: $ringmaster is not built: run make quickstart" >&2
  exit 1
fi
headers="$(echo '#include <vector>' | "${CXX:-c++}" -x c++ -E - | awk -F'"' '$2 ~ /\/vector$/ && !found { found = $2 } END { sub(/\/vector$/, "", found); print found }')"
if [ -z "$headers" ]; then
  echo "quickstart.sh: the C++ compiler ${CXX:-c++} shows no standard headers: install g++, or set CXX" >&2
  exit 1
fi

say() { printf '\n== %s\n' "$*"; }
show() { printf '$ ringmaster%s\n' "$(printf ' %q' "$@")"; "$ringmaster" "$@"; }

mkdir -p "$work"
say "1. A vocabulary of 2048 pieces from $headers"
[ -f "$work/cpp.rmt" ] || show tokenizer train --input "$headers" --kind bpe --vocab-size 2048 \
  --max-train-bytes 6MB --output "$work/cpp.rmt"
say "2. The headers as tokens, 5 % of the files kept for validation"
[ -f "$work/cpp.h5" ] || show data prepare --input "$headers" --tokenizer "$work/cpp.rmt" --split hash \
  --validation-fraction 0.05 --output "$work/cpp.h5"
say "3. Training (settings: configs/quickstart.yaml)"
if [ -n "$(ls -A "$run/checkpoints" 2>/dev/null)" ]; then
  show train "$run" "$@" # goes on with the settings that it has now
else
  show train configs/quickstart.yaml run.directory="$run" data.path="$work/cpp.h5" "$@"
fi
say "4. Its loss on all of the validation files"
show eval "$run"
say "5. What it writes"
show generate "$run" --prompt $'  template<typename _Tp>\n    inline ' --temperature 0.7 --top-p 0.95 --max-tokens 160 --seed 3

cat <<TEXT

Go on with it:   $ringmaster train $run train.steps=2000 --allow-changes
Sample again:    $ringmaster generate $run --prompt 'namespace std' --seed 7
Your own text:   $ringmaster tokenizer train --input FOLDER --vocab-size 4096 --output my.rmt
                 $ringmaster data prepare --input FOLDER --tokenizer my.rmt --output my.h5
                 $ringmaster init my.yaml --name my --data my.h5
                 $ringmaster train my.yaml
TEXT
