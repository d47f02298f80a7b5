#include "kernels/gradient_codes.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/rows.h"
#include "kernels/fp8.h"

namespace ring::cpu {
namespace {

float gradient_value(float x) { return x; }
float gradient_value(bf16 x) { return to_float(x); }

// Returns the value of to_e4m3(v), for finite |v| <= 512, without branches.
float rounded_e4m3(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v), sign = bits & 0x80000000u, magnitude = bits & 0x7fffffffu;
  const float small = std::bit_cast<float>(magnitude) + 16384.0f - 16384.0f;  // rounds to 2^-9, the f32 spacing at 2^14
  const std::uint32_t normal = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) & ~0xfffffu;
  const std::uint32_t rounded = magnitude < 0x3c800000u ? std::bit_cast<std::uint32_t>(small)
                                                        : std::min(normal, std::bit_cast<std::uint32_t>(kE4m3Max));
  return std::bit_cast<float>(sign | rounded);
}

// Calls fn(x, left, block, size) for each block, in parallel. x holds the block's gradients plus residuals; fn writes
// the new residuals to `left`.
template <std::int64_t block, class T, class Fn>
void for_blocks(const EncodeGradient& a, const ExecContext& ctx, const Fn& fn) {
  const std::int64_t n = a.gradient.numel();
  const T* const gradient = a.gradient.data<T>();
  const float* const residual = a.residual.defined() ? a.residual.data<float>() : nullptr;
  float* const left = a.left.defined() ? a.left.data<float>() : nullptr;
  const std::int64_t grain = row_grain(8 * block);
  ctx.stream.pool().parallel_for((n + block - 1) / block, grain, [=](std::int64_t begin, std::int64_t end, int) {
    float x[block], unsent[block];
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t first = b * block, size = std::min(block, n - first);
      if (residual)
#pragma GCC ivdep
        for (std::int64_t i = 0; i < size; ++i) x[i] = gradient_value(gradient[first + i]) + residual[first + i];
      else
#pragma GCC ivdep
        for (std::int64_t i = 0; i < size; ++i) x[i] = gradient_value(gradient[first + i]);
      fn(x, unsent, b, size);
      if (left) std::copy(unsent, unsent + size, left + first);
    }
  });
}

template <class T>
void encode_scaled(const EncodeGradient& a, const ExecContext& ctx) {
  const bool int8 = a.coding.code == GradientCode::int8;
  std::uint8_t* const scales = a.message.data<std::uint8_t>();
  std::uint8_t* const codes = scales + code_offset(a.gradient.numel());
  for_blocks<kCodeBlock, T>(a, ctx, [=](const float* x, float* left, std::int64_t block, std::int64_t size) {
    std::uint32_t max = 0;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < size; ++i) max = std::max(max, magnitude_bits(x[i]));
    const std::uint32_t biased = int8 ? int8_scale(max) : e4m3_scale(max);
    scales[block] = static_cast<std::uint8_t>(biased);
    std::uint8_t* const out = codes + block * kCodeBlock;
    if (biased == kPoisonedScale) {
      std::fill(out, out + size, std::uint8_t{0});
      std::fill(left, left + size, 0.0f);
      return;
    }
    const float scale = scale_of_bits(biased), factor = factor_of_bits(biased);
    if (int8)
#pragma GCC ivdep
      for (std::int64_t i = 0; i < size; ++i) {
        const std::int32_t q = rounded_int8(x[i] * factor);
        out[i] = static_cast<std::uint8_t>(q);
        left[i] = x[i] - static_cast<float>(q) * scale;
      }
    else
#pragma GCC ivdep
      for (std::int64_t i = 0; i < size; ++i) {
        const float v = rounded_e4m3(x[i] * factor);
        out[i] = to_e4m3(v);
        left[i] = x[i] - v * scale;
      }
  });
}

template <class T>
void encode_alone(const EncodeGradient& a, const ExecContext& ctx) {
  const bool exact = a.coding.code == GradientCode::f32;
  std::uint8_t* const message = a.message.data<std::uint8_t>();
  for_blocks<kCodeBlock, T>(a, ctx, [=](const float* x, float* left, std::int64_t block, std::int64_t size) {
    if (exact) {
      std::memcpy(message + 4 * block * kCodeBlock, x, 4 * static_cast<std::size_t>(size));
      std::fill(left, left + size, 0.0f);
      return;
    }
    auto* const out = reinterpret_cast<std::uint16_t*>(message) + block * kCodeBlock;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < size; ++i) {
      const std::uint32_t bits = sent_bf16(x[i]);
      out[i] = static_cast<std::uint16_t>(bits);
      left[i] = left_of(x[i], bf16_value(bits));
    }
  });
}

// Returns the smallest magnitude among the `top` largest of a block.
std::uint32_t smallest_of_top(const float* x, std::int64_t size, std::int64_t top) {
  std::array<std::uint32_t, kTopBlock> sorted;
  std::transform(x, x + size, sorted.begin(), magnitude_bits);
  std::nth_element(sorted.begin(), sorted.begin() + (top - 1), sorted.begin() + size, std::greater{});
  return sorted[static_cast<std::size_t>(top - 1)];
}

template <class T>
void encode_top(const EncodeGradient& a, const ExecContext& ctx) {
  auto* const message = reinterpret_cast<std::uint32_t*>(a.message.data<std::uint8_t>());
  const std::int64_t top = a.coding.top;
  for_blocks<kTopBlock, T>(a, ctx, [=](const float* x, float* left, std::int64_t block, std::int64_t size) {
    const std::int64_t sent = std::min(top, size);
    const std::uint32_t smallest = smallest_of_top(x, size, sent);
    std::int64_t above = 0;
    for (std::int64_t i = 0; i < size; ++i) above += magnitude_bits(x[i]) > smallest;
    std::int64_t ties = sent - above;
    std::uint32_t* out = message + block * top;
    std::uint32_t* const end = out + top;
    for (std::int64_t i = 0; i < size; ++i) {
      const std::uint32_t magnitude = magnitude_bits(x[i]);
      left[i] = left_of(x[i], 0);
      if (magnitude < smallest || (magnitude == smallest && ties-- <= 0)) continue;
      *out++ = top_entry(static_cast<std::uint32_t>(i), x[i]);
      left[i] = left_of(x[i], bf16_value(out[-1] & 0xffffu));
    }
    std::fill(out, end, kUnusedEntry);
  });
}

template <class T>
void encode(const EncodeGradient& a, const ExecContext& ctx) {
  switch (a.coding.code) {
    case GradientCode::f32:
    case GradientCode::bf16: return encode_alone<T>(a, ctx);
    case GradientCode::int8:
    case GradientCode::fp8: return encode_scaled<T>(a, ctx);
    case GradientCode::topk: return encode_top<T>(a, ctx);
  }
}

void run_encode(const EncodeGradient& a, const ExecContext& ctx) {
  check(a);
  a.gradient.dtype() == DType::bf16 ? encode<bf16>(a, ctx) : encode<float>(a, ctx);
}

// Sets sum[i] = value(i), or sum[i] += value(i) if a.add.
template <class Value>
void add_values(const DecodeGradient& a, const ExecContext& ctx, const Value& value) {
  float* const sum = a.sum.data<float>();
  const bool add = a.add;
  ctx.stream.pool().parallel_for(a.sum.numel(), kPartWork, [=](std::int64_t begin, std::int64_t end, int) {
    if (add)
#pragma GCC ivdep
      for (std::int64_t i = begin; i < end; ++i) sum[i] += value(i);
    else
#pragma GCC ivdep
      for (std::int64_t i = begin; i < end; ++i) sum[i] = value(i);
  });
}

// to_value(code): the value of a code in units of its scale.
template <class ToValue>
void decode_scaled(const DecodeGradient& a, const ExecContext& ctx, const ToValue& to_value) {
  const std::int64_t n = a.sum.numel();
  const std::uint8_t* const scales = a.message.data<std::uint8_t>();
  const std::uint8_t* const codes = scales + code_offset(n);
  float* const sum = a.sum.data<float>();
  const bool add = a.add;
  const auto decode_block = [=](std::int64_t block) {
    const std::int64_t first = block * kCodeBlock, size = std::min(kCodeBlock, n - first);
    const std::uint32_t biased = scales[block];
    const float scale = biased == kPoisonedScale ? std::bit_cast<float>(kNaNBits) : scale_of_bits(biased);
    if (add)
#pragma GCC ivdep
      for (std::int64_t i = first; i < first + size; ++i) sum[i] += to_value(codes[i]) * scale;
    else
#pragma GCC ivdep
      for (std::int64_t i = first; i < first + size; ++i) sum[i] = to_value(codes[i]) * scale;
  };
  ctx.stream.pool().parallel_for((n + kCodeBlock - 1) / kCodeBlock, row_grain(4 * kCodeBlock),
                                 [=](std::int64_t begin, std::int64_t end, int) {
                                   for (std::int64_t b = begin; b < end; ++b) decode_block(b);
                                 });
}

void decode_top(const DecodeGradient& a, const ExecContext& ctx) {
  const std::int64_t n = a.sum.numel(), top = a.coding.top;
  const auto* const message = reinterpret_cast<const std::uint32_t*>(a.message.data<std::uint8_t>());
  float* const sum = a.sum.data<float>();
  if (!a.add) std::fill(sum, sum + n, 0.0f);
  ctx.stream.pool().parallel_for(
      (n + kTopBlock - 1) / kTopBlock, row_grain(2 * kTopBlock), [=](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t e = begin * top; e < end * top; ++e)
          if (message[e] < kUnusedEntry)
            sum[e / top * kTopBlock + (message[e] >> 16)] += bf16_value(message[e] & 0xffffu);
      });
}

constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code) values[code] = from_e4m3(static_cast<std::uint8_t>(code));
  return values;
}();

void run_decode(const DecodeGradient& a, const ExecContext& ctx) {
  check(a);
  const std::uint8_t* const message = a.message.data<std::uint8_t>();
  switch (a.coding.code) {
    case GradientCode::f32:
      return add_values(a, ctx, [in = reinterpret_cast<const float*>(message)](std::int64_t i) { return in[i]; });
    case GradientCode::bf16:
      return add_values(
          a, ctx, [in = reinterpret_cast<const std::uint16_t*>(message)](std::int64_t i) { return bf16_value(in[i]); });
    case GradientCode::int8:
      return decode_scaled(a, ctx,
                           [](std::uint8_t code) { return static_cast<float>(static_cast<std::int8_t>(code)); });
    case GradientCode::fp8: return decode_scaled(a, ctx, [](std::uint8_t code) { return kE4m3Values[code]; });
    case GradientCode::topk: return decode_top(a, ctx);
  }
}

void run_settle(const SettleResiduals& a, const ExecContext& ctx) {
  const std::int64_t n = a.kept.numel();
  check_numel("settle_residuals", "kept", a.kept, n);
  check_numel("settle_residuals", "pending", a.pending, n);
  const bool accepted = state_of("settle_residuals", a.state).accepted != 0;
  const float* const from = (accepted ? a.pending : a.kept).data<float>();
  float* const to = (accepted ? a.kept : a.pending).data<float>();
  ctx.stream.pool().parallel_for(n, kPartWork, [=](std::int64_t begin, std::int64_t end, int) {
    std::copy(from + begin, from + end, to + begin);
  });
}

const bool added[] = {
    encode_gradient_kernel.add(Backend::cpu, {"blocks", run_encode}),
    decode_gradient_kernel.add(Backend::cpu, {"blocks", run_decode}),
    settle_residuals_kernel.add(Backend::cpu, {"copy", run_settle}),
};

}  // namespace
}  // namespace ring::cpu
