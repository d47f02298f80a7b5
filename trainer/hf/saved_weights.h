#pragma once
// What an export takes out of a checkpoint.

#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/safetensors/float_type.h"
#include "data/tokenizer.h"
#include "trainer/hf/config.h"
#include "trainer/hf/names.h"

namespace ring {

// The checkpoint's own settings made these names. Error: it lacks one, so it is damaged or of another program.
void check_saved(const FoundCheckpoint&, const std::vector<PublishedTensor>&);
// Our parts below each other, transposed where the family wants it, as f32.
std::vector<float> saved_values(const FoundCheckpoint&, const PublishedTensor&);
// That loses no bit: f32 where tensors differ.
FloatType widest_type(const FoundCheckpoint&, const std::vector<PublishedTensor>&);

TextEnds ends_of(const Tokenizer*);  // null: none are known

}  // namespace ring
