#include "kernels/linear_attention/gated_delta.h"
#include "kernels/linear_attention/gated_norm.h"
#include "kernels/linear_attention/short_conv.h"
#include "tests/kernels/border_ops.h"

namespace ring::test::border_linear_attention {
namespace {

constexpr std::int64_t kN = BorderMemory::kRows, kHeads = 3, kKeys = 8, kValues = 16;

std::vector<Span> documents() { return {{0, 100, 0, 0}, {100, static_cast<std::int32_t>(kN - 100), 100, 100}}; }

void short_conv(BorderOperands& o, DType t) {
  o.run(short_conv_kernel, {.x = o.rows("x", {kN, 40}, t),
                            .w = o.whole("w", {160}, t),
                            .y = o.rows("y", {kN, 40}, t),
                            .final = o.whole("final", {2, 3, 40}),
                            .documents = documents()});
}
void short_conv_backward(BorderOperands& o, DType t) {
  o.run(short_conv_backward_kernel, {.x = o.rows("x", {kN, 40}, t),
                                     .w = o.whole("w", {160}, t),
                                     .dy = o.rows("dy", {kN, 40}, t),
                                     .dx = o.rows("dx", {kN, 40}, t),
                                     .dw = o.whole("dw", {160}),
                                     .beta_x = 1,
                                     .documents = documents()});
}

void delta_gates(BorderOperands& o, DType t) {
  o.run(delta_gates_kernel, {o.rows("ab", {kN, 2 * kHeads}, t), o.whole("log_decay", {kHeads}, t),
                             o.whole("dt_bias", {kHeads}, t), o.rows("gates", {kN, 2 * kHeads}, DType::f32)});
}
void delta_gates_backward(BorderOperands& o, DType t) {
  o.run(delta_gates_backward_kernel,
        {o.rows("ab", {kN, 2 * kHeads}, t), o.whole("log_decay", {kHeads}, t), o.whole("dt_bias", {kHeads}, t),
         o.rows("dgates", {kN, 2 * kHeads}, DType::f32), o.rows("dab", {kN, 2 * kHeads}, t),
         o.whole("dlog_decay", {kHeads}), o.whole("ddt_bias", {kHeads})});
}

Tensor gate_of(BorderOperands& o, const char* name, Fill fill) { return o.rows(name, {kN, kHeads}, DType::f32, fill); }
Tensor keys_of(BorderOperands& o, const char* name, DType t) { return o.rows(name, {kN, kHeads, kKeys}, t); }
Tensor values_of(BorderOperands& o, const char* name, DType t) { return o.rows(name, {kN, kHeads, kValues}, t); }

void gated_delta(BorderOperands& o, DType t) {
  o.run(gated_delta_kernel, {.q = keys_of(o, "q", t),
                             .k = keys_of(o, "k", t),
                             .v = values_of(o, "v", t),
                             .decay = gate_of(o, "decay", Fill::zeros),
                             .beta = gate_of(o, "beta", Fill::positive),
                             .out = values_of(o, "out", t),
                             .initial = o.whole("initial", {2, kHeads, kKeys, kValues}),
                             .final = o.whole("final", {2, kHeads, kKeys, kValues}),
                             .documents = documents()});
}
void gated_delta_backward(BorderOperands& o, DType t) {
  o.run(gated_delta_backward_kernel, {.q = keys_of(o, "q", t),
                                      .k = keys_of(o, "k", t),
                                      .v = values_of(o, "v", t),
                                      .decay = gate_of(o, "decay", Fill::zeros),
                                      .beta = gate_of(o, "beta", Fill::positive),
                                      .initial = o.whole("initial", {2, kHeads, kKeys, kValues}),
                                      .states = o.whole("states", {1, kHeads, kKeys, kValues}),
                                      .dout = values_of(o, "dout", t),
                                      .dq = keys_of(o, "dq", t),
                                      .dk = keys_of(o, "dk", t),
                                      .dv = values_of(o, "dv", t),
                                      .ddecay = gate_of(o, "ddecay", Fill::zeros),
                                      .dbeta = gate_of(o, "dbeta", Fill::zeros),
                                      .documents = documents()});
}

// Only the rows of z are far apart: x must be contiguous.
void gated_norm(BorderOperands& o, DType t) {
  o.run(gated_norm_kernel, {.x = o.last_rows("x", 0, {kN, kHeads, kValues}, t),
                            .z = o.rows("z", {kN, kHeads * kValues}, t),
                            .w = o.whole("w", {kValues}, t),
                            .y = o.last_rows("y", 0, {kN, kHeads * kValues}, t)});
}
void gated_norm_backward(BorderOperands& o, DType t) {
  o.run(gated_norm_backward_kernel, {.x = o.last_rows("x", 0, {kN, kHeads, kValues}, t),
                                     .z = o.rows("z", {kN, kHeads * kValues}, t),
                                     .w = o.whole("w", {kValues}, t),
                                     .dy = o.last_rows("dy", 0, {kN, kHeads * kValues}, t),
                                     .dx = o.last_rows("dx", 0, {kN, kHeads, kValues}, t),
                                     .dz = o.rows("dz", {kN, kHeads * kValues}, t),
                                     .dw = o.whole("dw", {kValues})});
}

}  // namespace

std::vector<BorderOp> ops() {
  return {{"short_conv", "", short_conv},   {"short_conv_backward", "", short_conv_backward},
          {"delta_gates", "", delta_gates}, {"delta_gates_backward", "", delta_gates_backward},
          {"gated_delta", "", gated_delta}, {"gated_delta_backward", "", gated_delta_backward},
          {"gated_norm", "", gated_norm},   {"gated_norm_backward", "", gated_norm_backward}};
}

}  // namespace ring::test::border_linear_attention
