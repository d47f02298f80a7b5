#include "kernels/attention/importance/distance_mass.h"

#include "kernels/cpu/rows.h"

namespace ring::cpu {
namespace {

void run_distance_mass(const DistanceMass& a, const ExecContext& ctx) {
  check(a);
  const SelectedBlocks selected(a.selection), massed(a.massed);
  const std::vector<std::int32_t> first = first_blocks(a.pattern, a.spans);
  const std::int64_t heads = a.mass.dim(1), distances = a.out.dim(2);
  const float* mass = a.mass.data<float>();
  float* const out = a.out.data<float>();
  ctx.stream.pool().parallel_for(heads * distances, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t n = begin; n < end; ++n) {
      const auto head = static_cast<std::int32_t>(n / distances), d = static_cast<std::int32_t>(n % distances);
      float sum = 0, rows = 0;
      for (std::size_t b = 0; b < a.spans.size(); ++b)
        for (std::int32_t i = d; i < first[b + 1] - first[b]; ++i) {
          const std::int32_t row = first[b] + i;
          if (!selected.keeps(row, head, i - d)) continue;
          sum += mass[massed.offset(row, head) + massed.find(row, head, i - d)];
          ++rows;
        }
      out[n] = sum, out[heads * distances + n] = rows;
    }
  });
}

const bool added = distance_mass_kernel.add(Backend::cpu, {"distances", run_distance_mass});

}  // namespace
}  // namespace ring::cpu
