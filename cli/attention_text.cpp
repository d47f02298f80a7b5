#include "cli/attention_text.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "cli/attention_shares.h"
#include "cli/data_text.h"
#include "cli/eval_long.h"
#include "cli/settings.h"
#include "cli/synonyms.h"
#include "cli/table.h"
#include "core/fields.h"
#include "data/documents.h"
#include "engine/devices.h"
#include "evaluate/prompt.h"
#include "inspect/attention_picture.h"
#include "inspect/attention_reading.h"
#include "inspect/heat_map.h"
#include "inspect/svg.h"
#include "model/attention/kinds.h"
#include "model/attention/trained_parts.h"
#include "model/layer_names.h"
#include "model/patterns.h"

namespace ring {
namespace {

// Bytes to read from the text for each token; only a few tokens of a vocabulary are longer.
constexpr std::size_t kBytesOfToken = 64;

void check_run(const std::string& path) {
  std::error_code none;
  if (std::filesystem::is_regular_file(path, none))
    fail("--text: ", path,
         " is a file, but --text needs trained weights. Give a run or a checkpoint, or omit --text to draw the "
         "pattern of the settings");
}

// Throws Error if the new settings need trained weights, e.g. of an indexer, in a layer that was trained without them.
void check_trained(const ModelConfig& before, const ModelConfig& now, const std::string& run) {
  const std::vector<const AttentionConfig*> had = attentions_of(before), has = attentions_of(now);
  for (std::size_t layer = 0; layer < std::min(had.size(), has.size()); ++layer)
    for (const TrainedPart& part : trained_parts())
      if (part.in(*has[layer]) && !part.in(*had[layer]))
        fail(section_key(*has[layer], now), ": layer ", layer, " of ", run, " was not trained with ", part.name,
             ", so its weights cannot ", part.purpose, " as ", part.setting, " requires. Use ", part.without,
             " here, or train a run with these settings and run.init_from=", run);
}

// Opens the run with different settings, e.g. a different kind of attention, for the same weights.
Session open_with_overrides(const AttentionOnText& a) {
  const auto change = [&](Config& config) {
    if (a.overrides.empty()) return;
    const ModelConfig before = config.model;
    override_config(config, a.overrides, config_aliases());
    check_trained(before, config.model, a.run);
  };
  return open_session(a.run,
                      {.threads = a.threads, .device = DeviceChoice::cpu, .weights = a.weights, .change = change});
}

std::vector<std::int32_t> tokens_of(const AttentionOnText& a, const Session& s) {
  const ModelConfig& m = s.model->config();
  if (a.length) check_length(m, "--length", a.length);
  const auto max = static_cast<std::size_t>(a.length ? a.length : std::min(kUsualTextTokens, m.context));
  std::string text;
  for (const TextFile& file : list_text_files({a.text}, "*", false, {}, FileOptions::none))
    read_text(file, [&](std::string_view part) {
      text += part.substr(0, max * kBytesOfToken - std::min(text.size(), max * kBytesOfToken));
    });
  std::vector<std::int32_t> tokens = prompt_tokens(*s.tokenizer, text);
  if (tokens.size() < 2)
    fail("--text: expected at least 2 tokens, but ", a.text, " has ", tokens.size(), ". Give a longer text");
  if (tokens.size() > max) tokens.resize(max);
  return tokens;
}

class TextReport {
 public:
  TextReport(const AttentionOnText& a, Session& session)
      : a_(a), model_(session.model->config()), parallel_(session.config.parallel), tokens_(tokens_of(a, session)) {
    layers_ = read_layers(*session.model, tokens_, kSvgCells, session.ctx);
    dense_ = cost_of(Pattern{}, 1, length());
  }

  void print(const std::string& checkpoint) const {
    say(str(checkpoint, " on the first ", length(), " tokens of ", a_.text));
    const std::int64_t drawn = a_.layer >= 0 ? a_.layer : layer_to_draw();
    for (const Panel& p : panels_of(drawn)) {
      std::cout << "\n";
      say(p.title);
      say(p.subtitle);
      std::cout << text_picture(p.cells, a_.columns);
    }
    std::cout << "\n";
    print_numbers();
    if (a_.layer < 0) print_recalls();
    print_referenced();
    if (!a_.svg.empty()) write_pictures();
    std::cout.flush();
  }

 private:
  std::int64_t length() const { return static_cast<std::int64_t>(tokens_.size()); }
  const LayerReading& layer(std::int64_t i) const { return layers_[static_cast<std::size_t>(i)]; }

  void say(const std::string& text) const {
    for (const std::string& line : wrapped(text, static_cast<std::size_t>(a_.columns))) std::cout << line << "\n";
  }

  // Returns the first layer that selects blocks; if there is none, the first layer that is not dense.
  std::int64_t layer_to_draw() const {
    const auto first = [&](const auto& is) {
      std::int64_t i = 0;
      while (i < model_.layers && !is(pattern_of(model_, i))) ++i;
      return i;
    };
    const std::int64_t selects = first([](const Pattern&p) { return p.selects(); }),
                       sparse = first([](const Pattern&p) { return !p.is_dense(); });
    return selects < model_.layers ? selects : sparse < model_.layers ? sparse : 0;
  }

  std::vector<Panel> panels_of(std::int64_t i) const {
    const std::string title = str("Layer ", i, ": ", text_of(attention_of(model_, i), a_.head)),
                      head = str("KV head ", a_.head, " of ", model_.kv_heads, ", ", length(), " tokens: ");
    return {
        {title, head + "kept pairs", cells_of(layer(i).kept, static_cast<std::int32_t>(a_.head), length(), kSvgCells)},
        {title, head + "weights of dense attention", layer(i).heads[static_cast<std::size_t>(a_.head)].weights}};
  }

  std::vector<std::string> row(const std::string& name, double recall, double entropy, double dense_entropy,
                               const PatternCost& cost) const {
    const double time = predicted_microseconds(cost, model_.head_dim);
    return {name,
            format_fixed(cost.pairs / dense_.pairs, 4),
            format_fixed(recall, 4),
            format_fixed(entropy, 3),
            format_fixed(dense_entropy, 3),
            format_fixed(predicted_microseconds(dense_, model_.head_dim) / time, 2) + "x"};
  }

  void print_numbers() const {
    std::vector<std::vector<std::string>> rows = {
        {a_.layer < 0 ? "layer" : "KV head", "density", "recall", "entropy", "dense", "speed-up"}};
    if (a_.layer >= 0)
      for (const HeadReading& h : layer(a_.layer).heads)
        rows.push_back(row(str(rows.size() - 1), h.recall, h.entropy, h.dense_entropy, h.cost));
    else
      for (const LayerReading& l : layers_)
        rows.push_back(row(str(rows.size() - 1), l.mean(&HeadReading::recall), l.mean(&HeadReading::entropy),
                           l.mean(&HeadReading::dense_entropy), l.cost));
    constexpr std::int64_t kTableColumns = 56;
    if (a_.columns >= kTableColumns) return print_table(rows, 0);
    for (std::size_t i = 1; i < rows.size(); ++i) {  // prints a list, for narrow terminals
      std::string text;
      for (std::size_t j = 0; j < rows[i].size(); ++j) text += str(j ? ", " : "", rows[0][j], " ", rows[i][j]);
      say(text);
    }
  }

  // Prints recall (dense attention's weight on the kept pairs) by layer and KV head. Prints nothing for a single KV
  // head, or if a row does not fit into the terminal.
  void print_recalls() const {
    HeatMap map{
        .title = "Recall", .column_title = "KV head", .row_title = "layer", .columns = {}, .rows = {}, .shares = {}};
    for (std::int64_t h = 0; h < model_.kv_heads; ++h) map.columns.push_back(str(h));
    for (std::int64_t i = 0; i < model_.layers; ++i) {
      map.rows.push_back(str(i));
      std::vector<double>& recalls = map.shares.emplace_back();
      for (const HeadReading& h : layer(i).heads) recalls.push_back(h.recall);
    }
    constexpr std::int64_t kCellColumns = 8, kOtherColumns = 16;
    if (model_.kv_heads > 1 && model_.kv_heads * kCellColumns + kOtherColumns <= a_.columns)
      std::cout << "\n" << heat_map_text(map);
  }

  void print_referenced() const {
    const std::string title = attended_keys_title(model_, parallel_, length());
    if (title.empty()) return;
    std::cout << "\n";
    say(title);
    for (std::int64_t i = 0; i < model_.layers; ++i)
      if (a_.layer < 0 || a_.layer == i)
        say(str("layer ", i, ": ", attended_keys_text(layer(i).kept, model_, parallel_, length())));
  }

  void write_pictures() const {
    std::vector<Panel> panels;
    for (std::int64_t i = 0; i < model_.layers; ++i)
      if (a_.layer < 0 || a_.layer == i)
        for (Panel& p : panels_of(i)) panels.push_back(std::move(p));
    write_svg("--svg", a_.svg, svg_picture(panels));
  }

  const AttentionOnText& a_;
  const ModelConfig& model_;
  const ParallelConfig& parallel_;
  std::vector<std::int32_t> tokens_;
  std::vector<LayerReading> layers_;
  PatternCost dense_;
};

}  // namespace

void check_layer_and_head(const ModelConfig& m, std::int64_t layer, std::int64_t head) {
  if (layer >= m.layers)
    fail("--layer: expected 0 to ", m.layers - 1, " because the model has ", m.layers, " layers, got ", layer);
  const std::vector<std::int64_t> attention = attention_layers_of(m);
  if (attention.empty() || (layer >= 0 && std::ranges::count(attention, layer) == 0))
    fail("--layer: expected a layer with attention (",
         attention.empty() ? "this model has none" : layers_text(attention), "), got ", layer,
         ", which is a gated delta net (model.mixers)");
  if (head >= m.kv_heads)
    fail("--head: expected 0 to ", m.kv_heads - 1, " because the model has ", m.kv_heads, " KV heads, got ", head);
}

void show_attention_on_text(const AttentionOnText& a) {
  check_run(a.run);
  Session session = open_with_overrides(a);
  check_layer_and_head(session.model->config(), a.layer, a.head);
  TextReport(a, session).print(session.origin.checkpoint);
}

}  // namespace ring
