#include "kernels/gradient_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

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

std::uint32_t largest_magnitude(const float* x, std::int64_t size) {
  std::uint32_t max = 0;
#pragma GCC ivdep
  for (std::int64_t i = 0; i < size; ++i) max = std::max(max, magnitude_bits(x[i]));
  return max;
}

float mean_magnitude(const float* x, std::int64_t size) {
  constexpr std::int64_t kSums = 16;
  const float weight = 1.0f / static_cast<float>(size);  // per element; an unweighted sum of magnitudes could overflow
  float sums[kSums] = {}, mean = 0;
  std::int64_t i = 0;
  for (; i + kSums <= size; i += kSums)
    for (std::int64_t j = 0; j < kSums; ++j) sums[j] += std::abs(x[i + j]) * weight;
  for (; i < size; ++i) mean += std::abs(x[i]) * weight;
  for (const float sum : sums) mean += sum;
  return mean;
}

// Integer codes of `bits` bits. The elements of a block share a scale; E4m3Code has the same interface:
//   scale(x, size)                             biased exponent of the block's scale
//   encode(x, size, factor, scale, left, out)  writes codes and residuals; factor: 1 / scale
//   value(byte)                                value of an unpacked code as a multiple of the scale
template <int bits>
struct IntegerCode {
  static constexpr std::int64_t kBytes = kCodeBlock * bits / 8, kPerByte = 8 / bits;

  static std::uint32_t scale(const float* x, std::int64_t size) {
    const std::uint32_t max = largest_magnitude(x, size);
    if constexpr (bits == 2) return int2_scale(max, mean_magnitude(x, size));
    return integer_scale(max, bits);
  }
  static void encode(const float* x, std::int64_t size, float factor, float scale, float* left, std::uint8_t* out) {
    std::uint8_t unpacked[kCodeBlock] = {};
    std::uint8_t* const codes = bits == 8 ? out : unpacked;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int32_t q = rounded_integer(x[i] * factor, bits);
      codes[i] = static_cast<std::uint8_t>(q);
      left[i] = x[i] - static_cast<float>(q) * scale;
    }
    if constexpr (bits < 8) pack(unpacked, out);
  }
  // Byte j of a block holds the elements j, j + kBytes, j + 2 kBytes, ..., from the lowest bits up.
  static void pack(const std::uint8_t* codes, std::uint8_t* out) {
    constexpr unsigned kMask = (1u << bits) - 1;
    for (std::int64_t j = 0; j < kBytes; ++j) {
      unsigned byte = 0;
      for (std::int64_t p = 0; p < kPerByte; ++p) byte |= (codes[p * kBytes + j] & kMask) << (p * bits);
      out[j] = static_cast<std::uint8_t>(byte);
    }
  }
  static void unpack(const std::uint8_t* in, std::uint8_t* codes) {
    for (std::int64_t p = 0; p < kPerByte; ++p)
      for (std::int64_t j = 0; j < kBytes; ++j) {
        const unsigned in_high_bits = in[j] << (8 - bits - p * bits);
        codes[p * kBytes + j] = static_cast<std::uint8_t>(static_cast<std::int8_t>(in_high_bits) >> (8 - bits));
      }
  }
  static float value(std::uint8_t code) { return static_cast<float>(static_cast<std::int8_t>(code)); }
};

constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code) values[code] = from_e4m3(static_cast<std::uint8_t>(code));
  return values;
}();

struct E4m3Code {
  static constexpr std::int64_t kBytes = kCodeBlock;

  static std::uint32_t scale(const float* x, std::int64_t size) { return e4m3_scale(largest_magnitude(x, size)); }
  static void encode(const float* x, std::int64_t size, float factor, float scale, float* left, std::uint8_t* out) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < size; ++i) {
      const float v = rounded_e4m3(x[i] * factor);
      out[i] = to_e4m3(v);
      left[i] = x[i] - v * scale;
    }
  }
  static float value(std::uint8_t code) { return kE4m3Values[code]; }
};

template <class Code, class T>
void encode_scaled(const EncodeGradient& a, const ExecContext& ctx) {
  std::uint8_t* const scales = a.message.data<std::uint8_t>();
  std::uint8_t* const codes = scales + code_offset(a.gradient.numel());
  for_blocks<kCodeBlock, T>(a, ctx, [=](const float* x, float* left, std::int64_t block, std::int64_t size) {
    const std::uint32_t biased = Code::scale(x, size);
    scales[block] = static_cast<std::uint8_t>(biased);
    std::uint8_t* const out = codes + block * Code::kBytes;
    if (biased == kPoisonedScale) {
      std::fill(out, out + std::min(size, Code::kBytes), std::uint8_t{0});
      std::fill(left, left + size, 0.0f);
      return;
    }
    Code::encode(x, size, factor_of_bits(biased), scale_of_bits(biased), left, out);
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
    case GradientCode::int8: return encode_scaled<IntegerCode<8>, T>(a, ctx);
    case GradientCode::int4: return encode_scaled<IntegerCode<4>, T>(a, ctx);
    case GradientCode::int2: return encode_scaled<IntegerCode<2>, T>(a, ctx);
    case GradientCode::fp8: return encode_scaled<E4m3Code, T>(a, ctx);
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

template <class Code>
void decode_scaled(const DecodeGradient& a, const ExecContext& ctx) {
  const std::int64_t n = a.sum.numel();
  const std::uint8_t* const scales = a.message.data<std::uint8_t>();
  const std::uint8_t* const packed = scales + code_offset(n);
  float* const sum = a.sum.data<float>();
  const bool add = a.add;
  const auto decode_block = [=](std::int64_t block) {
    const std::int64_t size = std::min(kCodeBlock, n - block * kCodeBlock);
    const std::uint32_t biased = scales[block];
    const float scale = biased == kPoisonedScale ? std::bit_cast<float>(kNaNBits) : scale_of_bits(biased);
    const std::uint8_t* codes = packed + block * Code::kBytes;
    std::uint8_t unpacked[kCodeBlock];
    if constexpr (Code::kBytes < kCodeBlock) Code::unpack(std::exchange(codes, unpacked), unpacked);
    float* const to = sum + block * kCodeBlock;
    if (add)
#pragma GCC ivdep
      for (std::int64_t i = 0; i < size; ++i) to[i] += Code::value(codes[i]) * scale;
    else
#pragma GCC ivdep
      for (std::int64_t i = 0; i < size; ++i) to[i] = Code::value(codes[i]) * scale;
  };
  ctx.stream.pool().parallel_for(code_blocks(n), row_grain(4 * kCodeBlock),
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

void run_decode(const DecodeGradient& a, const ExecContext& ctx) {
  check(a);
  const std::uint8_t* const message = a.message.data<std::uint8_t>();
  switch (a.coding.code) {
    case GradientCode::f32:
      return add_values(a, ctx, [in = reinterpret_cast<const float*>(message)](std::int64_t i) { return in[i]; });
    case GradientCode::bf16:
      return add_values(
          a, ctx, [in = reinterpret_cast<const std::uint16_t*>(message)](std::int64_t i) { return bf16_value(in[i]); });
    case GradientCode::int8: return decode_scaled<IntegerCode<8>>(a, ctx);
    case GradientCode::int4: return decode_scaled<IntegerCode<4>>(a, ctx);
    case GradientCode::int2: return decode_scaled<IntegerCode<2>>(a, ctx);
    case GradientCode::fp8: return decode_scaled<E4m3Code>(a, ctx);
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
