#include "trainer/hf/saved_weights.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "core/check.h"
#include "trainer/chat.h"
#include "trainer/generation_config.h"
#include "trainer/session.h"

namespace ring {
namespace {

constexpr auto kReplace = nlohmann::json::error_handler_t::replace;

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

TextEnds all_ends_of(const Origin& origin, const std::shared_ptr<const Tokenizer>& tokenizer,
                     std::vector<std::string>& notes) {
  TextEnds ends = ends_of(tokenizer.get());
  ends.more_ends = generation_config_of(origin).ends;
  if (!tokenizer) return ends;
  try {
    const chat::Format format = chat_format_of(origin);
    if (format.source.empty()) return ends;
    const TextEnding ending = Chat(format, "chat template of " + origin.checkpoint, tokenizer).ending({});
    if (ending.token) ends.more_ends.push_back(*ending.token);
    if (!ending.stops.empty())
      notes.push_back(str("Answers end with ", nlohmann::json(ending.stops[0]).dump(-1, ' ', true, kReplace),
                          ", which is no token: whoever serves the export has to stop there"));
  } catch (const Error& e) {
    notes.push_back(str("What ends an answer is not known: ", e.what()));
  }
  return ends;
}

}  // namespace ring
