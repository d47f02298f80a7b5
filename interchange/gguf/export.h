#pragma once
// A trained model as llama.cpp reads it.

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
  std::optional<GgufType> type;   // of matrices; none: the checkpoint's, f32 where its tensors differ
  std::function<bool()> stopped;  // asked between tensors; null: never
  std::int64_t context = 0;       // see set_exported_context()
};

struct GgufExported {
  std::string checkpoint, file, architecture;  // the latter as llama.cpp has it
  GgufType type = GgufType::f32;
  std::size_t tensors = 0;
  std::int64_t parameters = 0;
  std::vector<std::string> notes;  // what is not as one may expect, a sentence each
};

// Writes one file with weights, settings, tokenizer and chat template. One tensor is in memory at a time, as f32, and
// once more where its rows change places. The file appears by a rename when all is there. Error: it exists, the path is
// no run or checkpoint, or llama.cpp computes something else, or has no such tokenizer: with what to do then.
GgufExported export_to_gguf(const std::string& run_or_checkpoint, const std::string& file, const GgufOptions&);

}  // namespace ring
