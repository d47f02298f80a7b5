#include "tests/layouts/matrix.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <tuple>
#include <utility>

#include "core/check.h"

namespace ring::test {
namespace {

void append(Settings& to, const Settings& more) { to.insert(to.end(), more.begin(), more.end()); }

const Settings kRing = {"parallel.cp_schedule=ring"}, kGather = {"parallel.cp_schedule=gather"},
               kAllToAll = {"parallel.cp_schedule=all_to_all"},
               kHybrid = {"parallel.cp_schedule=hybrid", "parallel.cp_ranks_per_node=2"},
               kChunks = {"train.sequence_chunk=256", "train.micro_batch=1"};

Settings with(Settings settings, const std::string& more) {
  settings.push_back(more);
  return settings;
}

// Returns a layout with two pipeline stages.
Layout in_stages(const std::string& name, int ranks, const Settings& settings) {
  Layout layout{name, ranks, 1, 1, settings};
  layout.pp = 2;
  return layout;
}

// Two of a cell's four values: (dimension, value) twice.
using Pair = std::array<std::string, 4>;

std::vector<Pair> pairs_of(const Cell& c) {
  const std::array<std::string, 4> values = {c.kind.name, c.layout.name, c.packed ? "packed" : "plain",
                                             c.graph ? "graph" : "launched"};
  std::vector<Pair> pairs;
  for (std::size_t a = 0; a < values.size(); ++a)
    for (std::size_t b = a + 1; b < values.size(); ++b) pairs.push_back({str(a), values[a], str(b), values[b]});
  return pairs;
}

std::vector<Cell> legal_cells(const std::vector<Kind>& kinds, const std::vector<Layout>& layouts) {
  std::vector<Cell> cells;
  for (const Layout& layout : layouts)
    for (const Kind& kind : kinds)
      for (const bool packed : {false, true})
        for (const bool graph : {false, true})
          if (const Cell cell{kind, layout, packed, graph}; legal(cell)) cells.push_back(cell);
  return cells;
}

// Sorts cells by their axes, in the order in which the axes first occur in `layouts`.
void sort_by_axes(std::vector<Cell>& cells, const std::vector<Layout>& layouts) {
  const auto position = [&](const Cell& c) {
    return std::ranges::find(layouts, c.layout.axes(), &Layout::axes) - layouts.begin();
  };
  std::ranges::stable_sort(cells, {}, [&](const Cell& c) { return std::tuple(position(c), c.layout.name); });
}

}  // namespace

Settings Layout::axes() const {
  Settings out;
  for (const auto& [name, degree] : {std::pair{"islands", islands}, {"pp", pp}, {"cp", cp}, {"tp", tp}})
    if (degree > 1) out.push_back(str("parallel.", name, "=", degree));
  return out;
}

std::string name_of(const Cell& c) {
  return str("kind=", c.kind.name, " layout=", c.layout.name, c.packed ? " packed" : "", c.graph ? " graph" : "");
}

Settings settings_of_one_rank(const Cell& c) {
  Settings out = {str("model.kv_heads=", c.kind.kv_heads)};
  append(out, c.kind.settings);
  out.push_back(str("data.packing.documents=", c.packed ? "true" : "false"));
  return out;
}

Settings settings_of(const Cell& c) {
  Settings out = settings_of_one_rank(c);
  append(out, c.layout.axes());
  append(out, c.layout.settings);
  out.push_back(str("train.cuda_graph=", c.graph ? "on" : "off"));
  return out;
}

// The settings suit contexts of at least 512 tokens and four KV heads. Rules that select occur together with a rule
// that does not, so that some ranks have only heads that select nothing. Importance is measured in the first
// micro-batch of each replica, so `importance` sets micro_batch=0: layouts agree only if this micro-batch holds all
// sequences.
std::vector<Kind> all_kinds() {
  const std::string blocks = "model.attention.kind=block_sparse", small = "model.attention.block=64";
  return {
      {"dense", {}},
      {"one_kv_head", {}, 1},
      {"window", {"model.attention={kind: window, window: 200, sinks: 2}"}},
      {"dilated", {"model.attention={kind: dilated, segments: [128, 256, 1024], rates: [1, 2, 4]}"}},
      {"block_rules",
       {blocks, small,
        "model.attention.rules=[{pattern: local_global, local: 2, first: 1}, {pattern: strided, local: 2, every: 3}, "
        "{pattern: hierarchical, local: 2}]",
        "model.attention.heads=[0, 1, 2, 0]"}},
      {"content",
       {blocks, small,
        "model.attention.rules=[{pattern: content, keep: 4, first: 1, local: 2}, {pattern: content, keep: 5, local: 2, "
        "mass: 0.8}, {local: 2}]",
        "model.attention.heads=[0, 1, 1, 2]"},
       4,
       true},
      {"learned",
       {blocks, small,
        "model.attention.rules=[{pattern: learned, keep: 4, first: 1, local: 2}, {pattern: learned, keep: 3, local: "
        "2}, {local: 2}]",
        "model.attention.heads=[0, 1, 1, 2]", "model.attention.index_heads=2", "model.attention.index_distances=8",
        "model.attention.index_warmup_steps=4"},
       4,
       true},
      {"importance",
       {"train.micro_batch=0", blocks, small,
        "model.attention.rules=[{pattern: importance, keep: 5, first: 1, interval: 5, explore: 1}, {local: 2}]",
        "model.attention.heads=[0, 0, 0, 1]"},
       4,
       false,
       true},
      {"pools",
       {"model.attention={kind: window, window: 70, pools: [16, 50], pooling: learned, pool_gates: true}",
        "model.attention_layers=[{layers: 1, attention: {kind: block_sparse, block: 64, rules: [{pattern: content, "
        "keep: 3}], pools: [16]}}]"},
       4,
       true,
       true}};
}

std::vector<Layout> all_layouts(int ranks) {
  RING_CHECK(ranks == 2 || ranks == 4, "expected 2 or 4 ranks, got ", ranks);
  const int half = ranks / 2;
  std::vector<Layout> out = {
      {"dp", ranks, 1, 1, {}, false, true},
      {"zero1", ranks, 1, 1, {"parallel.zero=1"}},
      {"zero2", ranks, 1, 1, {"parallel.zero=2"}},
      {"zero3", ranks, 1, 1, {"parallel.zero=3"}},
      {"cp_ring", ranks, ranks, 1, kRing},
      {"cp_gather", ranks, ranks, 1, kGather},
      {"cp_all_to_all", ranks, ranks, 1, kAllToAll, true},
      {"cp_by_node", ranks, ranks, 1, with(kRing, str("parallel.cp_ranks_per_node=", half))},
      {"cp_referenced", ranks, ranks, 1, with(kRing, "parallel.cp_keys=referenced"), false, false, true},
      {"tp", ranks, 1, ranks},
      {"cp_zero3", ranks, 2, 1, with(kGather, "parallel.zero=3")},
      {"cp_chunks", ranks, ranks, 1, kChunks, true, false, false, true},
      in_stages("pp_slices", ranks, {"parallel.pp_slices=4", "train.micro_batch=1", "parallel.pp_order=eager_1f1b"}),
  };
  if (ranks == 2) {
    out.push_back(in_stages("pp", ranks, {}));
    out.push_back(in_stages("pp_parts", ranks, {"parallel.pp_parts=2", "train.micro_batch=2"}));
    return out;
  }
  out.push_back(in_stages("pp_zero1", ranks, {"parallel.zero=1"}));
  out.push_back(in_stages("pp_zero2", ranks, {"parallel.zero=2"}));
  out.push_back({"tp_cp_ring", ranks, half, half, kRing});
  out.push_back({"tp_cp_all_to_all", ranks, half, half, kAllToAll, true});
  out.push_back({"tp_cp_chunks", ranks, half, half, kChunks, true, false, false, true});
  out.push_back({"tp_zero3", ranks, 1, half, {"parallel.zero=3"}});
  out.push_back({"cp_hybrid", ranks, ranks, 1, kHybrid, false, false, false, false, true});
  return out;
}

std::string expected_refusal(const Cell& c) {
  if (c.kind.kv_heads % c.layout.tp != 0) return str("parallel.tp: ", c.layout.tp, " does not divide model.heads");
  if (c.layout.pp > 1 && (c.kind.selects || c.kind.needs_whole))
    return "supports neither model.attention.rules with pattern";
  if (c.layout.in_chunks && c.kind.needs_whole) return "supports neither model.attention.rules with pattern";
  if (c.layout.hybrid && (c.kind.selects || c.kind.needs_whole)) return "parallel.cp_schedule: hybrid does not support";
  if (c.layout.hybrid && c.kind.kv_heads % 2 != 0) return "parallel.cp_schedule: hybrid shares the KV heads";
  if (c.layout.all_to_all && c.kind.kv_heads / c.layout.tp % c.layout.cp != 0)
    return str(c.layout.in_chunks ? str("parallel.cp: ", c.layout.cp) : "parallel.cp_schedule: all_to_all",
               " shares the KV heads");
  return "";
}

bool legal(const Cell& c) {
  if (!expected_refusal(c).empty()) return false;
  if (c.layout.for_selected_keys && !c.kind.selects) return false;
  return !c.graph || (c.layout.supports_graph && !c.packed);
}

std::vector<Cell> pairwise_cells(const std::vector<Kind>& kinds, const std::vector<Layout>& layouts) {
  const std::vector<Cell> candidates = legal_cells(kinds, layouts);
  std::vector<std::vector<Pair>> pairs;
  std::set<Pair> missing;
  for (const Cell& c : candidates) {
    pairs.push_back(pairs_of(c));
    missing.insert(pairs.back().begin(), pairs.back().end());
  }
  const auto new_pairs = [&](const std::vector<Pair>& of_cell) {
    return std::ranges::count_if(of_cell, [&](const Pair& p) { return missing.contains(p); });
  };
  std::vector<Cell> chosen;
  while (!missing.empty()) {
    const auto best = std::ranges::max_element(pairs, {}, new_pairs);  // the first of several
    for (const Pair& p : *best) missing.erase(p);
    chosen.push_back(candidates[static_cast<std::size_t>(best - pairs.begin())]);
  }
  sort_by_axes(chosen, layouts);
  return chosen;
}

std::vector<Cell> refused_cells(const std::vector<Kind>& kinds, const std::vector<Layout>& layouts) {
  std::vector<Cell> cells;
  for (const Layout& layout : layouts)
    for (const Kind& kind : kinds)
      if (const Cell cell{kind, layout}; !expected_refusal(cell).empty()) cells.push_back(cell);
  return cells;
}

}  // namespace ring::test
