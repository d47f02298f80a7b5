#pragma once
// Files that a run keeps of the published weights with which it began, so that an export has what the import had.
//
//   generation_config.json   how texts end and are sampled (evaluate/generation_config.h)
//   imported_tokenizer_config.json
//                            the tokenizer_config.json that came with the tokenizer: how transformers uses it, e.g.
//                            to pad; only while the run's tokenizer is the same

#include <string>

#include "engine/run_directory.h"

namespace ring {

inline constexpr const char* kGenerationFile = "generation_config.json";
// Not tokenizer_config.json, in which a run would look for its chat template.
inline constexpr const char* kTokenizerConfigFile = "imported_tokenizer_config.json";

// Returns the text of a kept file that is beside a checkpoint or in the checkpoint's run, without a byte order mark;
// empty if there is none.
std::string kept_text_of(const std::string& checkpoint, const char* file);

// Copies the kept files of the weights with which a run starts (init_from) into the run's directory, whose tokenizer
// has been written. If init_from is empty, removes the run's files.
void copy_kept_files(const RunDirectory&, const std::string& init_from);

}  // namespace ring
