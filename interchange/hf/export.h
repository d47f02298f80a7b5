#pragma once
// A trained model as other programs read it.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/safetensors/float_type.h"
#include "evaluate/session.h"
#include "interchange/hf/family.h"

namespace ring {

struct ExportOptions {
  SavedWeights weights = SavedWeights::latest;
  std::optional<FloatType> type;             // none: the checkpoint's, f32 where its tensors differ
  std::uint64_t most_bytes = 5'000'000'000;  // of one file
  std::function<bool()> stopped;             // asked between tensors; null: never
  std::int64_t context = 0;                  // see set_exported_context()
};

struct Exported {
  std::string checkpoint, folder;
  Family family = Family::llama;
  FloatType type = FloatType::f32;
  std::size_t tensors = 0;
  std::int64_t parameters = 0;
  std::vector<std::string> notes;  // what is not as one may expect, a sentence each
};

// Writes a folder that transformers' from_pretrained() reads: weights as safetensors, config.json,
// generation_config.json, tokenizer.rmt, and tokenizer.json or SentencePiece's tokenizer.model, where the tokenizer is
// one, with tokenizer_config.json. A chat template goes into the latter, and beside tokenizer.rmt.
// One tensor is in memory at a time, as f32. The folder appears by a rename when all is there. Error: it exists, the
// path is no run or checkpoint, or its settings are of no published family, with the key.
Exported export_to_hf(const std::string& run_or_checkpoint, const std::string& folder, const ExportOptions&);

}  // namespace ring
