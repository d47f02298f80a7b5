#include "trainer/commands/pattern_options.h"

#include <CLI/CLI.hpp>

#include "core/check.h"
#include "kernels/attention/blocks.h"

namespace ring {

std::vector<std::string> attention_kinds() { return {"dense", "window", "dilated", "block_sparse"}; }

void PatternOptions::add_to(CLI::App& cmd) {
  cmd.add_option("--window", window, "Of windows: keys that a query sees")->capture_default_str();
  cmd.add_option("--sinks", sinks, "Of windows: first keys that all see")->capture_default_str();
  cmd.add_option("--segments", segments, "Of dilated attention, with commas")->delimiter(',')->capture_default_str();
  cmd.add_option("--rates", rates, "Of dilated attention, with commas")->delimiter(',')->capture_default_str();
  cmd.add_flag("--dedup", dedup, "Of dilated attention: pairs count once");
  cmd.add_option("--block", block, "Of block patterns: 64 or 128")->capture_default_str();
  cmd.add_option("--density", density, "Of block patterns: share of blocks, drawn at random")
      ->check(CLI::Range(0.0, 1.0))
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
    const BlockRule rule{.kind = BlockRuleKind::random, .threshold = random_threshold(density), .seed = 1};
    p.blocks = std::make_shared<BlockPattern>(block, std::vector{rule});
  }
  return p;
}

}  // namespace ring
