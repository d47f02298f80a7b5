#include "kernels/activation.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/fp8_producers.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/row_copy.h"
#include "kernels/row_encoding.h"
#include "kernels/sliced_cross_entropy.h"
#include "tests/kernels/border_ops.h"

namespace ring::test::border_rows {
namespace {

constexpr std::int64_t kN = BorderMemory::kRows, kFp8Rows = 256;  // FP8 scales require multiples of 4 rows
constexpr std::int64_t kBorder = std::int64_t{1} << 31;

std::vector<std::int32_t> counting(std::int64_t count, std::int64_t first, std::int64_t modulo) {
  std::vector<std::int32_t> v;
  for (std::int64_t i = 0; i < count; ++i) v.push_back(static_cast<std::int32_t>(first + i % modulo));
  return v;
}

void swiglu(BorderOperands& o, DType t) {
  o.run(swiglu_kernel, {o.rows("gate_up", {kN, 80}, t), o.rows("y", {kN, 40}, t)});
}
void swiglu_backward(BorderOperands& o, DType t) {
  o.run(swiglu_backward_kernel,
        {o.rows("gate_up", {kN, 80}, t), o.rows("dy", {kN, 40}, t), o.rows("dgate_up", {kN, 80}, t)});
}

void rope(BorderOperands& o, DType t) {
  o.run(rope_kernel, {o.rows("x", {kN, 3, 32}, t), o.rows("out", {kN, 3, 32}, t), o.numbers(counting(kN, 5, kN)),
                      o.whole("inv_freq", {16}, DType::f32, Fill::positive)});
}

// shape: [N,C] or [N,H,C]
void norm_of(BorderOperands& o, DType t, const Shape& shape) {
  const std::int64_t rows = shape.size() == 3 ? shape[0] * shape[1] : shape[0], width = shape[shape.size() - 1];
  o.run(rms_norm_kernel,
        {o.rows("x", shape, t), o.whole("w", {width}, t), o.rows("y", shape, t), o.whole("rstd", {rows})});
}
void rms_norm(BorderOperands& o, DType t) { norm_of(o, t, {kN, 40}); }
void rms_norm_of_heads(BorderOperands& o, DType t) { norm_of(o, t, {kN, 3, 16}); }
void rms_norm_backward(BorderOperands& o, DType t) {
  o.run(rms_norm_backward_kernel, {.x = o.rows("x", {kN, 40}, t),
                                   .w = o.whole("w", {40}, t),
                                   .rstd = o.whole("rstd", {kN}, DType::f32, Fill::positive),
                                   .dy = o.rows("dy", {kN, 40}, t),
                                   .dx = o.rows("dx", {kN, 40}, t),
                                   .dw = o.whole("dw", {40}),
                                   .beta_x = 1});
}
void layer_norm(BorderOperands& o, DType t) {
  o.run(layer_norm_kernel, {o.rows("x", {kN, 40}, t), o.whole("w", {40}, t), o.whole("b", {40}, t),
                            o.rows("y", {kN, 40}, t), o.whole("mean", {kN}), o.whole("rstd", {kN})});
}
void layer_norm_backward(BorderOperands& o, DType t) {
  o.run(layer_norm_backward_kernel, {.x = o.rows("x", {kN, 40}, t),
                                     .w = o.whole("w", {40}, t),
                                     .mean = o.whole("mean", {kN}),
                                     .rstd = o.whole("rstd", {kN}, DType::f32, Fill::positive),
                                     .dy = o.rows("dy", {kN, 40}, t),
                                     .dx = o.rows("dx", {kN, 40}, t),
                                     .dw = o.whole("dw", {40}),
                                     .db = o.whole("db", {40})});
}

// Integers, because a library may choose a different algorithm, with a different order of sums, for other strides.
void matmul_of(BorderOperands& o, DType t, bool transpose_a, bool transpose_b) {
  const Shape a = transpose_a ? Shape{48, kN} : Shape{kN, 48}, b = transpose_b ? Shape{32, 48} : Shape{48, 32};
  o.run(matmul_kernel, {.a = o.rows("a", a, t, Fill::integers),
                        .b = o.rows("b", b, t, Fill::integers),
                        .c = o.rows("c", {kN, 32}, t, Fill::integers),
                        .transpose_a = transpose_a,
                        .transpose_b = transpose_b,
                        .residual = o.rows("residual", {kN, 32}, t, Fill::integers)});
}
void matmul(BorderOperands& o, DType t) { matmul_of(o, t, false, false); }
void matmul_nt(BorderOperands& o, DType t) { matmul_of(o, t, false, true); }
void matmul_tn(BorderOperands& o, DType t) { matmul_of(o, t, true, false); }
void matmul_of_gradients(BorderOperands& o, DType t) {  // the sum is over the rows
  o.run(matmul_kernel, {.a = o.rows("a", {kN, 32}, t, Fill::integers),
                        .b = o.rows("b", {kN, 48}, t, Fill::integers),
                        .c = o.rows("c", {32, 48}, DType::f32, Fill::integers),
                        .transpose_a = true,
                        .beta = 1});
}
void column_sum(BorderOperands& o, DType t) {
  o.run(column_sum_kernel, {o.rows("x", {kN, 40}, t, Fill::integers), o.whole("out", {40})});
}

void cross_entropy(BorderOperands& o, DType t) {
  o.run(cross_entropy_kernel, {.logits = o.rows("logits", {kN, 48}, t),
                               .targets = o.numbers(counting(kN, 0, 40)),
                               .loss = o.whole("loss", {kN}),
                               .vocab = 40});
}
void logit_statistics(BorderOperands& o, DType t) {
  o.run(logit_statistics_kernel, {.logits = o.rows("logits", {kN, 48}, t),
                                  .targets = o.numbers(counting(kN, 0, 96)),
                                  .out = o.whole("out", {kN, kLogitStatistics}),
                                  .first = 48,
                                  .vocab = 96});
}
void sliced_cross_entropy(BorderOperands& o, DType t) {
  o.run(sliced_cross_entropy_kernel,
        {.logits = o.rows("logits", {kN, 48}, t),
         .targets = o.numbers(counting(kN, 0, 96)),
         .statistics = o.whole("statistics", {2, kN, kLogitStatistics}, DType::f32, Fill::positive),
         .loss = o.whole("loss", {kN}),
         .first = 48,
         .vocab = 96});
}

void embedding(BorderOperands& o, DType t) {
  constexpr std::int64_t first = kBorder / 64;
  const Tensor table = o.last_rows("table", first, {16, 64}, t);
  o.run(embedding_kernel, {o.numbers(counting(kN, o.shifted(first), 16)), table, o.whole("out", {kN, 64}, t)});
}
void embedding_backward(BorderOperands& o, DType t) {
  constexpr std::int64_t first = kBorder / 64;
  const Tensor dtable = o.last_rows("dtable", first, {16, 64}, t);
  o.run(embedding_backward_kernel,
        {o.numbers(counting(kN, o.shifted(first), 16)), o.whole("dout", {kN, 64}, t), dtable, 1});
}

void copy_rows(BorderOperands& o, DType t) {
  o.run(copy_rows_kernel, {o.rows("dst", {kN, 3, 16}, t),
                           o.rows("src", {kN, 3, 16}, t),
                           {.to = 1, .first = 2, .count = 128, .to_step = 2, .step = 2}});
}
EncodedRows encoded(BorderOperands& o, bool scaled, Fill fill) {
  const Tensor values = o.whole("values", {128, 3, 16}, scaled ? DType::u8 : DType::bf16, fill);
  return {values, scaled ? o.whole("scales", {128, 3}, DType::u8, Fill::ones) : Tensor{}};
}
void encode_rows(BorderOperands& o, DType t) {
  o.run(encode_rows_kernel, {o.rows("src", {kN, 3, 16}, t), encoded(o, true, Fill::zeros), 2, 2});
}
void encode_rows_in_bf16(BorderOperands& o, DType t) {
  o.run(encode_rows_kernel, {o.rows("src", {kN, 3, 16}, t), encoded(o, false, Fill::zeros), 2, 2});
}
void decode_rows(BorderOperands& o, DType t) {
  o.run(decode_rows_kernel, {encoded(o, true, Fill::uniform), o.rows("dst", {kN, 3, 16}, t), 2, 2});
}
void decode_rows_and_add(BorderOperands& o, DType) {
  o.run(decode_rows_kernel, {encoded(o, false, Fill::uniform), o.rows("dst", {kN, 3, 16}, DType::f32), 2, 2, true});
}

Fp8Matrix fp8_matrix(BorderOperands& o, const std::string& name, std::int64_t rows, std::int64_t columns,
                     Fp8Blocks blocks) {
  const std::int64_t down = fp8_blocks(rows), across = fp8_blocks(columns);
  const Shape scales = blocks == Fp8Blocks::rows      ? Shape{across, rows}
                       : blocks == Fp8Blocks::squares ? Shape{down, across}
                                                      : Shape{1, 1};
  const Tensor values = o.rows(name, {rows, columns}, DType::u8, Fill::integers);
  const Tensor padded = o.rows(name + "_scales", {scales[0], (scales[1] + 3) / 4 * 4}, DType::f32, Fill::ones);
  return {values, padded.narrow(1, 0, scales[1]), blocks};
}
Fp8Max maximum(BorderOperands& o, Fp8Blocks blocks) {
  return blocks == Fp8Blocks::tensor ? Fp8Max{o.whole("max", {1}, DType::f32, Fill::zeros)} : Fp8Max{};
}

void quantize_with(BorderOperands& o, DType t, Fp8Blocks blocks) {
  o.run(quantize_fp8_kernel, {o.rows("x", {kFp8Rows, 128}, t), fp8_matrix(o, "out", kFp8Rows, 128, blocks),
                              fp8_matrix(o, "transposed", 128, kFp8Rows, blocks), maximum(o, blocks)});
}
void quantize_fp8(BorderOperands& o, DType t) { quantize_with(o, t, Fp8Blocks::rows); }
void quantize_fp8_squares(BorderOperands& o, DType t) { quantize_with(o, t, Fp8Blocks::squares); }
void quantize_fp8_tensor(BorderOperands& o, DType t) { quantize_with(o, t, Fp8Blocks::tensor); }
void transpose_fp8(BorderOperands& o, DType) {
  o.run(transpose_fp8_kernel, {fp8_matrix(o, "x", kFp8Rows, 128, Fp8Blocks::squares),
                               fp8_matrix(o, "out", 128, kFp8Rows, Fp8Blocks::squares)});
}
void dequantize_fp8(BorderOperands& o, DType t) {
  o.run(dequantize_fp8_kernel, {fp8_matrix(o, "x", kFp8Rows, 128, Fp8Blocks::rows), o.rows("out", {kFp8Rows, 128}, t)});
}
void matmul_fp8(BorderOperands& o, DType t) {
  const Fp8Blocks blocks = t == DType::bf16 ? Fp8Blocks::squares : Fp8Blocks::rows;
  o.run(matmul_fp8_kernel, {fp8_matrix(o, "a", kFp8Rows, 128, Fp8Blocks::rows), fp8_matrix(o, "b", 128, 128, blocks),
                            o.rows("c", {kFp8Rows, 128}, t)});
}
void matmul_fp8_tensor(BorderOperands& o, DType t) {
  o.run(matmul_fp8_kernel, {fp8_matrix(o, "a", kFp8Rows, 128, Fp8Blocks::tensor),
                            fp8_matrix(o, "b", 128, 128, Fp8Blocks::tensor), o.rows("c", {kFp8Rows, 128}, t)});
}
void rms_norm_fp8(BorderOperands& o, DType t) {
  o.run(rms_norm_fp8_kernel, {o.rows("x", {kFp8Rows, 128}, t), o.whole("w", {128}, t), o.whole("rstd", {kFp8Rows}),
                              fp8_matrix(o, "out", kFp8Rows, 128, Fp8Blocks::rows),
                              fp8_matrix(o, "transposed", 128, kFp8Rows, Fp8Blocks::rows)});
}
void swiglu_fp8(BorderOperands& o, DType t) {
  o.run(swiglu_fp8_kernel, {o.rows("gate_up", {kFp8Rows, 256}, t), fp8_matrix(o, "out", kFp8Rows, 128, Fp8Blocks::rows),
                            fp8_matrix(o, "transposed", 128, kFp8Rows, Fp8Blocks::rows)});
}
void swiglu_backward_fp8(BorderOperands& o, DType t) {
  o.run(swiglu_backward_fp8_kernel, {o.rows("gate_up", {kFp8Rows, 256}, t), o.rows("dy", {kFp8Rows, 128}, t),
                                     fp8_matrix(o, "out", kFp8Rows, 256, Fp8Blocks::rows),
                                     fp8_matrix(o, "transposed", 256, kFp8Rows, Fp8Blocks::rows)});
}
void rope_fp8(BorderOperands& o, DType t) {
  o.run(rope_fp8_kernel, {.x = o.rows("x", {kFp8Rows, 128}, t),
                          .positions = o.numbers(counting(kFp8Rows, 5, kFp8Rows)),
                          .inv_freq = o.whole("inv_freq", {16}, DType::f32, Fill::positive),
                          .heads = 2,
                          .out = fp8_matrix(o, "out", kFp8Rows, 128, Fp8Blocks::rows),
                          .transposed = fp8_matrix(o, "transposed", 128, kFp8Rows, Fp8Blocks::rows)});
}

}  // namespace

std::vector<BorderOp> ops() {
  return {{"swiglu", "", swiglu},
          {"swiglu_backward", "", swiglu_backward},
          {"rope", "", rope},
          {"rms_norm", "", rms_norm},
          {"rms_norm", "heads", rms_norm_of_heads},
          {"rms_norm_backward", "", rms_norm_backward},
          {"layer_norm", "", layer_norm},
          {"layer_norm_backward", "", layer_norm_backward},
          {"matmul", "", matmul},
          {"matmul", "nt", matmul_nt},
          {"matmul", "tn", matmul_tn},
          {"matmul", "gradients", matmul_of_gradients},
          {"column_sum", "", column_sum},
          {"cross_entropy", "", cross_entropy},
          {"logit_statistics", "", logit_statistics},
          {"sliced_cross_entropy", "", sliced_cross_entropy},
          {"embedding", "", embedding},
          {"embedding_backward", "", embedding_backward},
          {"copy_rows", "", copy_rows},
          {"encode_rows", "", encode_rows},
          {"encode_rows", "bf16", encode_rows_in_bf16},
          {"decode_rows", "", decode_rows},
          {"decode_rows", "add", decode_rows_and_add},
          {"quantize_fp8", "", quantize_fp8},
          {"quantize_fp8", "squares", quantize_fp8_squares},
          {"quantize_fp8", "tensor", quantize_fp8_tensor},
          {"transpose_fp8", "", transpose_fp8},
          {"dequantize_fp8", "", dequantize_fp8},
          {"matmul_fp8", "", matmul_fp8},
          {"matmul_fp8", "tensor", matmul_fp8_tensor},
          {"rms_norm_fp8", "", rms_norm_fp8},
          {"swiglu_fp8", "", swiglu_fp8},
          {"swiglu_backward_fp8", "", swiglu_backward_fp8},
          {"rope_fp8", "", rope_fp8}};
}

}  // namespace ring::test::border_rows
