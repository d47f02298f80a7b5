#include "interchange/gguf/export.h"

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "evaluate/session.h"
#include "interchange/gguf/model.h"
#include "interchange/gguf/tokenizer.h"
#include "interchange/hf/saved_weights.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

GgufType same_type(FloatType type) {
  if (type == FloatType::f32) return GgufType::f32;
  return type == FloatType::bf16 ? GgufType::bf16 : GgufType::f16;
}

// Returns llama.cpp's number for the type of most tensors in a file.
std::uint32_t file_type(GgufType type) {
  switch (type) {
    case GgufType::f32: return 0;
    case GgufType::f16: return 1;
    case GgufType::q8_0: return 7;
    case GgufType::bf16: return 32;
  }
  return 0;
}

GgufKeys general_keys(const std::string& architecture, const std::string& name, GgufType type) {
  GgufKeys keys = {{"general.architecture", architecture},
                   {"general.type", std::string("model")},
                   {"general.name", name},
                   {"general.file_type", file_type(type)}};
  if (type == GgufType::q8_0) keys.emplace_back("general.quantization_version", std::uint32_t{2});
  return keys;
}

void add(GgufKeys& keys, GgufKeys more) { std::ranges::move(more, std::back_inserter(keys)); }

std::vector<PublishedTensor> sources_of(const std::vector<GgufWeight>& weights) {
  std::vector<PublishedTensor> all;
  for (const GgufWeight& w : weights)
    if (!w.from.parts.empty()) all.push_back(w.from);
  return all;
}

std::vector<float> values_of(const FoundCheckpoint& found, const GgufWeight& w, const LoraConfig& lora) {
  if (w.from.parts.empty()) return w.values;
  std::vector<float> values = read_published_values(found, w.from, lora);
  for (float& value : values) value += w.add;
  if (!w.heads) return values;
  return interleaved_heads(values, w.heads, w.tensor.shape.size() == 2 ? w.tensor.shape[1] : 1);
}

std::shared_ptr<const Tokenizer> needed_tokenizer(const Origin& origin) {
  try {
    return tokenizer_of(origin);
  } catch (const Error& e) {
    fail("a GGUF file needs the tokenizer, but the run has none: ", e.what());
  }
}

void note_types(const std::vector<GgufWeight>& weights, GgufType type, std::vector<std::string>& notes) {
  if (type != GgufType::q8_0) return;
  const auto count = std::ranges::count_if(weights, [](const GgufWeight& w) { return w.tensor.type == GgufType::f16; });
  if (count)
    notes.push_back(str(count, " of the matrices are F16, because their row length is not a multiple of ", kQ8Block));
}

// Adds the end-of-text tokens beside eos_token_id. llama.cpp has two more keys for them.
void add_more_ends(GgufKeys& keys, const TextEnds& ends, std::vector<std::string>& notes) {
  std::vector<std::int32_t> more;
  for (const std::int32_t id : ends.more_ends)
    if (id != ends.end && std::ranges::find(more, id) == more.end()) more.push_back(id);
  constexpr const char* kKeys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
  for (std::size_t i = 0; i < std::min(more.size(), std::size(kKeys)); ++i)
    keys.emplace_back(kKeys[i], static_cast<std::uint32_t>(more[i]));
  for (std::size_t i = std::size(kKeys); i < more.size(); ++i)
    notes.push_back(str("Token ", more[i], " also ends a text, but a GGUF file has no key for a fourth end token"));
}

void write_file(const FoundCheckpoint& found, const GgufKeys& keys, const std::vector<GgufWeight>& weights,
                const std::string& file, const GgufOptions& options, const LoraConfig& lora) {
  std::vector<GgufTensor> tensors;
  for (const GgufWeight& w : weights) tensors.push_back(w.tensor);
  write_atomically(file, [&](FileHandle& to) {
    write_gguf(to, keys, tensors, [&](std::size_t i) {
      if (options.stopped && options.stopped()) fail("stopped by a signal; ", file, " was not written");
      return values_of(found, weights[i], lora);
    });
  });
}

GgufExported export_found(const FoundCheckpoint& found, const std::string& file, const GgufOptions& options) {
  const Origin origin = origin_of(found);
  ModelConfig model = origin.config.model.resolved();
  if (model.lora.rank > 0 && !options.merge)
    fail(origin.checkpoint,
         " has adapters (model.lora), which a GGUF file holds only merged into the weights. Pass "
         "--merge");
  check_merge(options.merge, origin);
  GgufExported e{.checkpoint = origin.checkpoint, .file = file, .architecture = gguf_architecture(model)};
  set_exported_context(model, origin, options.context, e.notes);
  const std::vector<PublishedTensor> sources = sources_of(gguf_weights(e.architecture, model, GgufType::f32));
  check_has_tensors(found, sources);
  e.type = options.type.value_or(same_type(widest_type(found, sources)));
  const std::vector<GgufWeight> weights = gguf_weights(e.architecture, model, e.type);
  note_types(weights, e.type, e.notes);
  GgufKeys keys = general_keys(e.architecture, origin.config.run.name, e.type);
  add(keys, gguf_settings(e.architecture, model));
  const auto tokenizer = needed_tokenizer(origin);
  add(keys, gguf_tokenizer(*tokenizer, chat_format_of(origin), model.vocab_size, e.notes));
  add_more_ends(keys, all_text_ends_of(origin, tokenizer, e.notes), e.notes);
  write_file(found, keys, weights, file, options, model.lora);
  e.tensors = weights.size();
  for (const PublishedTensor& t : sources) e.parameters += t.numel();
  return e;
}

}  // namespace

GgufExported export_to_gguf(const std::string& run_or_checkpoint, const std::string& file, const GgufOptions& options) {
  std::error_code ignored;  // errors of the path are reported when the file is written
  if (fs::exists(file, ignored))
    fail(file, " already exists and is not overwritten. Give a different name, or remove it");
  GgufExported exported;
  const auto find = [&] { return find_checkpoint(run_or_checkpoint); };
  read_found(find, [&](FoundCheckpoint& found) {
    if (options.weights == SavedWeights::ema) use_averaged_weights(found);
    exported = export_found(found, file, options);
  });
  return exported;
}

}  // namespace ring
