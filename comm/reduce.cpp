#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <type_traits>

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

// Convert an element between its stored type and the type in which it is accumulated (f32 for bf16).
template <class Stored>
Stored load(Stored x) {
  return x;
}
float load(bf16 x) { return to_float(x); }
template <class Stored, class Sum>
Stored store(Sum x) {
  if constexpr (std::is_same_v<Stored, bf16>)
    return to_bf16(x);
  else
    return x;
}

template <class T, class Op>
void reduce_typed(std::span<const std::byte* const> sources, std::byte* out, std::int64_t n) {
  constexpr std::int64_t kBlock = 1024;
  // Accumulates one block. It is written only after all sources were read, since `out` may be one of them.
  std::array<decltype(load(T{})), kBlock> sum;
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, n - begin);
    const T* first = reinterpret_cast<const T*>(sources[0]) + begin;
    for (std::int64_t i = 0; i < count; ++i) sum[static_cast<std::size_t>(i)] = load(first[i]);
    for (const std::byte* source : sources.subspan(1)) {
      const T* x = reinterpret_cast<const T*>(source) + begin;
      for (std::int64_t i = 0; i < count; ++i)
        sum[static_cast<std::size_t>(i)] = Op::apply(sum[static_cast<std::size_t>(i)], load(x[i]));
    }
    T* to = reinterpret_cast<T*>(out) + begin;
    for (std::int64_t i = 0; i < count; ++i) to[i] = store<T>(sum[static_cast<std::size_t>(i)]);
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
    case DType::f32: return reduce_op<float>(op, sources, out, n);
    case DType::bf16: return reduce_op<bf16>(op, sources, out, n);
    case DType::i32: return reduce_op<std::int32_t>(op, sources, out, n);
    default: fail("reduce: f32, bf16 and i32 can be reduced, not ", dtype);
  }
}

}  // namespace ring
