#include "cli/config_docs.h"

#include "core/fields.h"
#include "trainer/config.h"

namespace ring {
namespace {

constexpr const char* kIntroduction = R"(# Configuration

This page is printed by `ringmaster config docs`; a test compares the two.

A run is described by a YAML file, and every key of it can be changed on the command line:

    ringmaster train configs/quickstart.yaml optimizer.lr=1e-3 train.steps=500 run.name=second

* `a.b=c` sets one key, `list[0].key=c` one key of an element, `a={b: c, d: e}` several; the value is YAML.
  Later ones win over earlier ones, and all of them over the file.
* `include: base.yaml` at the top of a file (relative to it; or a list of files) reads those first.
  Sections are merged, lists are replaced. A file that several others include is read once, where it comes first.
* Integers may be written as `3e9`. `null` unsets a key whose type allows it. Every number has a range that all its uses
  can hold; it is checked exactly, together with what is derived from several: the tokens of a step and of the run,
  steps, parameters.
* Keys that are not given have the default below. `ringmaster config show FILE [a.b=c ...]` prints all of them.
* Every mistake is reported, with its file and line, before anything else happens; of more than 20 the first ones.
* A file has at most 1 MiB and is a file: no pipe, no device. Lists and sections nest at most 64 deep, includes 32, of
  at most 256 files. An alias counts as what it stands for: 524,288 values or 4 MiB of them are the most, and a
  text has at most 4,096 bytes.

The resolved configuration is stored with the run and in its checkpoints; a run is resumed only with the same one,
except for keys that change no number of the training.

)";

}  // namespace

std::string configuration_reference() { return kIntroduction + describe_config<Config>(); }

}  // namespace ring
