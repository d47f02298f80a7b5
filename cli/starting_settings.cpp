#include "cli/starting_settings.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>

#include "core/check.h"
#include "core/fields_parse.h"
#include "core/yaml.h"
#include "engine/config.h"

namespace ring {
namespace {

constexpr std::size_t kMaxLine = 120;

struct Setting {
  std::string key;  // e.g. "model.layers"
  std::string value;
  std::string about = "";  // the comment; if empty, the reference's text about the key
};
using Settings = std::vector<Setting>;

std::int64_t product(const Settings& settings, std::initializer_list<const char*> keys) {
  std::int64_t all = 1;
  for (const char* key : keys) all *= std::stoll(std::ranges::find(settings, key, &Setting::key)->value);
  return all;
}

std::string text(std::int64_t number) { return std::to_string(number); }

// Returns a model's sizes, for training that takes a laptop minutes or, if `gpu`, one GPU hours.
Settings model_of(bool gpu, std::int64_t context, std::int64_t gpu_context) {
  return {{"model.context", text(gpu ? gpu_context : context)},
          {"model.layers", gpu ? "12" : "4"},
          {"model.width", gpu ? "768" : "256"},
          {"model.heads", gpu ? "12" : "4"}};
}

void add(Settings& all, const Settings& more) { all.insert(all.end(), more.begin(), more.end()); }

Settings llama_small(const StartingPoint& p) {
  Settings s = model_of(p.gpu, 128, 1024);
  add(s, {{"model.kv_heads", p.gpu ? "4" : "2"},
          {"model.mlp", "swiglu"},
          {"model.norm", "rms"},
          {"model.positions", "rope"},
          {"train.batch_size", p.gpu ? "64" : "8"},
          {"optimizer.lr", p.gpu ? "6e-4" : "2e-3"}});
  return s;
}

Settings gpt2(const StartingPoint& p) {
  Settings s = model_of(p.gpu, 64, 1024);
  add(s, {{"model.mlp", "gelu_tanh"},
          {"model.norm", "layer"},
          {"model.positions", "learned"},
          {"model.biases", "all"},
          {"train.batch_size", p.gpu ? "64" : "12"},
          {"optimizer.lr", p.gpu ? "6e-4" : "1e-3"}});
  return s;
}

// Settings that the templates for long contexts share, so that their models can be compared at equal tokens.
Settings long_context_base(const StartingPoint& p) {
  Settings s = model_of(p.gpu, 1024, 32768);
  add(s, {{"model.kv_heads", p.gpu ? "4" : "2"},
          {"model.rope.theta", p.gpu ? "1e6" : "1e4"},
          {"train.batch_size", p.gpu ? "4" : "1"},
          {"optimizer.lr", p.gpu ? "4e-4" : "1e-3"}});
  return s;
}

Settings long_context(const StartingPoint& p) {
  Settings s = long_context_base(p);
  const std::string window = p.gpu ? "1024" : "128";
  add(s, {{"model.attention", "{kind: window, window: " + window + "}",
           "each token sees this many tokens; dilated and block_sparse see further: docs/attention.md"},
          {"model.attention_layers", "[{layers: every 4 from 3, attention: {kind: dense}}]",
           "layers that see the whole context"},
          {"model.qk_norm", "true", "without it, a model with windows in some layers cannot be exported"}});
  return s;
}

// mlp_width makes the number of parameters that of long_context(), within 1 %.
Settings hybrid(const StartingPoint& p) {
  Settings s = long_context_base(p);
  add(s, {{"model.mixers", "[gated_delta_net, gated_delta_net, gated_delta_net, attention]",
           "the layer of each block: three with a state of fixed size, one that sees the whole context"},
          {"model.qk_norm", "true", "keeps the scores of attention bounded, for stable training"},
          {"model.mlp_width", p.gpu ? "1792" : "640",
           "below the default, because gated delta nets have more weights than attention"},
          {"model.gated_delta_net.key_heads", p.gpu ? "3" : "2", "half as many as value heads, as in Qwen3-Next"},
          {"model.gated_delta_net.value_heads", p.gpu ? "6" : "4",
           "each stores key_width x key_width numbers; here, all have model.width channels together"},
          {"model.gated_delta_net.key_width", p.gpu ? "128" : "64",
           "channels of a head; only 64 and 128 run on a GPU's tensor cores: docs/linear_attention.md"}});
  return s;
}

Setting context_setting(const StartingPoint& p) {
  const std::int64_t context = finetune_context(p);
  if (p.model && p.model->positions == Positions::learned)
    return {"model.context", text(context), "the number of positions that the model has learned"};
  const char* const longer = p.longest > static_cast<std::uint64_t>(context) ? " and is cut" : "";
  return {"model.context", text(context),
          str("for this training; the model may support a longer one",
              p.longest ? str("; the longest document has ", p.longest, " tokens", longer) : "")};
}

Settings finetune(const StartingPoint& p) {
  const std::int64_t rows = p.gpu ? 32 : 4, tokens = rows * (p.gpu ? 4096 : 1024);
  return {{"run.init_from", yaml_string(p.weights)},
          context_setting(p),
          {"data.packing.documents", "true"},
          {"data.packing.best_fit", "1024", "does not cut documents that fit into the context"},
          {"train.batch_size", text(std::clamp<std::int64_t>(tokens / finetune_context(p), 1, rows))},
          {"optimizer.lr", "2e-5"}};
}

// Returns the YAML lines of the weights' model section, without the context, which the caller sets.
std::string rest_of_model(const std::optional<ModelConfig>& model) {
  if (!model) return "";
  Config config;
  config.model = *model;
  config::Node root = bind_config(config);
  std::erase_if(root.fields, [](const config::Field& f) { return f.name != "model"; });
  std::erase_if(root.fields.front().node.fields, [](const config::Field& f) { return f.name == "context"; });
  const std::string section = config::to_yaml(root);
  return "  # the weights were trained with all of these\n" + section.substr(section.find('\n') + 1);
}

struct Kind {
  const char* name;
  const char* title;
  Settings (*settings)(const StartingPoint&);
  int passes;  // number of passes over the corpus
};

constexpr Kind kKinds[] = {
    {"llama-small", "A small Llama: RMSNorm, SwiGLU, rotary positions, grouped heads.", llama_small, 1},
    {"gpt2", "GPT-2's architecture: LayerNorm, GELU, learned positions, biases.", gpt2, 1},
    {"long-context", "A long context: most layers see a window, some see the whole context.", long_context, 1},
    {"hybrid", "A hybrid for long contexts: linear attention in most layers, attention in the others.", hybrid, 1},
    {"finetune", "Published weights, or those of a run, trained further on your corpus.", finetune, 3}};

const Kind& kind_of(const std::string& name) {
  const auto* const kind = std::ranges::find(kKinds, name, &Kind::name);
  if (kind == std::end(kKinds)) fail("init: --template: unknown template '", name, "'");
  return *kind;
}

// Adds the number of steps that cover the corpus, limited to a reasonable training time.
void add_steps(Settings& all, const StartingPoint& p, int passes) {
  const std::int64_t each = product(all, {"model.context", "train.batch_size"});
  const std::int64_t whole = static_cast<std::int64_t>(p.tokens) * passes / each;
  const std::int64_t max = p.gpu ? 100'000 : 2000;
  const std::int64_t steps = p.tokens == 0 ? 1000 : std::clamp<std::int64_t>(whole, 100, max);
  const double seen = p.tokens ? static_cast<double>(steps * each) / static_cast<double>(p.tokens) : 0;
  std::ostringstream about;
  about << "of " << each << " tokens";
  if (p.tokens) about << ": " << std::max(0.01, std::round(seen * 100) / 100) << " times the corpus";
  add(all, {{"train.steps", text(steps), about.str()},
            {"train.eval_interval", text(std::max<std::int64_t>(steps / 10, 10))},
            {"schedule.kind", "cosine"},
            {"schedule.warmup_steps", text(steps / 20)},
            {"schedule.final_lr", "0.1"},
            {"checkpoint.auto", "true"}});
}

// Returns the first clause of a setting's text in the reference.
std::string short_text(const std::string& about) {
  return about.substr(0, std::min({about.find(". "), about.find("; "), about.find(':')}));
}

// Returns `  key: value  # about`; puts the comment above if that line would be too wide.
std::string line_of(const std::string& indent, const Setting& s, const std::string& about) {
  const std::string name = s.key.substr(s.key.rfind('.') + 1), line = indent + name + ": " + s.value;
  const std::string beside = line + std::string(line.size() < 32 ? 32 - line.size() : 2, ' ') + "# " + about;
  return beside.size() <= kMaxLine ? beside + "\n" : indent + "# " + about + "\n" + line + "\n";
}

// Returns the settings as YAML, with sections in the order of the reference and one level of subsections.
std::string to_lines(const Settings& settings, const std::string& model) {
  Config config;
  const config::Node root = bind_config(config);
  std::string out;
  for (const config::Field& section : root.fields) {
    std::string lines, inner;
    for (const Setting& s : settings) {
      if (!s.key.starts_with(section.name + ".")) continue;
      const config::Field* field = config::find_field(root, s.key);
      RING_CHECK(field, "unknown setting: ", s.key);
      const std::string about = s.about.empty() ? short_text(field->text) : s.about;
      const std::string rest = s.key.substr(section.name.size() + 1), sub = rest.substr(0, rest.find('.'));
      const bool nested = rest.find('.') != std::string::npos;
      if (nested && inner != sub) lines += "  " + sub + ":\n";
      inner = nested ? sub : "";
      lines += line_of(nested ? "    " : "  ", s, about);
    }
    if (section.name == "model") lines += model;
    if (!lines.empty()) out += "\n" + section.name + ":\n" + lines;
  }
  return out;
}

}  // namespace

std::vector<std::string> starting_kinds() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

std::int64_t finetune_context(const StartingPoint& p) {
  constexpr std::uint64_t kShortest = 256;
  const std::uint64_t longest = p.gpu ? 32768 : 4096;
  const bool known = p.longest > 0, learned = p.model && p.model->positions == Positions::learned;
  const std::uint64_t whole = known ? std::bit_ceil(p.longest) : p.gpu ? 4096 : kShortest;
  if (learned) return p.model->context;
  const auto context = static_cast<std::int64_t>(std::clamp(whole, kShortest, longest));
  return p.model ? std::min(context, p.model->context) : context;
}

std::string starting_settings(const StartingPoint& p) {
  const Kind& kind = kind_of(p.kind);
  Settings all{{"run.name", yaml_string(p.name)}};
  add(all, kind.settings(p));
  add(all, {{"data.path", yaml_string(p.data)}});
  if (p.gpu) add(all, {{"train.micro_batch", "auto"}});
  add_steps(all, p, kind.passes);
  const bool includes = !p.model_file.empty();
  const std::string model =
      includes ? str("\n# The model, as its weights were trained\ninclude: ", yaml_string(p.model_file), "\n") : "";
  return str("# ", kind.title, "\n# Written for ", p.gpu ? "a GPU" : "CPUs",
             ". Reference of all keys: ringmaster config docs. Predicted time and memory: ringmaster plan FILE\n",
             model, to_lines(all, includes ? "" : rest_of_model(p.model)));
}

}  // namespace ring
