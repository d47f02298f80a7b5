#pragma once
// Reads the weights and settings of a checkpoint for an export.

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/safetensors/float_type.h"
#include "engine/origin.h"
#include "interchange/hf/config.h"
#include "interchange/hf/names.h"
#include "text/tokenizer.h"

namespace ring {

// Throws Error if the checkpoint lacks a tensor. The expected names follow from the checkpoint's own settings, so a
// checkpoint that lacks one is damaged or was written by a different program.
void check_has_tensors(const FoundCheckpoint&, const std::vector<PublishedTensor>&);
// Reads a published tensor as f32: its parts are concatenated along rows, and transposed if the family requires it.
// lora: resolved settings of the checkpoint's adapters, which are added to the weights; without it they are not.
std::vector<float> read_published_values(const FoundCheckpoint&, const PublishedTensor&, const LoraConfig& lora = {});
// Throws Error if adapters should be merged, but the checkpoint has none.
void check_merge(bool merge, const Origin&);
// Returns the smallest type that holds all tensors exactly: f32 if their types differ.
FloatType widest_type(const FoundCheckpoint&, const std::vector<PublishedTensor>&);

// Sets model.context to the context that an export declares: `wanted` (--context) or, if `wanted` is 0, the longest of
// the run's own context, the contexts of the models it was initialized from (along run.init_from, as far as they still
// exist), and rope.original_context. Adds a note if the result differs from the run's own context. Throws Error if
// `wanted` does not fit the model's positions.
void set_exported_context(ModelConfig& model, const Origin&, std::int64_t wanted, std::vector<std::string>& notes);

TextEnds text_ends_of(const Tokenizer*);  // a null tokenizer has no ends
// Like text_ends_of(), plus the end tokens of the published weights that the run was initialized from, and the token
// that the chat template writes after an answer. Adds a note if an end is not a token or cannot be determined.
TextEnds all_text_ends_of(const Origin&, const std::shared_ptr<const Tokenizer>&, std::vector<std::string>& notes);

}  // namespace ring
