#include "cli/pattern_options.h"

#include <CLI/CLI.hpp>

#include "cli/number_option.h"
#include "core/check.h"
#include "kernels/attention/blocks.h"

namespace ring {

std::vector<std::string> attention_kinds() { return {"dense", "window", "dilated", "block_sparse"}; }

void PatternOptions::add_to(CLI::App& cmd) {
  add_number(cmd, "--window", window, "Of windows: keys that a query sees", 1, kMostLength)->capture_default_str();
  add_number(cmd, "--sinks", sinks, "Of windows: first keys that all see", 0, kMostLength)->capture_default_str();
  add_number(cmd, "--segments", segments, "Of dilated attention, with commas", 1, kMostLength)->capture_default_str();
  add_number(cmd, "--rates", rates, "Of dilated attention, with commas", 1, kMostLength)->capture_default_str();
  cmd.add_flag("--dedup", dedup, "Of dilated attention: pairs count once");
  add_number(cmd, "--block", block, "Of block patterns: 64 or 128", 64, 128)->capture_default_str();
  add_number(cmd, "--density", density, "Of block patterns: share of blocks, drawn at random", 0, 1)
      ->capture_default_str();
}

Pattern PatternOptions::of(const std::string& kind) const {
  Pattern p;
  if (kind == "window") {
    p.kind = AttentionKind::window;
    p.window = window, p.sinks = sinks;
  } else if (kind == "dilated") {
    p.kind = AttentionKind::dilated;
    if (segments.size() != rates.size())
      fail("--segments has ", segments.size(), " numbers, --rates ", rates.size(), ": give one of each per branch");
    for (std::size_t i = 0; i < segments.size(); ++i) p.branches.push_back({segments[i], rates[i]});
    p.dedup = dedup;
  } else if (kind == "block_sparse") {
    p.kind = AttentionKind::block_sparse;
    if (block != 64 && block != 128) fail("--block: ", block, " tokens, but blocks have 64 or 128");
    const BlockRule rule{.kind = BlockRuleKind::random, .threshold = random_threshold(density), .seed = 1};
    p.blocks = std::make_shared<BlockPattern>(block, std::vector{rule});
  }
  return p;
}

}  // namespace ring
