// Sums a block mass by distance, one launch per document: each launch adds to the result of the previous ones.
#include "kernels/attention/importance/distance_mass.h"

#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

// One document: its blocks are rows [first, first + blocks).
struct DocumentMass {
  const float* mass;
  float* out;
  SelectedBlocks selected, massed;
  int first, blocks, heads, distances;
};

// Adds one document's mass and its number of kept block pairs: one thread per head and distance.
__global__ void __launch_bounds__(kBlock) add_distances(DocumentMass p) {
  const int n = static_cast<int>(blockIdx.x) * kBlock + static_cast<int>(threadIdx.x);
  if (n >= p.heads * p.distances) return;
  const int head = n / p.distances, d = n % p.distances;
  float sum = 0, rows = 0;
  for (int i = d; i < p.blocks; ++i) {
    const int row = p.first + i;
    if (!p.selected.keeps(row, head, i - d)) continue;
    sum += p.mass[p.massed.offset(row, head) + p.massed.find(row, head, i - d)];
    rows += 1.0f;
  }
  p.out[n] += sum;
  p.out[p.heads * p.distances + n] += rows;
}

void run_distance_mass(const DistanceMass& a, const ExecContext& ctx) {
  check(a);
  fill_zero(a.out, ctx.stream);
  const std::vector<std::int32_t> first = first_blocks(a.pattern, a.spans);
  DocumentMass p{.mass = device_data<float>(a.mass),
                 .out = device_data<float>(a.out),
                 .selected = SelectedBlocks(a.selection),
                 .massed = SelectedBlocks(a.massed),
                 .first = 0,
                 .blocks = 0,
                 .heads = static_cast<int>(a.mass.dim(1)),
                 .distances = static_cast<int>(a.out.dim(2))};
  for (std::size_t b = 0; b < a.spans.size(); ++b) {
    p.first = first[b], p.blocks = first[b + 1] - first[b];
    launch(ctx, {grid_of(divide_up(std::int64_t{p.heads} * p.distances, kBlock))}, add_distances, p);
  }
}

const bool added_distance_mass = distance_mass_kernel.add(Backend::cuda, {"distances", run_distance_mass});

}  // namespace
}  // namespace ring::cuda
