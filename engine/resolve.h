#pragma once
// From settings as they are written to settings that say everything.

#include <cstdint>
#include <optional>
#include <utility>

#include "comm/mesh/mesh.h"
#include "engine/config.h"

namespace ring {

// Turns train.epochs into train.steps, now that it is known how many samples there are. Throws Error if the settings
// give no length of the run, if the steps are too many, or if a corpus is smaller than a sample.
void resolve_length(Config&, const Corpora&);

// Settings with everything derived filled in: vocabulary, widths, steps, threads. Only train.micro_batch and
// train.mlp_chunk may still be auto: the run chooses them (trainer/run_start.h). Only resolve_config() makes such
// settings, and it does not take them.
class ResolvedConfig : public Config {
  explicit ResolvedConfig(Config c) : Config(std::move(c)) {}
  friend ResolvedConfig resolve_config(Config, std::int64_t, int, std::optional<Backend>, bool);
};

// launched: the backend of each of several processes; warn: this process warns. Throws Error if the vocabulary is too
// small, and as check_sizes().
ResolvedConfig resolve_config(Config, std::int64_t corpus_vocab, int world = 1, std::optional<Backend> launched = {},
                              bool warn = true);
ResolvedConfig resolve_config(Config, std::int64_t corpus_vocab, Mesh&);
template <class... More>
void resolve_config(const ResolvedConfig&, std::int64_t corpus_vocab, More&&...) = delete;

// Throws Error if the layout or the micro-batch (auto stands for 1) does not fit `world` processes, or if a micro-batch
// has more tokens than kernels can number.
void check_sizes(const ResolvedConfig&, int world);

}  // namespace ring
