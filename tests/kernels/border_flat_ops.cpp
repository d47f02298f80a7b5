#include "kernels/activation.h"
#include "kernels/batched_matmul.h"
#include "kernels/elementwise.h"
#include "kernels/gradient_codes.h"
#include "kernels/group_sums.h"
#include "kernels/moving_average.h"
#include "kernels/muon.h"
#include "kernels/optimizer.h"
#include "tests/kernels/border_ops.h"
#include "tests/kernels/step_state_tensor.h"

namespace ring::test::border_flat {
namespace {

// Elements [kFirst, kFirst + kCount) are compared with a call on as many elements. Both are multiples of what kernels
// process at once, so that sums and random numbers are the same.
constexpr std::int64_t kFirst = (std::int64_t{1} << 31) + (1 << 14), kCount = 1 << 13;
constexpr std::int64_t kRandom = std::int64_t{1} << 33;  // index of element 0 among random numbers, in a border run

Tensor flat(BorderOperands& o, const std::string& name, DType t, Fill fill = Fill::uniform) {
  return o.last_elements(name, kFirst, kCount, t, fill);
}
// Scales of moments, each for 16 elements.
Tensor scales(BorderOperands& o, const std::string& name) {
  return o.last_elements(name, kFirst / 16, kCount / 16, DType::u8, Fill::zeros);
}
std::int64_t first_random(const BorderOperands& o) { return kRandom + kFirst - o.shifted(kFirst); }
Tensor step_state(const BorderOperands& o) { return state_tensor({.step = 3, .lr = 0.1f}, o.ctx); }

void activate(BorderOperands& o, DType t) { o.run(activate_kernel, {flat(o, "x", t), flat(o, "y", t)}); }
void activate_backward(BorderOperands& o, DType t) {
  const Tensor dy = flat(o, "dy", t);
  o.run(activate_backward_kernel, {flat(o, "x", t), dy, dy});
}
void sigmoid_gate(BorderOperands& o, DType t) {
  o.run(sigmoid_gate_kernel, {flat(o, "x", t), flat(o, "gate", t), flat(o, "y", t)});
}
void sigmoid_gate_backward(BorderOperands& o, DType t) {
  const Tensor dgate = flat(o, "dgate", t);
  o.run(sigmoid_gate_backward_kernel, {flat(o, "x", t), flat(o, "gate", t), dgate, dgate});
}
void axpby(BorderOperands& o, DType t) {
  const Tensor out = flat(o, "out", t);
  o.run(axpby_kernel, {.x = flat(o, "x", t), .y = out, .out = out, .alpha = 0.5f, .beta = 2});
}
void cast(BorderOperands& o, DType) { o.run(cast_kernel, {flat(o, "x", DType::f32), flat(o, "out", DType::bf16)}); }
void dropout(BorderOperands& o, DType t) {
  o.run(dropout_kernel, {.x = flat(o, "x", t),
                         .out = flat(o, "out", t),
                         .rate = 0.5f,
                         .site = {7, 1, 2},
                         .first_element = first_random(o)});
}
void random_normal(BorderOperands& o, DType t) {
  o.run(random_normal_kernel, {.out = flat(o, "out", t), .site = {7, 1, 2}, .first_element = first_random(o)});
}
void moving_average(BorderOperands& o, DType) {
  o.run(moving_average_kernel, {flat(o, "values", DType::f32), flat(o, "average", DType::f32), step_state(o), 0.9});
}
// A message in bf16, two bytes per element. The other codes differ only in what they store at an offset.
Tensor bf16_message(BorderOperands& o, Fill fill) {
  return o.last_elements("message", 2 * kFirst, 2 * kCount, DType::u8, fill);
}
// The gradient is always bf16, because gradient, residual and message do not all fit into BorderMemory in f32.
void encode_gradient(BorderOperands& o, DType) {
  const Tensor residual = flat(o, "residual", DType::f32);
  o.run(encode_gradient_kernel,
        {flat(o, "gradient", DType::bf16), residual, residual, bf16_message(o, Fill::zeros), {GradientCode::bf16, 0}});
}
// The sum starts at 0, because the small bytes of the message are tiny numbers.
void decode_gradient(BorderOperands& o, DType) {
  o.run(decode_gradient_kernel,
        {bf16_message(o, Fill::uniform), flat(o, "sum", DType::f32, Fill::zeros), {GradientCode::bf16, 0}, true});
}
void settle_residuals(BorderOperands& o, DType) {
  o.run(settle_residuals_kernel, {flat(o, "kept", DType::f32), flat(o, "pending", DType::f32), step_state(o)});
}
void squared_norm(BorderOperands& o, DType t) {
  o.run(squared_norm_kernel, {flat(o, "x", t, Fill::integers), o.whole("sum", {1}, DType::f32, Fill::zeros)});
}
void group_sums(BorderOperands& o, DType) {
  const Tensor x = flat(o, "x", DType::f32, Fill::integers);
  const std::vector<std::int32_t> groups(static_cast<std::size_t>(x.numel() / kCount), 0);
  o.run(group_sums_kernel, {x, o.numbers(groups), o.whole("out", {1}, DType::f32, Fill::zeros)});
}
void adamw(BorderOperands& o, DType) {
  o.run(adamw_kernel, {.param = flat(o, "param", DType::bf16),
                       .grad = flat(o, "grad", DType::bf16),
                       .m = flat(o, "m", DType::u8, Fill::zeros),
                       .v = flat(o, "v", DType::u8, Fill::zeros),
                       .state = step_state(o),
                       .weight_decay = 0.1f,
                       .m_scales = scales(o, "m_scales"),
                       .v_scales = scales(o, "v_scales"),
                       .site = {7, 0, 2},
                       .first_element = first_random(o)});
}
std::vector<MuonMatrix> matrices(BorderOperands& o) {
  const Tensor values = flat(o, "values", DType::bf16), gradient = flat(o, "gradient", DType::bf16);
  return {{.values = values,
           .gradient = gradient,
           .momentum = flat(o, "momentum", DType::bf16),
           .first_element = first_random(o)}};
}
void muon_momentum(BorderOperands& o, DType) {
  const std::vector<MuonMatrix> all = matrices(o);
  o.run(muon_momentum_kernel,
        {.matrices = all, .update = flat(o, "update", DType::bf16), .state = step_state(o), .site = {7, 0, 2}});
}
void muon_apply(BorderOperands& o, DType) {
  const std::vector<MuonMatrix> all = matrices(o);
  o.run(muon_apply_kernel,
        {.matrices = all, .update = flat(o, "update", DType::bf16), .state = step_state(o), .site = {7, 0, 2}});
}
void unit_norm(BorderOperands& o, DType) {
  const Tensor x = flat(o, "x", DType::bf16, Fill::integers);
  o.run(unit_norm_kernel, {x.view({1, x.numel()})});
}
void batched_matmul(BorderOperands& o, DType) {
  constexpr std::int64_t first = std::int64_t{1} << 19;
  const auto matrix = [&](const char* name) {
    return o.last_rows(name, first, {1, 64, 64}, DType::bf16, Fill::integers);
  };
  o.run(batched_matmul_kernel, {.a = matrix("a"), .b = matrix("b"), .c = matrix("c")});
}

}  // namespace

std::vector<BorderOp> ops() {
  return {{"activate", "", activate},
          {"activate_backward", "", activate_backward},
          {"sigmoid_gate", "", sigmoid_gate},
          {"sigmoid_gate_backward", "", sigmoid_gate_backward},
          {"axpby", "", axpby},
          {"cast", "", cast},
          {"dropout", "", dropout},
          {"random_normal", "", random_normal},
          {"moving_average", "", moving_average},
          {"encode_gradient", "", encode_gradient},
          {"decode_gradient", "", decode_gradient},
          {"settle_residuals", "", settle_residuals},
          {"squared_norm", "", squared_norm},
          {"group_sums", "", group_sums},
          {"adamw", "", adamw},
          {"muon_momentum", "", muon_momentum},
          {"muon_apply", "", muon_apply},
          {"unit_norm", "", unit_norm},
          {"batched_matmul", "", batched_matmul}};
}

}  // namespace ring::test::border_flat
