#include "engine/compression_choice.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>

#include "comm/host.h"
#include "comm/leader.h"
#include "core/clock.h"
#include "core/counted.h"
#include "core/log.h"
#include "engine/devices.h"
#include "engine/origin.h"
#include "parallel/compression.h"
#include "parallel/gradient_sum.h"
#include "parallel/parallelize.h"

namespace ring {
namespace {

// Sums are measured with few elements first. If they take less than kLongSeconds, kManyElements are measured instead.
constexpr std::int64_t kFewElements = std::int64_t{1} << 16, kManyElements = std::int64_t{1} << 20;
constexpr double kLongSeconds = 0.1;
constexpr int kRounds = 3;  // the best round counts, because other programs can only add time

// Measures sums of gradients over the ranks that share the data, compressed or not.
class MeasuredSums {
 public:
  MeasuredSums(const Config& c, Mesh& mesh)
      : ctx_(make_exec_context_before_run(c, mesh)),
        mesh_(mesh),
        all_(mesh.group(kDataAxes)),
        ranks_(compression_ranks(mesh)),
        reduce_(c.parallel.reduce) {}

  // Returns the seconds that the slowest rank takes to sum `elements` f32 gradients, in the best round.
  double seconds(std::int64_t elements, GradientCode code) {
    const Tensor buffer = ctx_.zeros({elements}, DType::f32, Lifetime::run);
    std::optional<GradientCompressor> compressor;
    std::vector<BufferPiece> pieces;
    if (code != GradientCode::f32) {
      compressor.emplace(ranks_, GradientCoding{code, 0}, elements, true, ctx_);
      pieces = compressor->split(elements, 0, {{0, elements}});
    }
    const GradientTravel travel{reduce_, compressor ? &*compressor : nullptr};
    double best = std::numeric_limits<double>::max();
    for (int round = 0; round <= kRounds; ++round) {
      mesh_.host().barrier().synchronize();  // allowed host wait: start
      const double began = seconds_now();
      GradientSum(all_, ctx_, buffer, pieces, travel).finish(ctx_);
      ctx_.stream.synchronize();  // allowed host wait: start
      double took = seconds_now() - began;
      all_reduce_host(mesh_.host(), {&took, 1}, Reduce::max);
      if (round > 0) best = std::min(best, took);  // round 0 opens connections
    }
    return best;
  }

 private:
  ExecContext ctx_;
  Mesh& mesh_;
  Communicator& all_;
  CompressionRanks ranks_;
  DType reduce_;
};

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g ms", 1e3 * seconds);
  return text;
}

GradientCompression measure(const Config& c, Mesh& mesh, bool leads) {
  MeasuredSums sums(c, mesh);
  std::int64_t elements = kFewElements;
  double plain = sums.seconds(elements, GradientCode::f32);
  if (plain < kLongSeconds) plain = sums.seconds(elements = kManyElements, GradientCode::f32);
  const double int8 = sums.seconds(elements, GradientCode::int8);
  const bool faster = int8 < plain;
  if (leads)
    log::info("parallel.compress: auto chose ", faster ? "int8" : "none", ": a sum of ", bytes_text(4 * elements),
              " of gradients took ", milliseconds(int8), " in int8 and ", milliseconds(plain), " in ",
              c.parallel.reduce == DType::bf16 ? "bf16" : "fp32");
  return faster ? GradientCompression::int8 : GradientCompression::none;
}

std::optional<GradientCompression> choice_of_run(const Config& c, int world, bool fresh) {
  const auto run = settings_of_resumed(c, fresh);
  if (!run || std::ranges::count(run->parallel.chosen, "compress") == 0) return {};
  const ParallelConfig& p = run->parallel;
  if (p.islands * p.pp * p.dp * p.cp * p.tp != world) return {};  // chosen again
  return run->parallel.compress;
}

}  // namespace

void choose_compression(Config& c, Mesh& mesh, bool fresh) {
  if (c.parallel.compress != GradientCompression::automatic) return;
  const bool leads = mesh.rank() == 0;
  const std::vector<int> nodes = mesh.nodes_along(kDataAxes);
  const bool one_node = std::ranges::count(nodes, nodes.front()) == std::ssize(nodes);
  // Only rank 0 reads the directory of the run.
  const auto kept = broadcast_from_rank0(mesh.host(), [&] { return choice_of_run(c, mesh.world(), fresh); });
  if (kept) {
    c.parallel.compress = *kept;
    if (leads) log::info("parallel.compress: auto keeps the choice that this run made before");
  } else if (!any_host(mesh.host(), !one_node)) {
    c.parallel.compress = GradientCompression::none;
    if (leads && nodes.size() > 1) log::info("parallel.compress: auto chose none: all replicas are on one node");
  } else {
    c.parallel.compress = measure(c, mesh, leads);
  }
  if (std::ranges::count(c.parallel.chosen, "compress") == 0) c.parallel.chosen.emplace_back("compress");
}

}  // namespace ring
