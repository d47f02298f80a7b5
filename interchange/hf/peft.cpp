#include "interchange/hf/peft.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "checkpoint/files.h"
#include "checkpoint/safetensors/reader.h"
#include "core/check.h"
#include "core/json.h"
#include "core/yaml.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPeftPrefix = "base_model.model.";  // PEFT's prefix of all module names
constexpr std::uint64_t kMaxAdapterConfig = 16 << 20;

std::string without_ending(const std::string& name, std::string_view ending) {
  return name.substr(0, name.size() - ending.size());
}

// --- Writing.

// The two matrices of a layer's adapter, under their names in PEFT's file.
std::vector<PublishedTensor> matrices_of(const std::string& published, const OurTensor& weight, std::int64_t rank) {
  const std::string module = without_ending(published, ".weight"), ours = without_ending(weight.name, ".weight");
  const auto matrix = [&](const char* theirs, const char* name, const Shape& shape) {
    return PublishedTensor{str(kPeftPrefix, module, theirs), {{ours + name, shape}}, false};
  };
  return {matrix(".lora_A.weight", ".lora_a.weight", {rank, weight.shape[1]}),
          matrix(".lora_B.weight", ".lora_b.weight", {weight.shape[0], rank})};
}

bool is_adapted(const LoraConfig& lora, const OurTensor& weight) {
  const std::string module = without_ending(weight.name, ".weight");
  return weight.name.starts_with("blocks.") && weight.name.ends_with(".weight") && weight.shape.size() == 2 &&
         lora.adapts(module.substr(module.rfind('.') + 1));
}

// --- Reading.

// The settings of an adapter that determine what it adds.
struct PeftConfig {
  double alpha = 8;
  bool rank_stabilized = false;  // rsLoRA (Kalajdzievski 2023): alpha / sqrt(r)
  double scale(std::int64_t rank) const {
    const auto r = static_cast<double>(rank);
    return alpha / (rank_stabilized ? std::sqrt(r) : r);
  }
};

using Json = nlohmann::json;

bool is_unset(const Json& value) { return value.is_null() || value == false || value.empty(); }

// Throws Error if a key has a value that changes what an adapter or its base computes.
void refuse_variants(const Json& j, const std::string& file) {
  const auto check = [&](const std::string& key, const std::string& expected, const auto& is_valid) {
    const Json value = j.value(key, Json());
    if (!is_valid(value))
      fail(file, ": ", key, ": expected ", expected, ", got ", json_text(value),
           ". Merge the adapter with PEFT (merge_and_unload), and import the merged model");
  };
  check("peft_type", "\"LORA\"", [](const Json& v) { return v == "LORA"; });
  check("bias", "\"none\"", [](const Json& v) { return is_unset(v) || v == "none"; });
  // All other values, such as "pissa", also change the weights of the base model.
  check("init_lora_weights", "true, false, \"gaussian\", \"eva\" or \"orthogonal\"",
        [](const Json& v) { return is_unset(v) || v == true || v == "gaussian" || v == "eva" || v == "orthogonal"; });
  for (const char* key : {"use_dora", "fan_in_fan_out", "lora_bias", "use_qalora", "use_bdlora", "modules_to_save",
                          "alpha_pattern", "layer_replication", "trainable_token_indices", "alora_invocation_tokens",
                          "target_parameters", "arrow_config", "kasa_config", "monteclora_config"})
    check(key, "none", is_unset);
}

PeftConfig read_peft_config(const fs::path& folder) {
  const fs::path file = folder / kPeftConfig;
  std::error_code error;
  if (!fs::exists(file, error))
    fail(folder.string(), " has no ", kPeftConfig,
         ". Give the folder of an adapter that PEFT or ringmaster export wrote");
  Json j;
  try {
    j = parse_json<Json>(read_text(file, kMaxAdapterConfig));
  } catch (const Error& e) {
    fail(file.string(), ": ", e.what());
  }
  if (!j.is_object()) fail(file.string(), ": expected a JSON object");
  refuse_variants(j, file.string());
  const Json alpha = j.value("lora_alpha", Json(8)), stabilized = j.value("use_rslora", Json(false));
  const bool valid = alpha.is_number() && std::isfinite(alpha.get<double>());
  if (!valid) fail(file.string(), ": lora_alpha: expected a number, got ", json_text(alpha));
  return {alpha.get<double>(), stabilized == true};
}

struct MergedLayer {
  Param* param;
  const LogicalParam* part;
};

// Returns the linear layers of the model by their published module names.
std::map<std::string, MergedLayer> targets_of(Model& model) {
  std::map<std::string, MergedLayer> ours, published;
  for (Param* p : model.parameters().declared())
    for (const LogicalParam& part : p->parts)
      if (p->linear) ours[part.name] = {p, &part};
  for (const PublishedTensor& t : published_tensors(family_of(model.config()), model.config()))
    if (const auto found = ours.find(t.parts[0].name); found != ours.end() && t.parts.size() == 1 && !t.transposed)
      published[without_ending(t.name, ".weight")] = found->second;
  return published;
}

// Returns the matrix on the device, in the type of the weights.
Tensor uploaded(const std::vector<float>& values, const Shape& shape, DType type, const ExecContext& ctx) {
  const Tensor exact = from_host(values, ctx.stream).view(shape);
  if (type == DType::f32) return exact;
  const Tensor rounded = ctx.empty(shape, type);
  cast_kernel({exact, rounded}, ctx);
  return rounded;
}

void merge(const MergedLayer& to, const Safetensors& file, const std::string& module, const PeftConfig& config,
           const ExecContext& ctx) {
  const std::string name_a = str(kPeftPrefix, module, ".lora_A.weight"),
                    name_b = str(kPeftPrefix, module, ".lora_B.weight");
  for (const std::string& name : {name_a, name_b})
    if (!file.has(name)) fail("the adapter has no tensor ", name, ", which belongs to the other matrix of this layer");
  const Tensor w = to.param->var.value.narrow(0, to.part->first_row, to.part->rows);
  const SafeTensor &a = file.tensor(name_a), &b = file.tensor(name_b);
  const std::int64_t rank = a.shape.empty() ? 0 : a.shape[0];
  if (rank < 1 || a.shape != std::vector{rank, w.dim(1)} || b.shape != std::vector{w.dim(0), rank})
    fail("the adapter's matrices ", name_a, " ", text_of(a), " and ", name_b, " ", text_of(b),
         " do not fit the weight ", describe(w), ". Give an adapter of this model");
  std::vector<float> scaled = file.values(name_b);
  for (float& value : scaled) value *= static_cast<float>(config.scale(rank));
  const std::vector<float> values_a = file.values(name_a);
  const auto is_finite = [](float value) { return std::isfinite(value); };
  if (!std::ranges::all_of(values_a, is_finite) || !std::ranges::all_of(scaled, is_finite))
    fail("the adapter's layer ", module, " has values that are not finite");
  matmul_kernel({.a = uploaded(scaled, {w.dim(0), rank}, w.dtype(), ctx),
                 .b = uploaded(values_a, {rank, w.dim(1)}, w.dtype(), ctx),
                 .c = w,
                 .beta = 1},
                ctx);
}

}  // namespace

std::vector<PublishedTensor> peft_tensors(Family family, const ModelConfig& model) {
  std::vector<PublishedTensor> all;
  for (const PublishedTensor& t : published_tensors(family, model)) {
    if (!is_adapted(model.lora, t.parts[0])) continue;
    if (t.transposed || t.parts.size() > 1)
      fail(t.name,
           " joins or transposes layers that have an adapter each, which PEFT's files cannot express. Export "
           "merged weights: --merge");
    for (PublishedTensor& m : matrices_of(t.name, t.parts[0], model.lora.rank)) all.push_back(std::move(m));
  }
  return all;
}

std::string peft_config(const LoraConfig& lora, const std::vector<PublishedTensor>& tensors, const std::string& base) {
  std::set<std::string> modules;
  for (const PublishedTensor& t : tensors) {
    const std::string module = without_ending(t.name, ".lora_A.weight");
    modules.insert(module.substr(module.rfind('.') + 1));
  }
  const nlohmann::ordered_json j = {
      {"peft_type", "LORA"},      {"task_type", "CAUSAL_LM"},     {"base_model_name_or_path", base}, {"r", lora.rank},
      {"lora_alpha", lora.alpha}, {"lora_dropout", lora.dropout}, {"target_modules", modules},       {"bias", "none"},
      {"fan_in_fan_out", false},  {"inference_mode", true}};
  return json_text(j, 2) + "\n";
}

void merge_peft_adapter(Session& session, const std::string& folder) {
  const PeftConfig config = read_peft_config(folder);
  const Safetensors file(fs::path(folder) / kPeftWeights);
  const std::map<std::string, MergedLayer> targets = targets_of(*session.model);
  std::set<std::string> modules;
  for (const std::string& name : file.names()) {
    const bool is_a = name.ends_with(".lora_A.weight"), is_b = name.ends_with(".lora_B.weight");
    const std::string module = name.starts_with(kPeftPrefix) && (is_a || is_b)
                                   ? without_ending(name.substr(kPeftPrefix.size()), ".lora_A.weight")
                                   : "";
    if (!targets.contains(module))
      fail(folder, ": the adapter has a tensor ", shown(name),
           ", which is not a matrix of a linear layer of this "
           "model. Give an adapter of this model");
    modules.insert(module);
  }
  if (modules.empty()) fail(folder, ": the adapter has no tensors");
  for (const std::string& module : modules) try {
      merge(targets.at(module), file, module, config, session.ctx);
    } catch (const Error& e) {
      fail(folder, ": ", e.what());
    }
}

}  // namespace ring
