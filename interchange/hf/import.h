#pragma once
// Import of published weights as a run that generate, eval, export and run.init_from accept.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "interchange/hf/family.h"

namespace ring {

inline constexpr const char* kNoTokenizer = "none";

struct ImportOptions {
  std::string tokenizer;                // as for load_tokenizer(), or kNoTokenizer; if empty, the folder's tokenizer
  std::uint64_t shard_bytes = 1 << 30;  // maximum bytes of tensors per shard, unless a single tensor is larger
  std::function<bool()> stopped;        // polled between tensors; if it returns true, aborts with Error; may be null
};

struct Imported {
  std::string run;
  Family family = Family::llama;
  std::size_t tensors = 0;
  std::int64_t parameters = 0;
  std::vector<std::string> notes;  // unexpected differences from the folder, one sentence each
};

// Throws Error if the folder does not exist, with the download command if the name may be that of a model on Hugging
// Face.
void check_import_folder(const std::string& folder);

// Reads config.json and the safetensors of a folder, and writes a run directory: a checkpoint of step 0 with only
// weights (F32 and BF16 bit-identical, F16 as f32), config.yaml, model.yaml with only the section `model`, and the
// tokenizer and its chat template if there are any. Shards have about 1 GiB; processes in any layout can read their
// part of a shard. Copies at most one tensor at a time into memory, and only if it must be converted. The run appears
// by a rename, after its checkpoint has been read back. Throws Error if the run exists, if config.json requires an
// unsupported feature (names the key), if tensors are missing, unknown, of the wrong shape, damaged or not finite, or
// if the folder's tokenizer cannot be read.
Imported import_from_hf(const std::string& folder, const std::string& run, const ImportOptions&);

}  // namespace ring
