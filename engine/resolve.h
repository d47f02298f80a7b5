#pragma once
// Turns settings as written into settings in which every value is filled in.

#include <cstdint>
#include <optional>
#include <utility>

#include "comm/mesh/mesh.h"
#include "engine/config.h"

namespace ring {

// Replaces train.epochs by train.steps, using the number of samples. Throws Error if the settings give no length of the
// run, if there are too many steps, or if a corpus is smaller than a sample.
void resolve_length(Config&, const Corpora&);

// Settings in which all derived values are filled in: vocabulary, widths, steps, threads. Only train.micro_batch and
// train.mlp_chunk may still be auto: the run chooses them (trainer/run_start.h). Only resolve_config() creates resolved
// settings, and it does not accept settings that are already resolved.
class ResolvedConfig : public Config {
  explicit ResolvedConfig(Config c) : Config(std::move(c)) {}
  friend ResolvedConfig resolve_config(Config, std::int64_t, int, std::optional<Backend>, bool);
};

// Fills in all derived values. launched: backend of the job's processes, if there are several. warn: true to log a
// warning if settings are replaced. Throws Error if the vocabulary is too small, and under the conditions of
// check_sizes().
ResolvedConfig resolve_config(Config, std::int64_t corpus_vocab, int world = 1, std::optional<Backend> launched = {},
                              bool warn = true);
ResolvedConfig resolve_config(Config, std::int64_t corpus_vocab, Mesh&);
template <class... More>
void resolve_config(const ResolvedConfig&, std::int64_t corpus_vocab, More&&...) = delete;

// Throws Error if the layout or the micro-batch (1 if it is auto) does not fit `world` processes, or if a micro-batch
// has more tokens than kernels can index.
void check_sizes(const ResolvedConfig&, int world);

}  // namespace ring
