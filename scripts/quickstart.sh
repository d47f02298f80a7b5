#!/usr/bin/env bash
# From nothing to a trained language model, in a few minutes on two cores: a vocabulary and a corpus of texts that are on this
# machine, a small Llama-style model, its validation loss, and a sample of what it writes. The texts are the C++ standard
# library headers of the installed compiler; without a compiler, Python's standard library.
#   scripts/quickstart.sh [SETTING=VALUE...]     for example train.steps=100
# QUICKSTART_TEXT=FOLDER and QUICKSTART_GLOB='*.txt' choose other texts.
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
if [ -e "$root/Makefile" ]; then
  cd "$root"
  ringmaster=build/release/ringmaster configs=configs
else  # in a package
  ringmaster="$(readlink -f "$root/../../bin/ringmaster")" configs="$root/configs"
fi
ringmaster="${RINGMASTER:-$ringmaster}"
work="${QUICKSTART_DIR:-runs/quickstart-data}"
run="${QUICKSTART_RUN:-runs/quickstart}"

if [ ! -x "$ringmaster" ]; then
  echo "quickstart.sh: $ringmaster is not built: run make quickstart" >&2
  exit 1
fi

headers() {
  echo '#include <vector>' | "${CXX:-c++}" -x c++ -E - 2>/dev/null |
    awk -F'"' '$2 ~ /\/vector$/ && !found { found = $2 } END { sub(/\/vector$/, "", found); print found }'
}
python_library() {
  python3 -c 'import os, sysconfig
for name in "asyncio concurrent ctypes email http importlib json logging multiprocessing unittest urllib xml".split():
    folder = os.path.join(sysconfig.get_path("stdlib"), name)
    if os.path.isdir(folder): print(folder)' 2>/dev/null
}
files=() prompt=$'\n'
if [ -n "${QUICKSTART_TEXT:-}" ]; then
  texts=("$QUICKSTART_TEXT") files=(--glob "${QUICKSTART_GLOB:-*}")
elif mapfile -t texts < <(headers) && [ -n "${texts[*]}" ]; then
  prompt=$'  template<typename _Tp>\n    inline '
elif mapfile -t texts < <(python_library) && [ -n "${texts[*]}" ]; then
  files=(--glob '*.py') prompt=$'    def '
else
  echo "quickstart.sh: there is no C++ compiler and no Python whose texts it could use. Name a folder of texts: QUICKSTART_TEXT=FOLDER (a few MB)" >&2
  exit 1
fi

say() { printf '\n== %s\n' "$*"; }
show() { printf '$ ringmaster%s\n' "$(printf ' %q' "$@")"; "$ringmaster" "$@"; }

mkdir -p "$work"
say "1. A vocabulary of 2048 pieces from ${texts[*]}"
[ -f "$work/text.rmt" ] || show tokenizer train --input "${texts[@]}" "${files[@]}" --kind bpe --vocab-size 2048 \
  --max-train-bytes 6MB --output "$work/text.rmt"
say "2. The texts as tokens, 5 % of the files kept for validation"
[ -f "$work/text.h5" ] || show data prepare --input "${texts[@]}" "${files[@]}" --tokenizer "$work/text.rmt" --split hash \
  --validation-fraction 0.05 --output "$work/text.h5"
say "3. Training (settings: configs/quickstart.yaml)"
if [ -n "$(ls -A "$run/checkpoints" 2>/dev/null)" ]; then
  show train "$run" "$@" # goes on with the settings that it has now
else
  show train "$configs/quickstart.yaml" run.directory="$run" data.path="$work/text.h5" "$@"
fi
say "4. Its loss on all of the validation files"
show eval "$run"
say "5. What it writes"
show generate "$run" --prompt "$prompt" --temperature 0.7 --top-p 0.95 --max-tokens 160 --seed 3

cat <<TEXT

Go on with it:   $ringmaster train $run train.steps=2000 --allow-changes
Sample again:    $ringmaster generate $run --prompt 'class ' --seed 7
Your own text:   $ringmaster tokenizer train --input FOLDER --vocab-size 4096 --output my.rmt
                 $ringmaster data prepare --input FOLDER --tokenizer my.rmt --output my.h5
                 $ringmaster init my.yaml --name my --data my.h5
                 $ringmaster train my.yaml
TEXT
