#pragma once
// From settings as they are written to settings that say everything.

#include <cstdint>
#include <optional>

#include "comm/mesh/mesh.h"
#include "engine/config.h"

namespace ring {

// Turns train.epochs into train.steps, now that it is known how many samples there are. Throws Error if the settings
// give no length of the run, if the steps are too many, or if a corpus is smaller than a sample.
void resolve_length(Config&, const Corpora&);

// The settings with everything derived filled in: vocabulary, widths, steps, threads. launched: where each of several
// processes computes; warn: whether this one warns. Error: the vocabulary is too small, or what plan_of() refuses.
Config resolve_config(Config, std::int64_t corpus_vocab, int world = 1, std::optional<Backend> launched = {},
                      bool warn = true);
Config resolve_config(Config, std::int64_t corpus_vocab, Mesh&);

}  // namespace ring
