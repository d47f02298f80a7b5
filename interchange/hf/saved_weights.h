#pragma once
// What an export takes out of a checkpoint.

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

// The checkpoint's own settings made these names. Error: it lacks one, so it is damaged or of another program.
void check_saved(const FoundCheckpoint&, const std::vector<PublishedTensor>&);
// Our parts below each other, transposed where the family wants it, as f32.
std::vector<float> saved_values(const FoundCheckpoint&, const PublishedTensor&);
// That loses no bit: f32 where tensors differ.
FloatType widest_type(const FoundCheckpoint&, const std::vector<PublishedTensor>&);

// Sets model.context to the context that an export names: `wanted` (--context), or if that is 0 the longest of the
// run's own, those of the models that it began with (run.init_from, as far as they are still there), and the one that
// scaled positions were made for. Adds a note if that is not the run's own. Throws Error if `wanted` does not suit the
// model's positions.
void set_exported_context(ModelConfig& model, const Origin&, std::int64_t wanted, std::vector<std::string>& notes);

TextEnds ends_of(const Tokenizer*);  // null: none are known
// The same with the ends of the published weights that the run began with, and with the token that the chat template
// writes behind an answer. notes: an end that is no token, or why one is not known.
TextEnds all_ends_of(const Origin&, const std::shared_ptr<const Tokenizer>&, std::vector<std::string>& notes);

}  // namespace ring
