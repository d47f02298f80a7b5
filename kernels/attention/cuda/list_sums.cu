// Adds the partial sums of split lists.
#include "kernels/attention/cuda/lists.h"
#include "kernels/attention/cuda/tile_schedule.cuh"

namespace ring::cuda {
namespace {

constexpr int kRowsPerBlock = 8;  // rows of a tile per thread block

struct PartialSums {
  const SplitList* splits;
  const SegmentPair* pieces;
  const float* partial;
  int slots, width, dim;
  HeadsOf<const float> carry;
  float factor;
};

template <class T>
__global__ void add_parts(PartialSums s, HeadsOf<T> out) {
  constexpr int per_tile = kListRows / kRowsPerBlock;
  const SplitList list = s.splits[blockIdx.x / per_tile];
  const int first = static_cast<int>(blockIdx.x) % per_tile * kRowsPerBlock;
  if (list.parts == 0) return;
  const SegmentPair piece = s.pieces[blockIdx.y + list.piece];
  const std::int64_t slot_size = std::int64_t{kListRows} * s.width;
  const float* parts = s.partial + (std::int64_t{blockIdx.y} * s.slots + list.first_slot) * slot_size;
  for (int i = static_cast<int>(threadIdx.x); i < kRowsPerBlock * s.dim; i += kBlock) {
    const int row = first + i / s.dim, column = i % s.dim, position = list.tile * kListRows + row;
    if (position < piece.k_first || position >= piece.k_end) continue;
    float sum = 0;
    for (int part = 0; part < list.parts; ++part) sum += parts[part * slot_size + row * s.width + column];
    const std::int64_t token = std::int64_t{piece.k_row} + position;
    const float added = s.carry.data ? s.carry.at(token, list.kv_head)[column] : 0.0f;
    out.at(token, list.kv_head)[column] = T(s.factor * sum + added);
  }
}

}  // namespace

void add_splits(const DeviceLists& lists, const SegmentPair* pieces, const SplitSums& s, const ExecContext& ctx) {
  if (lists.split_lists == 0) return;
  RING_CHECK(s.partial.defined() && s.partial.dtype() == DType::f32 && s.partial.is_contiguous() &&
                 s.partial.shape().size() == 4 && s.partial.dim(1) == lists.slots && s.partial.dim(2) == kListRows &&
                 s.partial.dim(3) >= s.out.dim(2) && s.partial.dim(0) <= kMaxGridY,
             "attention_backward: partial sums are ", describe(s.partial), ", expected f32 [pieces, ", lists.slots,
             ", 128, at least ", s.out.dim(2), "], at most ", kMaxGridY, " pieces");
  const PartialSums sums{lists.split_data(),
                         pieces,
                         s.partial.data<float>(),
                         lists.slots,
                         static_cast<int>(s.partial.dim(3)),
                         static_cast<int>(s.out.dim(2)),
                         heads_of<const float>(s.carry),
                         s.factor};
  const Launch shape{grid_of(std::int64_t{lists.split_lists} * (kListRows / kRowsPerBlock), s.partial.dim(0))};
  visit_float("attention_backward", s.out.dtype(),
              [&]<class T>() { launch(ctx, shape, add_parts<T>, sums, heads_of<T>(s.out)); });
}

}  // namespace ring::cuda
