#pragma once
// Export of trained models for llama.cpp.

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
  // Type of matrices; nullopt means the checkpoint's type, or f32 if its tensors differ in type.
  std::optional<GgufType> type;
  std::function<bool()> stopped;  // polled between tensors; if it returns true, aborts with Error; may be null
  std::int64_t context = 0;       // context to declare; see set_exported_context()
  bool merge = false;             // merge low-rank adapters (model.lora); they cannot be exported otherwise
};

struct GgufExported {
  std::string checkpoint, file, architecture;  // architecture: name in llama.cpp
  GgufType type = GgufType::f32;
  std::size_t tensors = 0;
  std::int64_t parameters = 0;
  std::vector<std::string> notes;  // unexpected differences from the run, one sentence each
};

// Writes one file with weights, settings, tokenizer and chat template. Holds one tensor at a time in memory, as f32,
// and a second copy if its rows are reordered. The file appears by a rename once it is complete. Throws Error, with the
// remedy, if the file exists, the path is not a run or checkpoint, or llama.cpp does not support the model or
// tokenizer.
GgufExported export_to_gguf(const std::string& run_or_checkpoint, const std::string& file, const GgufOptions&);

}  // namespace ring
