#pragma once
// Published weights as a run of this program: what generate, eval, export and run.init_from take.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "interchange/hf/family.h"

namespace ring {

inline constexpr const char* kNoTokenizer = "none";

struct ImportOptions {
  std::string tokenizer;                // as load_tokenizer() takes it, or kNoTokenizer; empty: that of the folder
  std::uint64_t shard_bytes = 1 << 30;  // of tensors in a shard, unless one alone is larger
  std::function<bool()> stopped;        // asked between tensors; null: never
};

struct Imported {
  std::string run;
  Family family = Family::llama;
  std::size_t tensors = 0;
  std::int64_t parameters = 0;
  std::vector<std::string> notes;  // what is not as one may expect, a sentence each
};

// Throws Error if there is no such folder, with how to download it if it may be a name on Hugging Face.
void check_import_folder(const std::string& folder);

// Reads config.json and the safetensors of a folder, and writes a run's directory with a checkpoint of step 0 that
// holds weights alone: F32 and BF16 with their bits, F16 as f32. config.yaml, model.yaml with the section model alone,
// and the tokenizer and its chat template if there are any. Checkpoints have shards of about 1 GiB; any layout of
// processes reads from them what it owns. At most one tensor is copied into memory at a time, one that has to be
// converted. The run appears by a rename, after its checkpoint was read back. Error: it exists, config.json asks for
// what this program does not have, with the key, or tensors are missing, not known, of another shape, damaged or not
// finite, or the folder's tokenizer cannot be read.
Imported import_from_hf(const std::string& folder, const std::string& run, const ImportOptions&);

}  // namespace ring
