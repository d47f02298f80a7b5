#include "comm/reduce.h"

#include <algorithm>
#include <array>

namespace ring {
namespace {

struct Add {
  template <class T>
  static T apply(T a, T b) {
    return a + b;
  }
};

struct Max {
  template <class T>
  static T apply(T a, T b) {
    return a > b || a != a ? a : b;  // a NaN on either side wins
  }
};

template <class T, class Op>
void reduce_typed(std::span<const std::byte* const> sources, std::byte* out, std::int64_t n) {
  constexpr std::int64_t kBlock = 1024;
  std::array<T, kBlock> sum;  // a block at a time: `out` is written only when all sources of the block were read
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, n - begin);
    std::copy_n(reinterpret_cast<const T*>(sources[0]) + begin, count, sum.begin());
    for (const std::byte* source : sources.subspan(1)) {
      const T* x = reinterpret_cast<const T*>(source) + begin;
      for (std::int64_t i = 0; i < count; ++i)
        sum[static_cast<std::size_t>(i)] = Op::apply(sum[static_cast<std::size_t>(i)], x[i]);
    }
    std::copy_n(sum.begin(), count, reinterpret_cast<T*>(out) + begin);
  }
}

template <class T>
void reduce_op(Reduce op, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n) {
  op == Reduce::sum ? reduce_typed<T, Add>(sources, out, n) : reduce_typed<T, Max>(sources, out, n);
}

}  // namespace

void reduce_in_order(DType dtype, Reduce op, std::span<const std::byte* const> sources, std::byte* out,
                     std::int64_t n) {
  RING_CHECK(!sources.empty(), "reduce: no sources");
  switch (dtype) {
    case DType::f32:
      return reduce_op<float>(op, sources, out, n);
    case DType::i32:
      return reduce_op<std::int32_t>(op, sources, out, n);
    default:
      fail("reduce: f32 and i32 can be reduced, not ", dtype);
  }
}

}  // namespace ring
