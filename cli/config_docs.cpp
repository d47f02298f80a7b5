#include "cli/config_docs.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/fields.h"
#include "engine/config.h"

namespace ring {
namespace {

constexpr const char* kIntroduction = R"(# Configuration

`ringmaster config docs` prints this page; a test compares the two.

A YAML file describes a run, and every key of it can be changed on the command line:

    ringmaster train configs/quickstart.yaml optimizer.lr=1e-3 train.steps=500 run.name=second

## The ten settings you need first

`ringmaster init` writes a file with all of them, chosen for your text and machine.

| setting | what to choose |
|---|---|
| `run.name` | the folder below `runs/`; a new name is a new run |
| `data.path` | the corpus that `ringmaster data prepare` wrote |
| `model.layers` | the depth; with `model.width` and `model.heads` it decides the size |
| `model.width` | channels, a multiple of `model.heads` |
| `model.heads` | `model.width` / 64 is usual |
| `model.context` | tokens that the model sees at once |
| `train.steps` | how long to train; or `train.tokens`, `train.epochs`, `train.minutes` |
| `train.batch_size` | sequences of a step, over all processes |
| `optimizer.lr` | the highest learning rate; `schedule.warmup_steps` sets how long it rises |
| `checkpoint.auto` | `true` saves as often as failures require; else every `checkpoint.interval` steps |

## All settings

Each key below is followed by its type or its choices, its range and its default, then by its meaning.

* `a.b=c` sets one key, `list[0].key=c` one key of an element, `a={b: c, d: e}` several; the value is YAML.
  Later ones override earlier ones, and all of them override the file.
* `include: base.yaml` at the top of a file (relative to it; or a list of files) reads those files first.
  Sections are merged, lists are replaced. A file that several others include is read once, where it comes first.
* If the `kind` of an attention or the `pattern` of a block rule is overridden, on the command line or by the including
  file, earlier settings that only other kinds or patterns have are dropped.
* Integers may be written as `3e9`, and sizes in bytes with a unit: `1.5GB` is 1,500,000,000, `1GiB` 1,073,741,824.
  `null` unsets a key whose type allows it. Every number has a range that all its uses can hold. It is checked exactly,
  together with what is derived from several numbers: the tokens of a step and of the run, steps, parameters.
* Keys that are not given have the default below. `ringmaster config show FILE [a.b=c ...]` prints all keys.
* Every mistake is reported, with its file and line, before anything else happens. If there are more than 20, the first
  20 are listed.
* A file has at most 1 MiB and is a regular file: no pipe, no device. Lists and sections nest at most 64 deep, includes
  32 levels, with at most 256 files. An alias counts with the size of its content: at most 524,288 values or 4 MiB in
  all. A text has at most 4,096 bytes.

The resolved configuration is stored with the run and in its checkpoints. A run resumes only with the same
configuration, except for keys that do not change the results of training.

)";

constexpr std::string_view kHead = "## `";

struct ReferenceSection {
  std::string name;  // e.g. "model.attention"
  std::string text;  // includes the heading
};

std::vector<ReferenceSection> sections_of(const std::string& reference) {
  std::vector<ReferenceSection> sections;
  for (std::size_t at = reference.find(kHead); at != std::string::npos;) {
    const std::size_t name = at + kHead.size(), next = reference.find(kHead, name);
    sections.push_back({reference.substr(name, reference.find('`', name) - name), reference.substr(at, next - at)});
    at = next;
  }
  return sections;
}

// Returns the offset of the keys in a section's text, i.e. after its heading and description.
std::size_t keys_at(const std::string& text) { return std::min(text.find("* **`"), text.size()); }

// Returns the keys of a section and its subsections, with names relative to `name` and without white space.
std::string keys_in(const std::vector<ReferenceSection>& all, const std::string& name) {
  std::string keys;
  for (const ReferenceSection& s : all)
    if (s.name == name || s.name.starts_with(name + ".") || s.name.starts_with(name + "["))
      keys += s.text.substr(keys_at(s.text));
  const std::string begin = "**`" + name;
  for (std::size_t at = keys.find(begin); at != std::string::npos; at = keys.find(begin, at))
    keys.erase(at, begin.size());
  std::erase_if(keys, [](char c) { return c == ' ' || c == '\n'; });
  return keys;
}

std::string last_word(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// Returns an earlier section with the same keys; null if there is none.
const ReferenceSection* same_before(const std::vector<ReferenceSection>& all, const ReferenceSection& section) {
  for (const ReferenceSection& s : all) {
    if (&s == &section) return nullptr;
    if (last_word(s.name) == last_word(section.name) && keys_in(all, s.name) == keys_in(all, section.name)) return &s;
  }
  return nullptr;
}

std::string anchor_of(std::string name) {
  std::erase_if(name, [](char c) { return c == '.' || c == '[' || c == ']'; });
  return "#" + name;
}

// Replaces sections that repeat an earlier one by a reference.
std::string without_repetitions(const std::string& reference) {
  const std::vector<ReferenceSection> all = sections_of(reference);
  std::string out = reference.substr(0, reference.find(kHead)), repeated;
  for (const ReferenceSection& s : all) {
    if (!repeated.empty() && s.name.starts_with(repeated)) continue;
    repeated.clear();
    if (const ReferenceSection* same = same_before(all, s)) {
      repeated = s.name;
      out += str(s.text.substr(0, keys_at(s.text)), "The keys are those of [`", same->name, "`](",
                 anchor_of(same->name), "), each named `", s.name, ".KEY`.\n\n");
    } else {
      out += s.text;
    }
  }
  return out;
}

}  // namespace

std::string configuration_reference() { return kIntroduction + without_repetitions(describe_config<Config>()); }

}  // namespace ring
