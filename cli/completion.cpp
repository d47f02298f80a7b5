// Completions for shells. The shells' scripts know neither commands nor settings: they call this program when Tab is
// pressed.

#include <iostream>
#include <memory>

#include "cli/candidates.h"
#include "cli/command.h"
#include "cli/commands.h"

namespace ring {
namespace {

// Bash splits words at = and :. The script joins them again, and removes the part that is already typed from the
// answers.
constexpr const char* kBash = R"(# bash completion of ringmaster: source this, or put it into
# ~/.local/share/bash-completion/completions/ringmaster
_ringmaster() {
  local words=() word glue= i
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if [[ ${#words[@]} -gt 0 && ( -n $glue || $word == [=:]* ) ]]; then
      words[-1]+=$word
    else
      words+=("$word")
    fi
    glue=
    [[ $word == *[=:] ]] && glue=yes
  done
  local current=${words[-1]} before
  before=${current%"${current##*[=:]}"}
  mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" completion words -- "${words[@]}" 2>/dev/null | cut -f 1)
  COMPREPLY=("${COMPREPLY[@]#"$before"}")
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace
}
complete -o bashdefault -o default -F _ringmaster ringmaster
)";

constexpr const char* kZsh = R"(#compdef ringmaster
# zsh completion of ringmaster: put it into a folder of $fpath as _ringmaster, or source it after compinit
_ringmaster() {
  local -a whole parts
  local line text
  for line in "${(@f)$("${words[1]}" completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    [[ -n $line ]] || continue
    text=${line%%$'\t'*}
    line="${text//:/\\:}:${line#*$'\t'}"
    if [[ $text == *[=.] ]]; then parts+=("$line"); else whole+=("$line"); fi
  done
  (( ${#whole} + ${#parts} )) || { compset -P '*='; _files; return }
  (( ${#whole} )) && _describe -V 'ringmaster' whole
  (( ${#parts} )) && _describe -V 'setting' parts -S ''
}
if [[ ${funcstack[1]} == _ringmaster ]]; then _ringmaster "$@"; else compdef _ringmaster ringmaster; fi
)";

constexpr const char* kFish = R"(# fish completion of ringmaster: put it into ~/.config/fish/completions/ringmaster.fish
function __ringmaster_words
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] completion words -- $words[2..-1] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c ringmaster -f -a '(__ringmaster_words)'
)";

void add_script(Command completion, const char* shell, const char* script) {
  completion.add_subcommand(shell, std::string("Print the script for ") + shell).set_callback([script] {
    std::cout << script;
  });
}

void print(const std::vector<Candidate>& found) {
  for (const Candidate& c : found) std::cout << c.text << '\t' << c.about << '\n';
}

}  // namespace

void add_completion_commands(Command app) {
  const Command completion =
      app.add_subcommand("completion", "Print scripts that complete commands, options and settings in a shell");
  completion.require_subcommand();
  add_script(completion, "bash", kBash);
  add_script(completion, "zsh", kZsh);
  add_script(completion, "fish", kFish);
  auto words = std::make_shared<std::vector<std::string>>();
  const Command ask = completion.add_subcommand("words", "Print possible next words; the scripts call this");
  ask.add_option("words", *words, "The words so far, after --; the last one is unfinished");
  ask.set_callback([app, words] { print(completion_candidates(app, *words)); });
  completion.footer("Example: source <(ringmaster completion bash)");
}

}  // namespace ring
