#include "interchange/hf/import.h"

#include <algorithm>
#include <filesystem>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "checkpoint/files.h"
#include "checkpoint/new_folder.h"
#include "checkpoint/plan.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors/reader.h"
#include "checkpoint/shard.h"
#include "checkpoint/writer.h"
#include "core/byte_order_mark.h"
#include "core/check.h"
#include "core/fields.h"
#include "core/io_error.h"
#include "core/joined.h"
#include "core/json.h"
#include "core/utf8_text.h"
#include "core/yaml.h"
#include "data/hub_name.h"
#include "data/load_tokenizer.h"
#include "evaluate/generation_config.h"
#include "evaluate/session.h"
#include "interchange/hf/config.h"
#include "interchange/hf/names.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxConfig = 16 << 20;
constexpr std::size_t kNamed = 8;  // maximum number of tensors named in a message

std::string some_of(std::vector<std::string> names) {
  const std::size_t more = names.size() - std::min(names.size(), kNamed);
  names.resize(names.size() - more);
  return joined(names, ", ") + (more ? str(" and ", more, " more") : "");
}

// Location of one of our tensors in the published weights.
struct Source {
  PublishedTensor tensor;
  std::vector<std::string> names;  // tensors of the files, which make up `tensor` if they are concatenated along rows
  std::size_t first = 0;           // where our tensor begins in `tensor`, in elements, after conversion to our layout
};

// The published tensors of a model: finds them in the model's files and checks them.
class Weights {
 public:
  Weights(const fs::path& folder, const PublishedModel& published)
      : files_(folder), folder_(folder), family_(published.family), tied_(published.model.tied_embeddings) {
    for (const PublishedTensor& t : published_tensors(published.family, published.model.resolved())) take(t);
    if (!wrong_.empty()) fail(folder.string(), ": the tensors do not fit config.json: ", some_of(wrong_));
    refuse_others();
  }

  std::map<std::string, std::pair<OurTensor, Source>> all;  // sources by name of our tensor
  std::size_t tensors = 0;
  std::int64_t parameters = 0;
  std::vector<std::string> skipped;  // tensors that the language model does not need

  DType stored_type(const Source& s) const {
    return files_.tensor(s.names[0]).type == safetensors_name(FloatType::bf16) ? DType::bf16 : DType::f32;
  }

  // Returns [outputs, inputs], row-major: a mapping of the file if the values are stored in this form, else a converted
  // copy.
  Tensor read(const OurTensor& ours, const Source& s) const {
    const DType type = stored_type(s);
    const bool as_stored = s.names.size() == 1 && !s.tensor.is_reordered();
    const bool same = as_stored && files_.tensor(s.names[0]).type == safetensors_name(kept_type(type));
    const Tensor t = same ? mapped(ours, s, type) : converted(ours, s, type);
    check_finite(t, s);
    return t;
  }

  // Starts to read a tensor from disk while another tensor is processed.
  void prefetch_pages(const std::string& ours) const {
    for (const std::string& name : all.at(ours).second.names) MappedFile::prefetch_pages(files_.bytes(name));
  }

 private:
  static FloatType kept_type(DType t) { return t == DType::bf16 ? FloatType::bf16 : FloatType::f32; }

  Tensor mapped(const OurTensor& ours, const Source& s, DType type) const {
    const std::size_t bytes = static_cast<std::size_t>(ours.shape.numel()) * size_of(type);
    const std::span<const std::byte> part = files_.bytes(s.names[0]).subspan(s.first * size_of(type), bytes);
    const std::shared_ptr<void> owner(nullptr, [part](void*) { MappedFile::drop_pages(part); });
    auto* at = const_cast<std::byte*>(part.data());  // never written: the pages are mapped read-only
    return Tensor::wrap(std::make_shared<Storage>(at, bytes, Device{}, owner), ours.shape, type);
  }

  Tensor converted(const OurTensor& ours, const Source& s, DType type) const {
    const std::vector<float> from = values(ours, s);
    const Tensor t = Tensor::empty(ours.shape, type, Stream::cpu(1));
    round_to(kept_type(type), from.data(), from.size(), t.raw());
    return t;
  }

  std::vector<float> values(const OurTensor& ours, const Source& s) const {
    std::vector<float> values;
    for (const std::string& name : s.names) {
      const std::vector<float> part = files_.values(name);
      values.insert(values.end(), part.begin(), part.end());
    }
    values = from_published_layout(s.tensor, std::move(values));
    if (s.tensor.parts.size() > 1) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(s.first);
      values = std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(ours.shape.numel()));
    }
    return values;
  }

  void check_finite(const Tensor& t, const Source& s) const {
    if (!all_finite(kept_type(t.dtype()), t.raw(), static_cast<std::size_t>(t.numel())))
      fail(files_.file_of(s.names[0]).string(), ": tensor '", joined(s.names, "', '"),
           "' contains values that are not finite. The file is damaged, or the model already was when it was saved");
  }

  // Returns the names that the files have for the tensor: those of the first form whose tensors all exist.
  std::vector<std::string> names_in_files(const std::string& name) const {
    if (files_.has(name)) return {name};
    for (const std::vector<std::string>& form : other_forms(family_, name))
      if (std::ranges::all_of(form, [&](const std::string& part) { return files_.has(part); })) return form;
    return {};
  }

  // Returns the tensor that the named ones make up; nullopt if they have different types or shapes of rows.
  std::optional<SafeTensor> concatenated(const std::vector<std::string>& names) const {
    SafeTensor all = files_.tensor(names[0]);
    for (const std::string& name : std::span(names).subspan(1)) {
      const SafeTensor& next = files_.tensor(name);
      const bool fits = next.type == all.type && !next.shape.empty() && next.shape.size() == all.shape.size() &&
                        std::equal(next.shape.begin() + 1, next.shape.end(), all.shape.begin() + 1);
      if (!fits) return std::nullopt;
      all.shape[0] += next.shape[0];
    }
    return all;
  }

  void take(const PublishedTensor& t) {
    const std::vector<std::string> names = names_in_files(t.name);
    if (names.empty()) return wrong_.push_back(t.name + " is missing");
    used_.insert(names.begin(), names.end());
    const std::optional<SafeTensor> found = concatenated(names);
    if (!found) return wrong_.push_back(joined(names, " and ") + " have different types or shapes of rows");
    if (const SafeTensor wanted{found->type, t.shape(), 0, 0}; found->shape != wanted.shape)
      return wrong_.push_back(str(joined(names, " + "), " is ", text_of(*found), ", expected ", text_of(wanted)));
    std::size_t first = 0;
    for (const OurTensor& part : t.parts) {
      all[part.name] = {part, {t, names, first}};
      first += static_cast<std::size_t>(part.shape.numel());
    }
    ++tensors;
    parameters += t.numel();
  }

  // Returns true for buffers that older versions of transformers saved with the weights, although they can be computed.
  static bool is_known_buffer(const std::string& name) {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with("rotary_emb.inv_freq");
  }

  // Returns true for tensors of published Qwen3.5 models that its language model does not use: the encoder of images,
  // and the layers that predict several tokens at once.
  bool is_part_besides_language(const std::string& name) const {
    return family_ == Family::qwen3_5 && (name.starts_with("model.visual.") || name.starts_with("mtp."));
  }

  void refuse_others() {
    std::vector<std::string> others;
    for (const std::string& name : files_.names()) {
      if (used_.contains(name) || is_known_buffer(name) || is_tied_head(name)) continue;
      (is_part_besides_language(name) ? skipped : others).push_back(name);
    }
    if (!others.empty())
      fail(folder_.string(), ": the model in config.json does not use these tensors: ", some_of(others));
  }

  // Returns true if a file stores a tied head, which must then equal the embedding.
  bool is_tied_head(const std::string& name) const {
    if (!tied_ || name != "lm_head.weight") return false;
    const Source& embedding = all.at("embedding.tokens.weight").second;
    if (!std::ranges::equal(files_.bytes(name), files_.bytes(embedding.names[0])))
      fail(folder_.string(), ": tie_word_embeddings of config.json is true, but ", name, " differs from ",
           embedding.names[0], ". Set it to false if the head is a separate matrix");
    return true;
  }

  Safetensors files_;
  fs::path folder_;
  Family family_;
  bool tied_;
  std::vector<std::string> wrong_;
  std::set<std::string> used_;
};

// --- writing the checkpoint ---

Manifest planned(const Weights& weights, std::uint64_t shard_bytes) {
  Manifest plan;
  std::uint64_t used = 0;
  for (const auto& [name, from] : weights.all) {
    const auto& [ours, source] = from;
    const DType type = weights.stored_type(source);
    const std::uint64_t bytes = static_cast<std::uint64_t>(ours.shape.numel()) * size_of(type);
    if (used > 0 && used + bytes > shard_bytes) {
      ++plan.world;
      used = 0;
    }
    used += bytes;
    const Region whole{ours.shape.size() == 2 ? Shape{0, 0} : Shape{0}, ours.shape};
    plan.tensors[kWeightsPrefix + name] = {type, ours.shape, {{whole, shard_name(plan.world - 1), 0, bytes, ""}}};
  }
  return plan;
}

// Returns our name for a saved tensor.
std::string our_name(const std::string& saved) { return saved.substr(std::string_view(kWeightsPrefix).size()); }

SavedFile write_part(const Weights& weights, const std::vector<PlannedSlice>& slices, const fs::path& file,
                     const ImportOptions& options) {
  std::size_t next = 0;
  std::future<void> ahead;  // reads the next tensor from disk while this one is hashed and written
  const auto read_ahead = [&](std::size_t i) {
    ahead =
        std::async(std::launch::async, [&weights, name = our_name(slices[i].name)] { weights.prefetch_pages(name); });
  };
  read_ahead(0);
  return write_shard(file, slices, [&](const std::string& name) {
    if (options.stopped && options.stopped())
      fail("stopped by a signal; ", file.parent_path().string(), " was removed");
    if (++next < slices.size()) read_ahead(next);
    const auto& [ours, source] = weights.all.at(our_name(name));
    return weights.read(ours, source);
  });
}

void write_checkpoint_of(const Weights& weights, const fs::path& folder, const std::string& metadata,
                         const Tokenizer* tokenizer, const ImportOptions& options) {
  Manifest plan = planned(weights, options.shard_bytes);
  plan.metadata = metadata;
  if (tokenizer) plan.values[kFingerprintName] = tokenizer_fingerprint(*tokenizer);
  const fs::path final = folder / checkpoint_name(0), temporary = final.string() + ".tmp-0";
  fs::create_directories(temporary);
  for (int shard = 0; shard < plan.world; ++shard) {
    const std::vector<PlannedSlice> slices = slices_of(plan, shard_name(shard));
    plan.files.push_back(write_part(weights, slices, temporary / shard_name(shard), options));
  }
  commit_manifest(plan, temporary, final);
  if (const auto problems = verify_checkpoint(final, /*from_disk=*/true); !problems.empty())
    fail("the written checkpoint cannot be read back: ", problems.front());
}

// --- writing the run directory ---

// Returns the tokenizer; null if none came with the weights or none is wanted. Throws Error if tokenizers came with the
// weights but none of them can be read.
std::shared_ptr<const Tokenizer> tokenizer_in(const fs::path& folder, const ImportOptions& options,
                                              std::vector<std::string>& notes) {
  if (options.tokenizer == kNoTokenizer) return nullptr;
  if (!options.tokenizer.empty()) return load_tokenizer(options.tokenizer);
  std::vector<std::string> problems;
  if (auto tokenizer = load_tokenizer_in(folder.string(), problems)) {
    std::ranges::move(problems, std::back_inserter(notes));
    return tokenizer;
  }
  if (!problems.empty())
    fail("the model's tokenizer cannot be read: ", joined(problems, "; "),
         ". Put the right file there, name one with --tokenizer FILE, or import only the weights: --tokenizer ",
         kNoTokenizer);
  notes.push_back(str("The run has no tokenizer: ", folder.string(),
                      " contains none of the supported files (tokenizer.rmt, tokenizer.json, SentencePiece's "
                      "tokenizer.model). To add one, import with --tokenizer FILE"));
  return nullptr;
}

// Returns the tokenizer's chat template. Adds a note if it cannot be read, so that the weights can still be imported.
chat::Format chat_format_in(const fs::path& folder, const ImportOptions& options, std::vector<std::string>& notes) {
  try {
    return chat_format_beside(options.tokenizer.empty() ? folder.string() : options.tokenizer);
  } catch (const Error& e) {
    notes.push_back(str("The run has no chat template: ", e.what()));
    return {};
  }
}

// Returns generation_config.json or, if there is none that can be used, what transformers would derive from
// config.json. Begin, end and pad tokens that are missing in it are taken from config.json. Returns "" if nothing can
// be used.
std::string generation_text_in(const fs::path& folder, const std::string& config, std::int64_t vocab_size,
                               std::vector<std::string>& notes) {
  const auto with_tokens_of_model = [&](const std::string& text) -> std::string {
    auto all = parse_json<nlohmann::ordered_json>(text, {.duplicate_keys = DuplicateKeys::last_wins});
    const auto model = parse_json<nlohmann::ordered_json>(config);
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
      if (all.value(key, nlohmann::ordered_json()).is_null() && model.contains(key) && !model.at(key).is_null())
        all[key] = model.at(key);
    parse_generation_config(all.dump(), "config.json", vocab_size);
    return all.empty() ? "" : all.dump(2) + "\n";
  };
  const auto noted = [&](const auto& read) -> std::optional<std::string> {
    try {
      return read();
    } catch (const Error& e) {
      notes.push_back(str("The defaults for ending and sampling texts are used: ", e.what()));
      return std::nullopt;
    }
  };
  const fs::path file = folder / kGenerationFile;
  std::error_code error;
  if (fs::exists(file, error))
    if (const auto published = noted([&] {
          const std::string text(without_byte_order_marks(read_text(file, kMaxConfig)));
          parse_generation_config(text, file.string(), vocab_size);
          return with_tokens_of_model(text);
        }))
      return *published;
  return noted([&] { return with_tokens_of_model("{}"); }).value_or("");
}

// Returns the tokenizer_config.json beside the tokenizer; empty if there is none, or if it is not a JSON object.
std::string tokenizer_config_in(const fs::path& folder, const ImportOptions& options, const Tokenizer& tokenizer) {
  if (tokenizer.plain_file().empty()) return "";  // a tokenizer without a file of another program
  const std::string spec = options.tokenizer.empty() ? folder.string() : options.tokenizer;
  const std::string text = text_beside_tokenizer(spec, "tokenizer_config.json");
  try {
    return parse_json<nlohmann::json>(text, {.duplicate_keys = DuplicateKeys::last_wins}).is_object() ? text : "";
  } catch (const Error&) {  // the import reports it where it reads the chat template
    return "";
  }
}

void check_vocabulary(const Tokenizer& tokenizer, const ModelConfig& model) {
  if (tokenizer.vocab_size() > model.vocab_size)
    fail("the tokenizer (", tokenizer.kind(), ") has ", tokenizer.vocab_size(), " tokens, but the model has only ",
         model.vocab_size, ", so it is not the model's tokenizer. Give the right one with --tokenizer");
}

struct ModelFile {
  ModelConfig model;
  void fields(Fields& f) { f("model", model, "the decoder"); }
};

// Returns the run's configuration. Imported weights do not determine the data and the number of steps, so these
// required values are placeholders.
Config config_of(const PublishedModel& published, const fs::path& run, const std::string& file) {
  if (!is_utf8(run.string()))
    fail("--output: expected a path in UTF-8, got '", shown(run.string()),
         "', which a run's records cannot hold. Import into another folder");
  Config c;
  c.run.name = run.filename().string();
  c.run.directory = run.string();
  c.model = published.model.resolved();
  c.data.path = "none";
  c.train.steps = 1;
  Config checked;
  load_config_text(checked, to_yaml(c), "settings from " + file + " (as YAML)");
  return checked;
}

std::string config_in(const fs::path& folder, std::string& file) {
  std::error_code error;
  file = (folder / "config.json").string();
  check_import_folder(folder.string());
  if (!fs::exists(file, error) && !error)
    fail(folder.string(), " has no config.json. Give the folder of a published model");
  if (error) fail("cannot read ", folder.string(), ": ", io_error_text(error.value()));
  return std::string(without_byte_order_marks(read_text(file, kMaxConfig)));
}

}  // namespace

void check_import_folder(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error) && !error)
    fail(folder, " does not exist. Give the folder of a published model", download_advice(folder));
}

Imported import_from_hf(const std::string& from, const std::string& output, const ImportOptions& options) {
  const fs::path source = from;
  std::string file;
  const std::string published_config = config_in(source, file);
  PublishedModel published = parse_hf_config(published_config, file);
  NewFolder folder(output);
  const Config config = config_of(published, folder.final(), file);
  published.model = config.model;
  const Weights weights(source, published);
  Imported result{.run = folder.final().string(),
                  .family = published.family,
                  .tensors = weights.tensors,
                  .parameters = weights.parameters,
                  .notes = {}};
  if (!weights.skipped.empty())
    result.notes.push_back(
        str("Only the language model was imported. ", weights.skipped.size(),
            " tensors for images or for predicting several tokens at once were skipped: ", some_of(weights.skipped)));
  const auto tokenizer = tokenizer_in(source, options, result.notes);
  if (tokenizer) check_vocabulary(*tokenizer, config.model);
  const RunDirectory run(folder.path().string());
  write_checkpoint_of(weights, run.checkpoints(), imported_metadata(config, from), tokenizer.get(), options);
  if (tokenizer) {
    save_tokenizer(*tokenizer, run.tokenizer_file());
    const chat::Format format = chat_format_in(source, options, result.notes);
    if (!format.source.empty()) write_text(run.chat_template_file(), format.to_json());
    const std::string tokenizer_config = tokenizer_config_in(source, options, *tokenizer);
    if (!tokenizer_config.empty()) write_text(folder.path() / kTokenizerConfigFile, tokenizer_config);
  }
  const std::string generation = generation_text_in(source, published_config, config.model.vocab_size, result.notes);
  if (!generation.empty()) write_text(folder.path() / kGenerationFile, generation);
  write_text(folder.path() / kModelFile, to_yaml(ModelFile{config.model}));
  write_text(run.config_file(), settings_with_hash(config));
  folder.commit();
  return result;
}

}  // namespace ring
