#pragma once
// What the ranks of a run compare before they compute: all settings but those that are each rank's own (rank_local() in
// core/fields.h), the program, and what they read.

#include <cstdint>
#include <string>
#include <vector>

#include "comm/agree.h"
#include "comm/mesh/mesh.h"
#include "data/config.h"
#include "engine/config.h"
#include "job/options.h"

namespace ring {

Topic settings_topic();
// more: what else this command was told.
Facts facts_of_start(const Config&, Backend device, const CommOptions&, const Facts& more = {});

// Returns the hash of each layer's block files, without repetitions, in the order of the layers.
std::vector<std::uint64_t> block_file_hashes(const ModelConfig& resolved);

// Corpora by their hashes, wherever they lie.
Facts facts_of_data(const Corpora&);
// Opens what the settings name. Error, on every rank: others read something else.
Corpora open_agreed_corpora(const Config&, Mesh&);
// Error, on every rank: not all of them find the same checkpoint under this path.
void agree_on_checkpoint(const std::string& path, Mesh&);

}  // namespace ring
