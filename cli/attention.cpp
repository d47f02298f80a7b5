#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <list>
#include <map>

#include "cli/attention_shares.h"
#include "cli/attention_text.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/data_text.h"
#include "cli/print.h"
#include "cli/settings.h"
#include "cli/weights_option.h"
#include "core/fields.h"
#include "data/output_file.h"
#include "engine/config.h"
#include "inspect/attention_cost.h"
#include "inspect/attention_picture.h"
#include "inspect/svg.h"
#include "kernels/attention/blocks.h"
#include "model/attention/importance/importance.h"
#include "model/attention/kinds.h"
#include "model/attention_schedule.h"
#include "model/flops.h"
#include "model/layer_names.h"
#include "model/patterns.h"
#include "text/tokenizer.h"
#include "trainer/progress.h"

namespace ring {
namespace {

struct PatternArguments {
  std::string file, svg;
  std::vector<std::string> overrides;
  std::string text;
  SavedWeights weights = SavedWeights::latest;
  int threads = 0;
  std::int64_t layer = -1, length = 0, head = 0, width = 0;
  Option layer_option, length_option, width_option;
};

// Layers of a section that have the same cost. Costs may differ between dilated layers, whose heads sample different
// positions.
struct Group {
  std::vector<std::int64_t> layers;
  PatternCost cost;
};

// Layers with the same settings.
struct Section {
  const AttentionConfig* settings;
  std::vector<std::int64_t> layers;
  Pattern pattern;  // pattern of the first layer
  std::vector<Group> groups;
};

std::string three_digits(double value) { return format_fixed(value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2); }

// Formats a number with three significant digits and an SI prefix, e.g. 1.23 GFLOPs.
std::string amount(double value, const char* unit) {
  const char* prefix = " KMGTPEZY";
  while (value >= 999.5 && prefix[1]) value /= 1000, ++prefix;
  return three_digits(value) + (*prefix == ' ' ? " " : str(" ", *prefix)) + unit;
}

std::string times(double x) { return three_digits(x) + "x"; }

std::string title_of(const Section& s, std::int64_t kv_head) {
  return str(s.layers.size() > 1 ? "Layers " : "Layer ", layers_text(s.layers), ": ", text_of(*s.settings, kv_head));
}

// Caches costs, so that each pattern is counted only once.
class Costs {
 public:
  Costs(std::int64_t kv_heads, std::int64_t length) : kv_heads_(kv_heads), length_(length) {}

  const PatternCost& of(const Pattern& p) {
    auto at = std::ranges::find_if(known_, [&](const auto& k) { return same_pairs(k.first, p); });
    if (at == known_.end()) at = known_.insert(at, {p, cost_of(p, kv_heads_, length_)});
    return at->second;
  }

 private:
  std::int64_t kv_heads_, length_;
  std::list<std::pair<Pattern, PatternCost>> known_;
};

std::vector<Section> sections_of(const ModelConfig& m, std::int64_t length) {
  const std::vector<Pattern> patterns = patterns_of(m);
  std::vector<Section> sections;
  std::map<std::string, std::size_t> known;
  Costs costs(m.kv_heads, length);
  for (const std::int64_t layer : attention_layers_of(m)) {
    const AttentionConfig& settings = attention_of(m, layer);
    const Pattern& pattern = patterns[static_cast<std::size_t>(layer)];
    if (pattern.blocks) pattern.blocks->check_covers(length, "--length");
    const auto [at, fresh] = known.insert({to_yaml(settings), sections.size()});
    if (fresh) sections.push_back({&settings, {}, pattern, {}});
    Section& section = sections[at->second];
    section.layers.push_back(layer);
    const PatternCost& cost = costs.of(pattern);
    auto group =
        std::find_if(section.groups.begin(), section.groups.end(), [&](const Group& g) { return g.cost == cost; });
    if (group == section.groups.end()) group = section.groups.insert(group, {{}, cost});
    group->layers.push_back(layer);
  }
  return sections;
}

// Returns the section reduced to the layer that --layer selects.
Section only(const std::vector<Section>& all, const ModelConfig& m, std::int64_t layer) {
  const auto in = [&](const auto& x) { return std::find(x.layers.begin(), x.layers.end(), layer) != x.layers.end(); };
  const Section& section = *std::find_if(all.begin(), all.end(), in);
  const Group& group = *std::find_if(section.groups.begin(), section.groups.end(), in);
  return {section.settings, {layer}, pattern_of(m, layer), {{{layer}, group.cost}}};
}

// Returns the FLOPs of all heads, forward and backward, counted as in flops_per_token. pairs: number of pairs of a
// query and a key per head.
double flops_of(const ModelConfig& m, double pairs) { return 12 * static_cast<double>(m.heads * m.head_dim) * pairs; }

std::int64_t columns_of(const PatternArguments& a) {
  return a.width_option.given() ? a.width : std::clamp<std::int64_t>(terminal_columns(), kMinColumns, 80);
}

struct Column {
  const char* name;
  int width;  // in characters; left-aligned if negative
};
constexpr Column kColumns[] = {{"layers", -8}, {"density", 7}, {"repeated", 8}, {"dense", 7},
                               {"kept", 7},    {"saved", 6},   {"speed-up", 8}, {"largest cost", -1}};
constexpr std::int64_t kTableColumns = 80;

class PatternReport {
 public:
  PatternReport(const PatternArguments& a, ModelConfig m, ParallelConfig parallel)
      : arguments_(a),
        model_(std::move(m)),
        parallel_(std::move(parallel)),
        length_(a.length_option.given() ? a.length : model_.context),
        columns_(columns_of(a)),
        all_(sections_of(model_, length_)),
        dense_(cost_of(Pattern{}, model_.kv_heads, length_)) {}

  void print() const {
    std::vector<Section> sections = all_;
    if (arguments_.layer_option.given()) sections = {only(all_, model_, arguments_.layer)};
    std::vector<Panel> panels;
    const std::int64_t max = std::max(arguments_.svg.empty() ? 1 : kSvgCells, cells_in_columns(length_, columns_));
    for (const Section& s : sections)
      panels.push_back({title_of(s, arguments_.head), subtitle(s),
                        cells_of(s.pattern, static_cast<std::int32_t>(arguments_.head), length_, max)});
    if (!arguments_.svg.empty()) write_svg(panels);
    for (const Panel& p : panels) {
      print_wrapped(p.title);
      print_wrapped(p.subtitle);
      std::cout << text_picture(p.cells, columns_) << "\n";
    }
    print_table(sections);
    print_shares(sections);
    print_referenced(sections);
    print_model();
    std::cout.flush();
  }

 private:
  void print_wrapped(const std::string& text) const {
    for (const std::string& line : wrapped(text, static_cast<std::size_t>(columns_))) std::cout << line << "\n";
  }

  std::string subtitle(const Section& s) const {
    std::string text = str("KV head ", arguments_.head, " of ", model_.kv_heads, ", ", length_, " tokens");
    if (s.pattern.has_samples()) text += str(", positions of layer ", s.layers[0]);
    if (found_in_training(s)) text += "; selected blocks are drawn as the newest ones; --text shows the actual ones";
    return text;
  }

  void write_svg(std::vector<Panel> panels) const {
    for (Panel& p : panels) p.cells = p.cells.coarsened(kSvgCells);
    ring::write_svg("--svg", arguments_.svg, svg_picture(panels));
  }

  double speed_up(const PatternCost& cost) const {
    return predicted_microseconds(dense_, model_.head_dim) / predicted_microseconds(cost, model_.head_dim);
  }

  void print_table(const std::vector<Section>& sections) const {
    print_wrapped(
        str("Attention of one layer over ", length_, " tokens, ", amount(dense_.pairs, ""),
            " causal pairs. Density: mean over heads. FLOPs: of all heads, dense and kept. Speed-up: predicted"));
    const bool wide = columns_ >= kTableColumns;
    if (wide) {
      for (const Column& c : kColumns) print_format(c.width > 0 ? " %*s" : " %-*s", std::abs(c.width), c.name);
      print_format("\n");
    }
    for (const Section& s : sections) {
      print_wrapped(text_of(*s.settings) + ":");
      for (const Group& g : s.groups) wide ? print_row(g) : print_column(g);
    }
    print_format("\n");
  }

  std::vector<std::string> values_of(const Group& g) const {
    const double pairs = g.cost.pairs;
    return {layers_text(g.layers),
            format_fixed(pairs / dense_.pairs, 4),
            format_fixed(g.cost.repeated / dense_.pairs, 4),
            amount(flops_of(model_, dense_.pairs), ""),
            amount(flops_of(model_, pairs), ""),
            percent(1 - pairs / dense_.pairs),
            times(speed_up(g.cost)),
            largest_cost_text(g.cost, model_.head_dim)};
  }

  void print_row(const Group& g) const {
    std::vector<std::string> values = values_of(g);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const int width = kColumns[i].width;
      // Long lists of layers are printed on a separate line.
      if (i == 0 && values[i].size() > static_cast<std::size_t>(-width)) {
        for (const std::string& line : wrapped(values[i], static_cast<std::size_t>(columns_ - 1)))
          print_format(" %s\n", line.c_str());
        values[i].clear();
      }
      print_format(width > 0 ? " %*s" : " %-*s", std::abs(width), values[i].c_str());
    }
    print_format("\n");
  }

  // Prints one value per line, for narrow terminals.
  void print_column(const Group& g) const {
    const std::vector<std::string> values = values_of(g);
    for (std::size_t i = 0; i < values.size(); ++i) print_wrapped(str(i ? "- " : "", kColumns[i].name, " ", values[i]));
  }

  void print_shares(const std::vector<Section>& sections) const {
    const std::string degrees = sharing_degrees_text(parallel_);
    if (degrees.empty()) return;
    print_wrapped(str("Pairs of the busiest rank / mean over ranks, with ", degrees, " (1 = even):"));
    for (const Section& s : sections)
      for (const Group& g : s.groups) {
        const std::string shares = imbalance_text(pattern_of(model_, g.layers[0]), model_, parallel_, length_);
        print_wrapped(str("layers ", layers_text(g.layers), ": ",
                          shares.empty() ? "parallel.tp does not divide the KV heads" : shares));
      }
    print_format("\n");
  }

  void print_referenced(const std::vector<Section>& sections) const {
    const std::string title = attended_keys_title(model_, parallel_, length_);
    if (title.empty()) return;
    print_wrapped(title);
    for (const Section& s : sections)
      for (const Group& g : s.groups)
        print_wrapped(str("layers ", layers_text(g.layers), ": ",
                          found_in_training(s)
                              ? "known only for a run and a text (--text)"
                              : attended_keys_text(pattern_of(model_, g.layers[0]), model_, parallel_, length_)));
    print_format("\n");
  }

  // Returns true if training, not the settings, determines which blocks the section's layers keep.
  bool found_in_training(const Section& s) const {
    return s.pattern.selects() || uses_importance(*s.settings, model_.kv_heads);
  }

  void print_model() const {
    double pairs = 0, time = 0;
    for (const Section& s : all_)
      for (const Group& g : s.groups) {
        pairs += static_cast<double>(g.layers.size()) * g.cost.pairs;
        time += static_cast<double>(g.layers.size()) * predicted_microseconds(g.cost, model_.head_dim);
      }
    const std::size_t count = attention_layers_of(model_).size();
    const auto layers = static_cast<double>(count);
    const double dense_pairs = layers * dense_.pairs;
    print_wrapped(str(
        "All ", count, count == 1 ? " layer" : " layers", ": attention ", amount(flops_of(model_, pairs), "FLOPs"),
        " per sequence, dense ", amount(flops_of(model_, dense_pairs), "FLOPs"), ": ", percent(1 - pairs / dense_pairs),
        " saved; predicted on an H200: ", times(layers * predicted_microseconds(dense_, model_.head_dim) / time),
        " as fast"));
    ModelConfig dense = model_;
    dense.context = length_;
    dense.attention = {};
    dense.attention_layers.clear();
    if (!model_.vocab_size) dense.vocab_size = bytes_tokenizer()->vocab_size();
    const double per_token = flops_per_token(dense);
    const double saved = flops_of(model_, dense_pairs - pairs) / static_cast<double>(length_);
    print_wrapped(
        str("Training: ", amount(per_token - saved, "FLOPs"), " per token, dense ", amount(per_token, "FLOPs"), ": ",
            percent(saved / per_token), " saved",
            model_.vocab_size ? "" : str(" (with a vocabulary of ", dense.vocab_size, " because none is set)")));
  }

  const PatternArguments& arguments_;
  ModelConfig model_;
  ParallelConfig parallel_;
  std::int64_t length_, columns_;
  std::vector<Section> all_;
  PatternCost dense_;
};

void show_patterns(const PatternArguments& a) {
  if (!a.svg.empty()) check_svg_path("--svg", a.svg);
  check_output_is_no_input("--svg", a.svg, {a.file, a.text});
  if (!a.text.empty())
    return show_attention_on_text(
        {a.file, a.text, a.svg, a.overrides, a.weights, a.threads, a.layer, a.head, a.length, columns_of(a)});
  const Config config = load_settings(a.file, a.overrides);
  const ModelConfig model = with_attention_at(config.model.resolved(), kAfterAllTokens);
  check_layer_and_head(model, a.layer, a.head);
  PatternReport(a, model, config.parallel).print();
}

}  // namespace

void add_attention_commands(Command app) {
  const Command attention = app.add_subcommand(
      "attention", "Show which tokens a model attends to, the cost, and which layers need long-range attention");
  attention.require_subcommand();
  const Command cmd = attention.add_subcommand(
      "show", "Draw attention patterns of a configuration or run; print density, FLOPs saved, predicted speed-up");
  PatternArguments& a = cmd.runs(show_patterns);
  cmd.add_option("config", a.file, kSettingsText).required().type_name("FILE");
  cmd.add_option("overrides", a.overrides, "settings to change, such as model.attention.window=64")
      .type_name("KEY=VALUE");
  a.layer_option = cmd.add_number(
      "--layer", a.layer, "Show only this layer, counted from 0; default: each kind of layer once", 0, kMaxCount);
  a.length_option = cmd.add_number(
      "--length", a.length, "Tokens of the sequence; default: model.context, at most 4096 with --text", 1, kMaxLength);
  cmd.add_number("--head", a.head, "KV head to draw, counted from 0", 0, kMaxCount).show_default();
  cmd.add_option("--svg", a.svg, "Also write the pictures to this file").type_name("FILE");
  a.width_option = cmd.add_number(
      "--width", a.width, "Columns of the output; default: the terminal's width, at most 80", kMinColumns, 10'000);
  cmd.add_option("--text", a.text,
                 "Draw which tokens the model attends to in this file (text or JSON Lines, also compressed)")
      .type_name("FILE");
  cmd.add_number("--threads", a.threads, "With --text: CPU threads; 0: all cores", 0, kMaxThreads).needs("--text");
  add_weights(cmd, a.weights).needs("--text");
  cmd.footer(str(
      "Columns of the table\n"
      "  density       computed (query, key) pairs as a share of those of dense causal attention\n"
      "  repeated      pairs that several dilated branches keep, as a share of those of dense causal attention.\n"
      "                Density counts each as often as it is kept; the picture shows it once\n"
      "  dense, kept   FLOPs of one sequence in one layer, forward and backward: 12 x heads x head_dim per pair\n"
      "  speed-up      of the forward over ringmaster's own dense kernel, predicted for a GPU that has enough heads\n"
      "                and sequences to be full. The model, of one H200: for every head ",
      kTileMicroseconds, " us for each tile of\n                ", kTileQueries, " queries x ", kTileKeys,
      " keys that the kernel touches (at head_dim 128; other head sizes are padded to\n                64, 128 or 256 "
      "and scale in proportion), and ",
      kRowBlockMicroseconds, " us for each block of ", kTileQueries,
      " queries, counted again for every dilated branch and segment\n"
      "  largest cost  the part of that time which costs most: a dilated branch (segment/rate) or the heads of one\n"
      "                block rule; if there is only one part, its tiles or its blocks of queries (row blocks)\n\n"
      "With parallel.cp or parallel.tp: how evenly the ranks share a layer's pairs, by rows in contiguous or zigzag\n"
      "order (ring and gather) or by heads (all_to_all, tp)\n\n"
      "With parallel.cp, also with --text: the share of other ranks' keys that a rank attends to, of the keys that\n"
      "come before some query of the rank, which a ring would transfer. It is shown for one KV head (mean of all)\n"
      "and for the union of the rank's KV heads\n\n"
      "Columns with --text\n"
      "  recall        weight that dense attention over the same queries and keys gives to the kept pairs\n"
      "  entropy       of the weights, in nats; dense: entropy of dense attention's weights\n\n"
      "Examples: ringmaster attention show configs/shakespeare_dilated.yaml\n"
      "          ringmaster attention show configs/shakespeare_block_sparse.yaml --head 2 --svg pattern.svg\n"
      "          ringmaster attention show configs/shakespeare_block_sparse.yaml parallel.cp=2\n"
      "          ringmaster attention show runs/quickstart --text notes.txt --layer 2\n"
      "          ringmaster attention show runs/quickstart --text notes.txt parallel.cp=4\n"
      "          ringmaster attention show configs/llama_1b.yaml --length 32768 model.attention.kind=window "
      "model.attention.window=1024"));
  add_attention_fit(attention);
}

}  // namespace ring
