#include "interchange/hf/saved_weights.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/check.h"
#include "evaluate/chat.h"
#include "evaluate/context.h"
#include "evaluate/generation_config.h"
#include "evaluate/session.h"

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

// Adds scale * B A to the weight `w` of a linear layer, if it has an adapter.
void add_adapter(const FoundCheckpoint& found, const OurTensor& weight, const LoraConfig& lora, float* w) {
  const std::string module = weight.name.substr(0, weight.name.rfind('.'));
  const OurTensor names[] = {{module + ".lora_a.weight", {lora.rank, weight.shape[1]}},
                             {module + ".lora_b.weight", {weight.shape[0], lora.rank}}};
  if (!found.manifest.tensors.contains(state_name(names[0]))) return;
  check_has_tensors(found, {{"", {names[0]}}, {"", {names[1]}}});
  std::vector<float> a, b;
  append(found, names[0], a);
  append(found, names[1], b);
  const auto scale = static_cast<float>(lora.scale());
  for (std::int64_t row = 0; row < weight.shape[0]; ++row)
    for (std::int64_t r = 0; r < lora.rank; ++r) {
      const float factor = scale * b[static_cast<std::size_t>(row * lora.rank + r)];
      const float* from = a.data() + r * weight.shape[1];
      float* to = w + row * weight.shape[1];
      for (std::int64_t column = 0; column < weight.shape[1]; ++column) to[column] += factor * from[column];
    }
}

bool has_original_context(const RopeConfig& rope) {
  return rope.scaling != RopeScaling::none && rope.scaling != RopeScaling::linear;
}

// A context length, and where it comes from.
struct KnownContext {
  std::int64_t tokens = 0;
  std::string from;
};

// Returns the settings of a run or a checkpoint; nullopt if it does not exist or cannot be read.
std::optional<Config> find_settings(const std::string& run_or_checkpoint) {
  std::error_code error;
  try {
    if (std::filesystem::exists(run_or_checkpoint + "/" + kManifestName, error))
      return settings_in(read_manifest(run_or_checkpoint).metadata, run_or_checkpoint);
    return settings_to_go_on(find_run(run_or_checkpoint), /*warn=*/false);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Returns the longest context along run.init_from. Sets `missing` to the first model that cannot be read.
KnownContext longest_context(const Config& config, std::string& missing) {
  KnownContext longest{config.model.context, "model.context"};
  std::set<std::string> seen;
  for (std::string from = config.run.init_from; !from.empty() && seen.insert(from).second;) {
    const std::optional<Config> base = find_settings(from);
    if (!base) {
      missing = from;
      break;
    }
    if (base->model.context > longest.tokens) longest = {base->model.context, from + " (run.init_from)"};
    from = base->run.init_from;
  }
  return longest;
}

void check_wanted_context(const ModelConfig& model, std::int64_t wanted) {
  const RopeConfig& rope = model.rope;
  if (model.positions != Positions::rope || !has_original_context(rope)) return;
  if (rope.scaling == RopeScaling::dynamic && wanted != rope.original_context)
    fail("--context: ", wanted, " tokens, but an export of model.rope.scaling: dynamic has ",
         "model.rope.original_context, ", rope.original_context, ". Leave the option out");
  if (wanted < rope.original_context)
    fail("--context: expected at least model.rope.original_context, ", rope.original_context, ", got ", wanted);
}

}  // namespace

void set_exported_context(ModelConfig& model, const Origin& origin, std::int64_t wanted,
                          std::vector<std::string>& notes) {
  if (wanted > 0) {
    check_wanted_context(model, wanted);
    return set_context(model, wanted);
  }
  if (model.positions != Positions::rope) return;
  std::string missing;
  KnownContext c = longest_context(origin.config, missing);
  if (has_original_context(model.rope) && model.rope.original_context > c.tokens)
    c = {model.rope.original_context, "model.rope.original_context"};
  if (c.tokens != model.context)
    notes.push_back(str("The context is ", c.tokens, " tokens, from ", c.from, ", instead of the ", model.context,
                        " that the run was trained with (model.context). To set it: --context N"));
  else if (!missing.empty())
    notes.push_back(str("The context is the ", c.tokens,
                        " tokens that the run was trained with (model.context), because ", missing,
                        " (run.init_from) cannot be read. To set it: --context N"));
  model.context = c.tokens;
}

void check_merge(bool merge, const Origin& origin) {
  if (merge && origin.config.model.lora.rank == 0)
    fail("--merge: ", origin.checkpoint, " has no adapters (model.lora). Leave the option out");
}

void check_has_tensors(const FoundCheckpoint& found, const std::vector<PublishedTensor>& tensors) {
  for (const PublishedTensor& t : tensors)
    for (const OurTensor& part : t.parts) {
      const auto saved = found.manifest.tensors.find(state_name(part));
      if (saved == found.manifest.tensors.end() || saved->second.global_shape != part.shape)
        fail(found.path.string(), ": its settings require a tensor ", state_name(part), " ", part.shape,
             ", which it does not have");
    }
}

std::vector<float> read_published_values(const FoundCheckpoint& found, const PublishedTensor& t,
                                         const LoraConfig& lora) {
  std::vector<float> all;
  for (const OurTensor& part : t.parts) {
    const std::size_t first = all.size();
    append(found, part, all);
    if (lora.rank > 0 && part.shape.size() == 2) add_adapter(found, part, lora, all.data() + first);
  }
  return to_published_layout(t, std::move(all));
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

TextEnds text_ends_of(const Tokenizer* tokenizer) {
  if (!tokenizer) return {};
  const std::vector<std::int32_t> before = tokenizer->before_text();
  return {before.empty() ? tokenizer->begin_of_text() : std::optional(before.front()), tokenizer->end_of_text()};
}

TextEnds all_text_ends_of(const Origin& origin, const std::shared_ptr<const Tokenizer>& tokenizer,
                          std::vector<std::string>& notes) {
  TextEnds ends = text_ends_of(tokenizer.get());
  ends.more_ends = generation_config_of(origin).ends;
  if (!tokenizer) return ends;
  try {
    const chat::Format format = chat_format_of(origin);
    if (format.source.empty()) return ends;
    const TextEnding ending = Chat(format, "chat template of " + origin.checkpoint, tokenizer).answer_ending({});
    if (ending.token) ends.more_ends.push_back(*ending.token);
    if (!ending.stops.empty())
      notes.push_back(str("Answers end with ", nlohmann::json(ending.stops[0]).dump(-1, ' ', true, kReplace),
                          ", which is not a token. A server of the export has to stop there"));
  } catch (const Error& e) {
    notes.push_back(str("The end of an answer is not known: ", e.what()));
  }
  return ends;
}

}  // namespace ring
