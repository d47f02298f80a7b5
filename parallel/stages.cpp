#include "parallel/stages.h"

#include <algorithm>
#include <cmath>

#include "core/checked.h"
#include "model/flops.h"

namespace ring {

std::vector<BlockRange> divide_blocks(const ModelConfig& m, int parts) {
  RING_CHECK(parts >= 1 && parts <= m.layers, m.layers, " blocks in ", parts, " parts");
  const double head = 6 * static_cast<double>(m.vocab_size * m.width);
  const double block = (flops_per_token(m) - head) / static_cast<double>(m.layers);
  const double share = (static_cast<double>(m.layers) + head / block) / parts;  // work per part, in blocks
  const std::int64_t before = parts - 1;                                        // parts before the last one
  const auto wanted = static_cast<std::int64_t>(std::llround(share - head / block));
  const std::int64_t last = before == 0 ? m.layers : std::clamp<std::int64_t>(wanted, 1, m.layers - before);
  std::vector<BlockRange> all;
  for (std::int64_t i = 0; i < before; ++i) {
    const std::int64_t rest = m.layers - last, one_more = rest % before;
    const std::int64_t first = all.empty() ? 0 : all.back().end;
    all.push_back({first, first + rest / before + (i >= before - one_more)});
  }
  all.push_back({m.layers - last, m.layers});
  return all;
}

PipelineShape pipeline_shape(const ParallelPlan& p, std::int64_t micro_batches) {
  return {p.pp, narrow<int>(p.config.pp_parts), narrow<int>(micro_batches), narrow<int>(p.config.pp_slices)};
}

int micro_batches_of_keys(const ParallelPlan& p, int stage) {
  if (p.config.pp_slices == 1) return 1;
  const PipelineShape shape = pipeline_shape(p, p.micro_batches);
  const PipelineTable table = make_pipeline_table(shape, p.config.pp_order);
  return max_micro_batches_in_flight(shape, table[static_cast<std::size_t>(stage)]);
}

std::vector<BlockRange> parts_of_stage(const ModelConfig& m, const ParallelPlan& p, int stage) {
  const PipelineShape shape = pipeline_shape(p, p.micro_batches);
  const std::vector<BlockRange> all = divide_blocks(m, shape.all_parts());
  std::vector<BlockRange> own;
  for (int part = stage; part < shape.all_parts(); part += shape.stages)
    own.push_back(all[static_cast<std::size_t>(part)]);
  return own;
}

}  // namespace ring
