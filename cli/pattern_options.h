#pragma once
// Options of benchmarks for attention patterns.

#include <string>
#include <vector>

#include "cli/command.h"
#include "kernels/attention/pattern.h"

namespace ring {

std::vector<std::string> attention_kind_names();  // "dense", "window", ...

struct PatternOptions {
  std::int64_t window = 1024, sinks = 0, block = 128;
  std::vector<std::int64_t> segments = {2048, 8192, 32768}, rates = {1, 4, 16};
  bool dedup = false;
  double density = 0.1;
  std::int64_t keep = 0, local = 2, first = 1;  // selection by content; keep 0: blocks at random

  void add_to(Command command);
  void add_content_to(Command command);                    // call after add_to()
  Pattern pattern_of_kind(const std::string& kind) const;  // causal; throws Error if the kind refuses the numbers
};

}  // namespace ring
