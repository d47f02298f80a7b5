// Tests of linear attention that the op cases do not cover: outputs depend on no later token and on no other document;
// states are carried from one call to the next; recomputation.
#include "autograd/linear_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/op_case.h"

namespace ring::test {
namespace {

constexpr std::int64_t kDeltaColumns = 40, kConvTaps = 4;
constexpr GatedDeltaRule kRule{1, 2, 12, 8, 0.3f};  // kDeltaColumns columns

// Inputs of one layer: x [N,kDeltaColumns] for the convolution, the gates, and the weights of the convolution.
struct Layer {
  Var x, gates, w;
};

Var variable(Tensor t) { return {std::move(t), std::make_shared<GradSlot>()}; }

Layer make_layer(std::int64_t rows, const ExecContext& ctx) {
  Values gates = random_values("gates", rows * 4);
  for (std::size_t i = 0; i < gates.size(); ++i) gates[i] = i % 4 < 2 ? (gates[i] - 1) / 20 : (gates[i] + 1) / 2;
  return {variable(make_tensor({rows, kDeltaColumns}, DType::f32, random_values("x", rows * kDeltaColumns, 2), ctx)),
          variable(make_tensor({rows, 4}, DType::f32, gates, ctx)),
          variable(make_tensor({kDeltaColumns * kConvTaps}, DType::f32, random_values("w", kDeltaColumns * kConvTaps),
                               ctx))};
}

struct States {
  Var inputs, state;
};

// Returns the layer's output for rows [first, first + count). before: the states before these rows, or none. after:
// receives the states after these rows, if it is not null.
Var run_rows(Run& run, const Layer& l, std::int64_t first, std::int64_t count, const Sequences& seqs,
             const States& before, States* after) {
  const auto rows = [&](const Var& v) {
    const auto slice = [first, count](const ExecContext& ctx, const Tensor& t) {
      const Tensor part = ctx.empty({count, t.dim(1)});
      copy(part, t.narrow(0, first, count), ctx.stream);
      return part;
    };
    const std::int64_t all = v.value.dim(0), width = v.value.dim(1);
    return run.op("rows", v, slice, [=](const Backward& back, const SlotPtr& slot, const Saved&) {
      const Tensor padded = back.ctx.zeros({all, width});
      copy(padded.narrow(0, first, count), back.grad(), back.ctx.stream);
      back.accumulate(slot, padded);
    });
  };
  const Var qkv = short_conv(run, rows(l.x), l.w, seqs, {before.inputs, after ? &after->inputs : nullptr});
  return gated_delta(run, qkv, rows(l.gates), seqs, kRule, {before.state, after ? &after->state : nullptr});
}

Values outputs_of(const Layer& l, const Sequences& seqs, const ExecContext& ctx) {
  Run run{ctx};
  return read_values(run_rows(run, l, 0, l.x.value.dim(0), seqs, {}, nullptr).value);
}

double largest_difference(const Values& a, const Values& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

Values part(const Values& all, std::int64_t first_row, std::int64_t rows) {
  const std::int64_t width = kRule.value_heads * kRule.value_width;
  return {all.begin() + first_row * width, all.begin() + (first_row + rows) * width};
}

TEST(LinearAttention, LaterTokensHaveNoEffect) {
  const ExecContext ctx{Stream::cpu(1)};
  const std::int64_t rows = 140;
  const Sequences seqs{.offsets = {0, static_cast<std::int32_t>(rows)}};
  const Values whole = outputs_of(make_layer(rows, ctx), seqs, ctx);
  for (const std::int64_t last : {0, 63, 64, 100}) {
    const Layer changed = make_layer(rows, ctx);
    for (const Tensor& t : {changed.x.value, changed.gates.value})
      for (float& v : std::span(t.data<float>() + (last + 1) * t.dim(1), t.data<float>() + t.numel())) v *= -0.5f;
    const Values y = outputs_of(changed, seqs, ctx);
    EXPECT_LT(largest_difference(part(y, 0, last + 1), part(whole, 0, last + 1)), 1e-6) << last;
    EXPECT_GT(largest_difference(y, whole), 1e-3);
  }
}

TEST(LinearAttention, DocumentsEqualThemselvesAlone) {
  const ExecContext ctx{Stream::cpu(2)};
  const Layer layer = make_layer(200, ctx);
  const Values packed = outputs_of(layer, {.offsets = {0, 3, 70, 71, 200}, .rows = {0}}, ctx);
  for (const auto& [first, count] : {std::pair{0, 3}, {3, 67}, {70, 1}, {71, 129}}) {
    ring::Run run{ctx};
    const Var alone = run_rows(run, layer, first, count, {.offsets = {0, count}}, {}, nullptr);
    EXPECT_LT(largest_difference(read_values(alone.value), part(packed, first, count)), 1e-6) << first;
  }
}

// Gradients of a layer over 150 tokens, computed in one call or in parts, each of which passes its states to the next.
struct Gradients {
  Values y, x, gates, w;
};
Gradients in_parts(const std::vector<std::int64_t>& lengths, const SavePolicy& saving = {}) {
  const ExecContext ctx{Stream::cpu(1)};
  const Layer layer = make_layer(150, ctx);
  Tape tape;
  Run run{.ctx = ctx, .tape = &tape, .saving = saving};
  Gradients g;
  std::vector<Var> outputs;
  States before, after;
  std::int64_t first = 0;
  for (const std::int64_t length : lengths) {
    const Sequences seqs{.offsets = {0, static_cast<std::int32_t>(length)}};
    outputs.push_back(run_rows(run, layer, first, length, seqs, before, &after));
    before = after;
    const Values y = read_values(outputs.back().value);
    g.y.insert(g.y.end(), y.begin(), y.end());
    first += length;
  }
  first = 0;
  const Values cotangent = random_values("cotangent", std::ssize(g.y));
  for (const Var& y : outputs) {
    y.slot->grad = make_tensor(y.value.shape(), DType::f32, part(cotangent, first, y.value.dim(0)), ctx);
    y.slot->written = true;
    first += y.value.dim(0);
  }
  tape.backward(outputs.back().slot, outputs.back().slot->grad, ctx);
  g.x = read_values(layer.x.slot->grad), g.gates = read_values(layer.gates.slot->grad);
  g.w = read_values(layer.w.slot->grad);
  return g;
}

TEST(LinearAttention, PartsWithACarriedStateEqualTheWhole) {
  const Gradients whole = in_parts({150});
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{75, 75}, {64, 86}, {1, 2, 147}, {100, 49, 1}}) {
    const Gradients parts = in_parts(lengths);
    EXPECT_LT(largest_difference(parts.y, whole.y), 1e-5) << lengths[0];
    EXPECT_LT(largest_difference(parts.x, whole.x), 1e-4) << lengths[0];
    EXPECT_LT(largest_difference(parts.gates, whole.gates), 1e-4) << lengths[0];
    EXPECT_LT(largest_difference(parts.w, whole.w), 1e-4) << lengths[0];
  }
}

TEST(LinearAttention, RecomputationChangesNoBit) {
  const Gradients saved = in_parts({90, 60}), again = in_parts({90, 60}, {.recompute = true}),
                  all = in_parts({90, 60}, {.recompute = true, .recompute_attention = true});
  for (const Gradients* g : {&again, &all}) {
    EXPECT_EQ(g->x, saved.x);
    EXPECT_EQ(g->gates, saved.gates);
    EXPECT_EQ(g->w, saved.w);
  }
}

}  // namespace
}  // namespace ring::test
