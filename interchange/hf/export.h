#pragma once
// Export of trained models for Hugging Face's transformers.

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
  std::optional<FloatType> type;            // nullopt means the checkpoint's type, or f32 if its tensors differ in type
  std::uint64_t max_bytes = 5'000'000'000;  // maximum size of one file
  std::function<bool()> stopped;  // polled between tensors; if it returns true, aborts with Error; may be null
  std::int64_t context = 0;       // context to declare; see set_exported_context()
  bool merge = false;             // merge low-rank adapters (model.lora) instead of exporting only them
};

struct Exported {
  std::string checkpoint, folder;
  Family family = Family::llama;
  bool adapter = false;  // true if only adapters were exported
  FloatType type = FloatType::f32;
  std::size_t tensors = 0;
  std::int64_t parameters = 0;
  std::vector<std::string> notes;  // unexpected differences from the run, one sentence each
};

// Writes a folder that transformers' from_pretrained() reads: weights as safetensors, config.json,
// generation_config.json, tokenizer.rmt, and tokenizer_config.json with tokenizer.json or SentencePiece's
// tokenizer.model, if the tokenizer is one of these. A chat template is stored in tokenizer_config.json and beside
// tokenizer.rmt. Low-rank adapters are merged into the weights (model.lora). Holds one tensor at a time in memory, as
// f32. The folder appears by a rename once it is complete. Throws Error if the folder exists, if the path is not a run
// or checkpoint, or if no published family has the run's settings (then names the key).
Exported export_to_hf(const std::string& run_or_checkpoint, const std::string& folder, const ExportOptions&);

}  // namespace ring
