#pragma once
// Options of benchmarks that select attention patterns.

#include <string>
#include <vector>

#include "cli/command.h"
#include "kernels/attention/pattern.h"

namespace ring {

std::vector<std::string> attention_kind_names();  // e.g. "dense", "window", ...

struct PatternOptions {
  std::int64_t window = 1024, sinks = 0, block = 128;
  std::vector<std::int64_t> segments = {2048, 8192, 32768}, rates = {1, 4, 16};
  bool dedup = false;
  double density = 0.1;
  // keep: number of blocks selected by content; 0 means that blocks are chosen at random.
  // local, first: if keep > 0, the number of newest blocks and of blocks at the start that are always kept.
  std::int64_t keep = 0, local = 2, first = 1;

  void add_to(Command command);
  void add_content_to(Command command);  // call after add_to()
  // Returns a causal pattern; throws Error if the kind does not accept the numbers.
  Pattern pattern_of_kind(const std::string& kind) const;
};

}  // namespace ring
