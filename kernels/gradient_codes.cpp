#include "kernels/gradient_codes.h"

#include "kernels/rows.h"

namespace ring {
namespace {

void check_coding(std::string_view op, const GradientCoding& c) {
  RING_CHECK(c.code != GradientCode::topk || (c.top >= 1 && c.top <= kTopBlock), op, ": top is ", c.top,
             ", expected 1 to ", kTopBlock);
}

void check_message(std::string_view op, const Tensor& message, const GradientCoding& coding, std::int64_t n) {
  check_coding(op, coding);
  check_numel(op, "message", message, message_bytes(coding, n));
  RING_CHECK(message.dtype() == DType::u8, op, ": message is ", describe(message), ", expected u8");
}

void check_floats(std::string_view op, std::string_view name, const Tensor& t, std::int64_t n) {
  check_numel(op, name, t, n);
  RING_CHECK(t.dtype() == DType::f32, op, ": ", name, " is ", describe(t), ", expected f32");
}

}  // namespace

std::int64_t message_bytes(const GradientCoding& c, std::int64_t n) {
  const auto padded = [](std::int64_t bytes) { return (bytes + 15) / 16 * 16; };
  switch (c.code) {
    case GradientCode::f32: return padded(4 * n);
    case GradientCode::bf16: return padded(2 * n);
    case GradientCode::int8:
    case GradientCode::fp8: return padded(code_offset(n) + n);
    case GradientCode::int4: return code_offset(n) + code_blocks(n) * (kCodeBlock / 2);
    case GradientCode::int2: return code_offset(n) + code_blocks(n) * (kCodeBlock / 4);
    case GradientCode::topk: return padded(4 * c.top * ((n + kTopBlock - 1) / kTopBlock));
  }
  return 0;
}

void check(const EncodeGradient& a) {
  constexpr std::string_view op = "encode_gradient";
  const std::int64_t n = a.gradient.numel();
  check_numel(op, "gradient", a.gradient, n);
  if (a.residual.defined()) check_floats(op, "residual", a.residual, n);
  if (a.left.defined()) check_floats(op, "left", a.left, n);
  check_message(op, a.message, a.coding, n);
}

void check(const DecodeGradient& a) {
  check_floats("decode_gradient", "sum", a.sum, a.sum.numel());
  check_message("decode_gradient", a.message, a.coding, a.sum.numel());
}

}  // namespace ring
