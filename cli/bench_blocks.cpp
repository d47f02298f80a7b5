#include <algorithm>
#include <cmath>
#include <iostream>

#include "bench/block_sizes.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/data_text.h"
#include "cli/print.h"
#include "cli/table.h"
#include "core/counted.h"
#include "engine/devices.h"
#include "model/attention/block_size.h"
#include "model/attention/kinds.h"
#include "model/attention/section_text.h"

namespace ring {
namespace {

// Maximum default length on a CPU and on a GPU. Longer sequences take long to measure: seconds per call on a CPU, and
// also on a GPU if blocks keep a large share of the pairs.
constexpr std::int64_t kUsualLength[] = {4096, 131072};
constexpr double kAlike = 0.05;  // relative difference in kept keys up to which no note is printed

struct BlockArguments {
  BenchConfig config;
  std::int64_t length = 0;
  double seconds = 0.2;
};

std::int64_t length_of(const BlockArguments& a, const Config& c) {
  if (a.length > 0) return a.length;
  const std::int64_t usual = kUsualLength[backend_of(c.run.device) == Backend::cuda];
  if (c.model.context > usual)
    print_format("sequences of %lld tokens instead of model.context: %lld; set another length with --length\n",
                 static_cast<long long>(usual), static_cast<long long>(c.model.context));
  return std::min(c.model.context, usual);
}

void print_times(const std::vector<BlockTiming>& times) {
  std::vector<std::vector<std::string>> rows = {
      {"block", "keys", "routing ms", "forward ms", "backward ms", "all ms", "share", "kernels"}};
  for (const BlockTiming& t : times)
    rows.push_back({str(t.attention.block), format_fixed(t.keys, 1), format_fixed(1e3 * t.routing, 3),
                    format_fixed(1e3 * t.forward, 3), format_fixed(1e3 * t.backward, 3),
                    format_fixed(1e3 * t.seconds(), 3), percent(t.routing / t.seconds()),
                    str(t.forward_candidate, ", ", t.backward_candidate)});
  print_table(rows, 0);
}

void print_setting(const BlockLayers& layers, const std::vector<BlockTiming>& times) {
  const std::size_t at = index_of_fastest(times);
  const BlockTiming &best = times[at], &other = times[1 - at];
  print_format("blocks of %lld: %s times as fast%s\n", static_cast<long long>(best.attention.block),
               format_fixed(other.seconds() / best.seconds(), 2).c_str(), at == 0 ? ", as in the settings" : "");
  if (const double more = best.keys / other.keys; std::abs(more - 1) > kAlike)
    print_format("but with %s times as many keys because only whole blocks are kept; a larger keep evens this out\n",
                 format_fixed(more, 2).c_str());
  for (const std::string& key : layers.keys)
    print_format("  '%s=%s'\n", key.c_str(), block_text(best.attention).c_str());
}

// Returns the layers whose block size can be changed.
std::vector<BlockLayers> free_layers(const std::string& file, const ModelConfig& m) {
  std::vector<BlockLayers> all = block_sparse_layers(m);
  if (all.empty())
    fail(file, ": no layer has kind: block_sparse. Set model.attention, for example ",
         "'model.attention={kind: block_sparse, rules: [{pattern: content, local: 2, keep: 16}]}'");
  const auto is_free = [](const BlockLayers& l) { return can_change_block_size(l.attention); };
  if (std::ranges::none_of(all, is_free))
    fail(all.front().keys.front(), ".rules: pattern: file fixes the block size at ",
         block_size_of(all.front().attention),
         " tokens, so there is no other size to measure. Give a file with another block size");
  for (const BlockLayers& l : all)
    if (!is_free(l))
      print_format("%s: left out because pattern: file fixes the block size\n\n", l.keys.front().c_str());
  std::erase_if(all, [&](const BlockLayers& l) { return !is_free(l); });
  return all;
}

void run_blocks(const BlockArguments& a) {
  const Config config = a.config.load();
  const std::vector<BlockLayers> all = free_layers(a.config.file, config.model.resolved());
  const std::int64_t length = length_of(a, config);
  for (const BlockLayers& layers : all) {
    print_format("%s, %s: %s\n", layers.keys.front().c_str(), counted(layers.layers, "layer").c_str(),
                 text_of(layers.attention).c_str());
    std::cout.flush();
    const std::vector<BlockTiming> times = time_blocks(config, layers, length, a.seconds);
    print_times(times);
    print_setting(layers, times);
    if (&layers != &all.back()) print_format("\n");
  }
}

}  // namespace

void add_bench_blocks(Command bench) {
  const Command cmd = bench.add_subcommand(
      "blocks", "Find the faster block size for a model's attention, 64 or 128 tokens, and print its settings");
  BlockArguments& a = cmd.runs(run_blocks);
  a.config.add_to(cmd);
  cmd.add_number(
      "--length", a.length,
      str("Tokens per sequence; 0: model.context, on a CPU at most ", kUsualLength[0], ", on a GPU ", kUsualLength[1]),
      0, kMaxLength);
  cmd.add_number("--seconds", a.seconds, "Seconds to repeat each kernel", 1e-6, 3600).show_default();
  cmd.footer(
      "Measures one layer on one micro-batch (train.micro_batch) of random tokens. Columns of the table\n"
      "  keys     keys that a query sees, mean over queries\n"
      "  routing  time of selecting blocks and of training the selection\n"
      "  share    routing as a share of the whole time\n\n"
      "Example: ringmaster bench blocks configs/shakespeare_content.yaml");
}

}  // namespace ring
