#include "interchange/hf/export.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/files.h"
#include "checkpoint/new_folder.h"
#include "checkpoint/safetensors/reader.h"
#include "checkpoint/safetensors/writer.h"
#include "core/check.h"
#include "core/json.h"
#include "evaluate/generation_config.h"
#include "evaluate/session.h"
#include "interchange/hf/config.h"
#include "interchange/hf/peft.h"
#include "interchange/hf/saved_weights.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

// Returns the tokenizer; null, with a note that says why, if it cannot be read.
std::shared_ptr<const Tokenizer> known_tokenizer(const Origin& origin, std::vector<std::string>& notes) {
  try {
    return tokenizer_of(origin);
  } catch (const Error& e) {
    notes.push_back(str("No tokenizer is written: ", e.what()));
    return nullptr;
  }
}

// Returns the token with which a text begins. A SentencePiece model does not tell if texts begin with its bos_id, so
// this is read from `kept`, the generation_config.json that came with the weights.
std::optional<std::int32_t> first_token(const Tokenizer& tokenizer, const std::string& kept) {
  const std::optional<std::int32_t> first = text_ends_of(&tokenizer).begin;
  if (first || kept.empty() || tokenizer.kind() != "sentencepiece") return first;
  const auto j = parse_json<nlohmann::json>(kept, {.duplicate_keys = DuplicateKeys::last_wins});
  const nlohmann::json id = j.value("bos_token_id", nlohmann::json());
  if (!id.is_number_integer() || id < 0 || id >= tokenizer.vocab_size()) return std::nullopt;
  return id.get<std::int32_t>();
}

using OrderedJson = nlohmann::ordered_json;

// Returns a tokenizer_config.json for a tokenizer that came without one. generation: see `kept` of first_token().
OrderedJson new_tokenizer_config(const Tokenizer& tokenizer, const std::string& generation) {
  const bool sentencepiece = tokenizer.kind() == "sentencepiece";
  OrderedJson j = {{"tokenizer_class", sentencepiece ? "LlamaTokenizer" : "PreTrainedTokenizerFast"},
                   {"clean_up_tokenization_spaces", false}};
  if (sentencepiece) {  // for other tokenizers, tokenizer.json contains these settings
    for (const char* key : {"add_bos_token", "add_eos_token", "legacy"}) j[key] = false;
    j["add_prefix_space"] = tokenizer.blank_in_front();
  }
  const auto named = [&](std::optional<std::int32_t> id) {
    return id ? OrderedJson(tokenizer.piece(*id)) : OrderedJson();
  };
  j["bos_token"] = named(first_token(tokenizer, generation));
  j["eos_token"] = named(tokenizer.end_of_text());
  return j;
}

// Returns true if chat_template is the template, or a list of named ones that contains it.
bool has_template(const OrderedJson& config, const std::string& source) {
  const auto found = config.find("chat_template");
  if (found == config.end() || !found->is_array()) return found != config.end() && *found == source;
  return std::ranges::any_of(*found, [&](const OrderedJson& named) {
    return named.is_object() && named.value("template", OrderedJson()) == source;
  });
}

// Returns tokenizer_config.json. `kept` is the one that came with the weights, or "": it changes only where the run
// has a different chat template or a longer context.
std::string tokenizer_config(const Tokenizer& tokenizer, const chat::Format& format, std::int64_t context,
                             const std::string& generation, const std::string& kept) {
  OrderedJson j = kept.empty() ? new_tokenizer_config(tokenizer, generation)
                               : parse_json<OrderedJson>(kept, {.duplicate_keys = DuplicateKeys::last_wins});
  if (const auto max = j.find("model_max_length"); max == j.end() || !max->is_number() || *max < context)
    j["model_max_length"] = context;
  if (!format.source.empty() && !has_template(j, format.source))
    j["chat_template"] = chat::without_generation_tags(format.source);
  for (const auto& [name, text] : format.tokens)
    if (kept.empty() || !j.contains(name)) j[name] = text;
  return j.dump(2) + "\n";
}

void write_tokenizer(const fs::path& folder, const Tokenizer& tokenizer, const chat::Format& format,
                     const std::string& tokenizer_config, std::vector<std::string>& notes) {
  save_tokenizer(tokenizer, (folder / "tokenizer.rmt").string());
  if (!format.source.empty()) write_text(folder / kChatTemplateFile, format.to_json());
  if (tokenizer.plain_file().empty()) {
    notes.push_back(str("transformers does not support the ", tokenizer.kind(),
                        " tokenizer: only ringmaster import can read tokenizer.rmt"));
    return;
  }
  const bool model = tokenizer.kind() == "sentencepiece";
  save_tokenizer(tokenizer, (folder / (model ? "tokenizer.model" : "tokenizer.json")).string());
  write_text(folder / "tokenizer_config.json", tokenizer_config);
}

void write_weights(const FoundCheckpoint& found, const std::vector<PublishedTensor>& tensors, const fs::path& folder,
                   const ExportOptions& options, FloatType type, const LoraConfig& lora) {
  std::vector<OutputTensor> outputs;
  for (const PublishedTensor& t : tensors) outputs.push_back({t.name, t.shape()});
  write_safetensors(folder, outputs, {type, options.max_bytes}, [&](std::size_t i) {
    if (options.stopped && options.stopped()) fail("stopped by a signal; ", folder.string(), " was removed");
    return read_published_values(found, tensors[i], lora);
  });
}

// Returns the published model from which the run's base model was imported, or "" if it is not known.
std::string base_of(const Origin& origin) {
  try {
    const std::string& base = origin.config.run.init_from;
    return base.empty() ? "" : origin_of(find_checkpoint(base)).imported;
  } catch (const Error&) {  // the base need not exist any more
    return "";
  }
}

void write_adapter(const FoundCheckpoint& found, const Origin& origin, const fs::path& folder,
                   const ExportOptions& options, Exported& e) {
  const ModelConfig model = origin.config.model.resolved();
  const std::vector<PublishedTensor> tensors = peft_tensors(e.family, model);
  check_has_tensors(found, tensors);
  e.type = options.type.value_or(widest_type(found, tensors));
  ExportOptions one_file = options;
  one_file.max_bytes = std::uint64_t{1} << 62;
  write_weights(found, tensors, folder, one_file, e.type, {});
  fs::rename(folder / kSafetensorsName, folder / kPeftWeights);
  const std::string base = base_of(origin);
  if (base.empty())
    e.notes.push_back(str("The published model to which the adapter belongs is not known. Write its name into ",
                          kPeftConfig, " (base_model_name_or_path)"));
  write_text(folder / kPeftConfig, peft_config(model.lora, tensors, base));
  e.tensors = tensors.size();
  for (const PublishedTensor& t : tensors) e.parameters += t.numel();
}

Exported export_adapter(const FoundCheckpoint& found, const Origin& origin, const std::string& output,
                        const ExportOptions& options) {
  Exported e{.checkpoint = origin.checkpoint,
             .folder = output,
             .family = family_of(origin.config.model.resolved()),
             .adapter = true};
  NewFolder folder(output);
  write_adapter(found, origin, folder.path(), options, e);
  folder.commit();
  e.folder = folder.final().string();
  return e;
}

Exported export_found(const FoundCheckpoint& found, const std::string& output, const ExportOptions& options) {
  const Origin origin = origin_of(found);
  ModelConfig model = origin.config.model.resolved();
  if (model.lora.rank > 0 && !options.merge) return export_adapter(found, origin, output, options);
  check_merge(options.merge, origin);
  Exported e{.checkpoint = origin.checkpoint, .folder = output, .family = family_of(model)};
  set_exported_context(model, origin, options.context, e.notes);
  const std::vector<PublishedTensor> tensors = exported_tensors(e.family, model);
  check_has_tensors(found, tensors);
  e.type = options.type.value_or(widest_type(found, tensors));
  NewFolder folder(output);
  write_weights(found, tensors, folder.path(), options, e.type, model.lora);
  const auto tokenizer = known_tokenizer(origin, e.notes);
  const std::string kept = kept_text_of(origin.checkpoint, kGenerationFile);
  const TextEnds ends = all_text_ends_of(origin, tokenizer, e.notes);
  if (tokenizer) {
    const chat::Format format = chat_format_of(origin);
    write_tokenizer(folder.path(), *tokenizer, format,
                    tokenizer_config(*tokenizer, format, model.context, kept,
                                     kept_text_of(origin.checkpoint, kTokenizerConfigFile)),
                    e.notes);
  }
  write_text(folder.path() / "config.json", hf_config(e.family, model, e.type, ends, kept));
  write_text(folder.path() / kGenerationFile, hf_generation_config(ends, kept));
  folder.commit();
  e.folder = folder.final().string();
  e.tensors = tensors.size();
  for (const PublishedTensor& t : tensors) e.parameters += t.numel();
  return e;
}

}  // namespace

Exported export_to_hf(const std::string& run_or_checkpoint, const std::string& folder, const ExportOptions& options) {
  Exported exported;
  const auto find = [&] { return find_checkpoint(run_or_checkpoint); };
  read_found(find, [&](FoundCheckpoint& found) {
    if (options.weights == SavedWeights::ema) use_averaged_weights(found);
    exported = export_found(found, folder, options);
  });
  return exported;
}

}  // namespace ring
