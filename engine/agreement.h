#pragma once
// Facts that the ranks of a run compare before they compute: the program, the data that they read, and all settings
// except those that each rank may choose for itself (rank_local() in core/fields.h).

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
// Returns the facts of the settings and the program. extra_facts: further facts, such as command-line options.
Facts facts_of_start(const Config&, Backend device, const CommOptions&, const Facts& extra_facts = {});

// Returns the hash of each layer's block file, without duplicates, in the order of the layers.
std::vector<std::uint64_t> block_file_hashes(const ModelConfig& resolved);

// Returns the hashes of the corpora. Paths do not affect them.
Facts facts_of_data(const Corpora&);
// Opens the corpora that the settings name. Collective. Throws Error on every rank if the ranks read different data.
Corpora open_agreed_corpora(const Config&, Mesh&);
// Throws Error on every rank if the ranks do not find the same checkpoint at this path. Collective.
void agree_on_checkpoint(const std::string& path, Mesh&);

}  // namespace ring
