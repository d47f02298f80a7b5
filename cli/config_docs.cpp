#include "cli/config_docs.h"

#include "core/fields.h"
#include "engine/config.h"

namespace ring {
namespace {

constexpr const char* kIntroduction = R"(# Configuration

`ringmaster config docs` prints this page; a test compares the two.

A YAML file describes a run, and every key of it can be changed on the command line:

    ringmaster train configs/quickstart.yaml optimizer.lr=1e-3 train.steps=500 run.name=second

Each key below is followed by its type or its choices, its range and its default, then by its meaning.

* `a.b=c` sets one key, `list[0].key=c` one key of an element, `a={b: c, d: e}` several; the value is YAML.
  Later ones override earlier ones, and all of them override the file.
* `include: base.yaml` at the top of a file (relative to it; or a list of files) reads those files first.
  Sections are merged, lists are replaced. A file that several others include is read once, where it comes first.
* A `kind` of attention, or the `pattern` of a rule of blocks, that is given later, on the command line or by the file
  that includes, leaves out the settings from before it that only other kinds or patterns have.
* Integers may be written as `3e9`, and what is in bytes with a unit: `30MB` is 30,000,000, `1GiB` 1,073,741,824.
  `null` unsets a key whose type allows it. Every number has a range that all its uses can hold. It is checked exactly,
  together with what is derived from several numbers: the tokens of a step and of the run, steps, parameters.
* Keys that are not given have the default below. `ringmaster config show FILE [a.b=c ...]` prints all of them.
* Every mistake is reported, with its file and line, before anything else happens. If there are more than 20, the first
  20 are listed.
* A file has at most 1 MiB and is a regular file: no pipe, no device. Lists and sections nest at most 64 deep, includes
  32, of at most 256 files. An alias counts as what it stands for, at most 524,288 values or 4 MiB in all. A text has at
  most 4,096 bytes.

The resolved configuration is stored with the run and in its checkpoints. A run is resumed only with the same
configuration, except for keys that change no number of the training.

)";

}  // namespace

std::string configuration_reference() { return kIntroduction + describe_config<Config>(); }

}  // namespace ring
