#include "trainer/hf/saved_weights.h"

#include <optional>

#include "core/check.h"
#include "trainer/session.h"

namespace ring {
namespace {

std::string state_name(const OurTensor& t) { return kWeightsPrefix + t.name; }

FloatType float_type_of(DType type, const std::string& name) {
  if (type != DType::f32 && type != DType::bf16) fail("tensor '", name, "' is ", type, ", expected f32 or bf16");
  return type == DType::f32 ? FloatType::f32 : FloatType::bf16;
}

void append(const FoundCheckpoint& found, const OurTensor& part, std::vector<float>& all) {
  const Shape start = part.shape.size() == 2 ? Shape{0, 0} : Shape{0};
  const Tensor t = read_tensor(found.path, found.manifest, state_name(part), {start, part.shape});
  const std::size_t before = all.size(), count = static_cast<std::size_t>(t.numel());
  all.resize(before + count);
  widen(float_type_of(t.dtype(), part.name), t.raw(), count, all.data() + before);
}

}  // namespace

void check_saved(const FoundCheckpoint& found, const std::vector<PublishedTensor>& tensors) {
  for (const PublishedTensor& t : tensors)
    for (const OurTensor& part : t.parts) {
      const auto saved = found.manifest.tensors.find(state_name(part));
      if (saved == found.manifest.tensors.end() || saved->second.global_shape != part.shape)
        fail(found.path.string(), ": its settings ask for a tensor ", state_name(part), " ", part.shape,
             ", which it does not have");
    }
}

std::vector<float> saved_values(const FoundCheckpoint& found, const PublishedTensor& t) {
  std::vector<float> all;
  for (const OurTensor& part : t.parts) append(found, part, all);
  return to_published(t, std::move(all));
}

FloatType widest_type(const FoundCheckpoint& found, const std::vector<PublishedTensor>& tensors) {
  std::optional<FloatType> all;
  for (const PublishedTensor& t : tensors)
    for (const OurTensor& part : t.parts) {
      const FloatType type = float_type_of(found.manifest.tensors.at(state_name(part)).dtype, part.name);
      if (all && *all != type) return FloatType::f32;
      all = type;
    }
  return all.value_or(FloatType::f32);
}

TextEnds ends_of(const Tokenizer* tokenizer) {
  if (!tokenizer) return {};
  const std::vector<std::int32_t> before = tokenizer->before_text();
  return {before.empty() ? tokenizer->begin_of_text() : std::optional(before.front()), tokenizer->end_of_text()};
}

}  // namespace ring
