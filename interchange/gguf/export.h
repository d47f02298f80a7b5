#pragma once
// Export of a trained model for llama.cpp.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "evaluate/session.h"
#include "interchange/gguf/type.h"

namespace ring {

struct GgufOptions {
  SavedWeights weights = SavedWeights::latest;
  std::optional<GgufType> type;   // type of matrices; nullopt: the checkpoint's type, or f32 if its tensors differ
  std::function<bool()> stopped;  // polled between tensors; true aborts with Error; may be null
  std::int64_t context = 0;       // context to declare; see set_exported_context()
};

struct GgufExported {
  std::string checkpoint, file, architecture;  // architecture: llama.cpp's name
  GgufType type = GgufType::f32;
  std::size_t tensors = 0;
  std::int64_t parameters = 0;
  std::vector<std::string> notes;  // differences from the run that a user may not expect, one sentence each
};

// Writes one file with weights, settings, tokenizer and chat template. Holds one tensor in memory at a time, as f32,
// twice if its rows are reordered. The file appears by a rename once it is complete. Throws Error, with the remedy, if
// the file exists, the path is no run or checkpoint, or llama.cpp does not support the model or tokenizer.
GgufExported export_to_gguf(const std::string& run_or_checkpoint, const std::string& file, const GgufOptions&);

}  // namespace ring
