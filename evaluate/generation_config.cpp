#include "evaluate/generation_config.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/joined.h"
#include "core/json.h"
#include "core/log.h"
#include "core/yaml.h"

namespace ring {
namespace {

using Json = nlohmann::json;

constexpr double kMaxTemperature = 100;

// Reads the keys of one generation_config.json.
class Reader {
 public:
  Reader(const Json& json, const std::string& file) : json_(json), file_(file) {}

  // Returns null if the member is missing or is null.
  const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  std::optional<double> number(const char* key, double min, double max) const {
    const Json* value = find(key);
    if (!value) return std::nullopt;
    const double n = value->is_number() ? value->get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(n >= min && n <= max)) refuse(key, *value, str("a number from ", min, " to ", max));
    return n;
  }
  std::int64_t count(const char* key, const Json& value, std::int64_t end) const {
    const bool fits = value.is_number_integer() && value >= 0 && value < end;
    if (!fits) refuse(key, value, str("a whole number from 0 to ", end - 1));
    return value.get<std::int64_t>();
  }
  [[noreturn]] void refuse(const char* key, const Json& value, const std::string& expected) const {
    fail(file_, ": ", key, ": ", shown(value.dump(-1, ' ', true, Json::error_handler_t::replace)), ": expected ",
         expected);
  }

 private:
  const Json& json_;
  const std::string& file_;
};

// Keys that change how transformers samples and have no counterpart here, with the values that change nothing; null
// never does.
struct UnsupportedKey {
  const char* name;
  std::optional<double> neutral;
};
constexpr UnsupportedKey kUnsupported[] = {{"min_p", 0},
                                           {"typical_p", 1},
                                           {"epsilon_cutoff", 0},
                                           {"eta_cutoff", 0},
                                           {"num_beams", 1},
                                           {"penalty_alpha", 0},
                                           {"guidance_scale", 1},
                                           {"no_repeat_ngram_size", 0},
                                           {"min_length", 0},
                                           {"min_new_tokens", 0},
                                           {"presence_penalty", 0},
                                           {"frequency_penalty", 0},
                                           {"bad_words_ids", {}},
                                           {"suppress_tokens", {}},
                                           {"begin_suppress_tokens", {}},
                                           {"sequence_bias", {}},
                                           {"forced_bos_token_id", {}},
                                           {"forced_eos_token_id", {}},
                                           {"stop_strings", {}},
                                           {"exponential_decay_length_penalty", {}},
                                           {"watermarking_config", {}}};

std::vector<std::string> unsupported_in(const Reader& reader) {
  std::vector<std::string> found;
  for (const UnsupportedKey& key : kUnsupported) {
    const Json* value = reader.find(key.name);
    const bool neutral = !value || (key.neutral && value->is_number() && *value == *key.neutral) ||
                         (value->is_structured() && value->empty());
    if (!neutral) found.push_back(str(key.name, " ", shown(json_text(*value))));
  }
  return found;
}

}  // namespace

void GenerationConfig::apply(Sampling& sampling) const {
  sampling.temperature = temperature.value_or(sampling.temperature);
  sampling.top_p = top_p.value_or(sampling.top_p);
  sampling.top_k = top_k.value_or(sampling.top_k);
  sampling.repetition_penalty = repetition_penalty.value_or(sampling.repetition_penalty);
  if (!unsupported.empty())
    log::warn(kGenerationFile, " of the weights: not supported and ignored: ", joined(unsupported, ", "));
}

GenerationConfig parse_generation_config(const std::string& text, const std::string& file, std::int64_t vocab_size) {
  Json json;
  try {
    json = parse_json<Json>(text, {.duplicate_keys = DuplicateKeys::last_wins});
  } catch (const Error& e) {
    fail(file, " cannot be read as JSON: ", e.what());
  }
  if (!json.is_object()) fail(file, " is a JSON ", json.type_name(), ", expected an object");
  const Reader reader(json, file);
  GenerationConfig c;
  if (const Json* ends = reader.find("eos_token_id"))
    for (const Json& end : ends->is_array() ? *ends : Json::array({*ends}))
      c.ends.push_back(static_cast<std::int32_t>(reader.count("eos_token_id", end, vocab_size)));
  c.temperature = reader.number("temperature", 0, kMaxTemperature);
  c.top_p = reader.number("top_p", 0, 1);
  c.repetition_penalty = reader.number("repetition_penalty", 0.01, 100);
  if (const Json* top = reader.find("top_k"))
    c.top_k = reader.count("top_k", *top, std::numeric_limits<std::int32_t>::max());
  if (const Json* draws = reader.find("do_sample"); draws && *draws == false) c.temperature = 0;
  c.unsupported = unsupported_in(reader);
  return c;
}

GenerationConfig generation_config_of(const Origin& origin) {
  const std::string text = kept_text_of(origin.checkpoint, kGenerationFile);
  if (text.empty()) return {};
  return parse_generation_config(text, str(kGenerationFile, " of ", origin.checkpoint),
                                 origin.config.model.resolved().vocab_size);
}

}  // namespace ring
