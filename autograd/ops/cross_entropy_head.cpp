#include "kernels/cross_entropy.h"

#include <algorithm>

#include "autograd/ops/linear.h"
#include "autograd/ops/loss_head.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

// Returns how many bytes of logits are held at a time: many on a GPU, where GEMMs with few rows are inefficient; few on
// a CPU, whose caches are small.
std::int64_t chunk_bytes(const LossHead& head, Backend backend) {
  if (head.chunk_bytes > 0) return head.chunk_bytes;
  return backend == Backend::cpu ? std::int64_t{32} << 20 : std::int64_t{2} << 30;
}

// Returns the rows of logits held at a time: a multiple of a group size that suits GEMMs. Prefers chunks of equal size
// if they are at least half of the maximum, because each GEMM size is tuned separately.
std::int64_t chunk_rows(std::int64_t bytes, std::int64_t tokens, std::int64_t row_bytes) {
  const std::int64_t max = std::max<std::int64_t>(1, bytes / std::max<std::int64_t>(1, row_bytes));
  if (max >= tokens) return tokens;
  const std::int64_t group = max >= 1024 ? 256 : max >= 16 ? 16 : 1, largest = max / group * group;
  for (std::int64_t rows = largest; 2 * rows >= largest; rows -= group)
    if (tokens % rows == 0) return rows;
  return largest;
}

}  // namespace

void check_head(const Tensor& x, std::int64_t tokens, const Tensor& w, std::int64_t vocab_rows, const LossHead& head) {
  RING_CHECK(x.shape().size() == 2 && w.shape().size() == 2 && x.dim(1) == w.dim(1), "cross_entropy_head: input ",
             describe(x), " and weight ", describe(w), ": the last dims must agree");
  RING_CHECK(head.targets.defined() && head.targets.numel() == tokens, "cross_entropy_head: ", tokens,
             " tokens, targets ", describe(head.targets));
  RING_CHECK(!head.weights.defined() || head.weights.numel() == tokens, "cross_entropy_head: ", tokens,
             " tokens, weights ", describe(head.weights));
  RING_CHECK(head.vocab > 0 && head.vocab <= vocab_rows, "cross_entropy_head: a vocabulary of ", head.vocab,
             " with a weight of ", vocab_rows, " rows");
  RING_CHECK(head.soft_cap >= 0, "cross_entropy_head: soft_cap is ", head.soft_cap, ", expected 0 or more");
  RING_CHECK(head.chunk_bytes >= 0, "cross_entropy_head: chunks of ", head.chunk_bytes, " bytes");
}

Tensor capped_logits(const ExecContext& ctx, const LossHead& head, const Tensor& logits) {
  if (head.soft_cap == 0) return logits;
  const Tensor y = ctx.empty(logits.shape(), logits.dtype());
  activate_kernel({.x = logits, .y = y, .kind = Activation::soft_cap, .cap = head.soft_cap}, ctx);
  return y;
}

void uncap_gradient(const ExecContext& ctx, const LossHead& head, const Tensor& logits, const Tensor& gradient) {
  if (head.soft_cap == 0) return;
  activate_backward_kernel(
      {.x = logits, .dy = gradient, .dx = gradient, .kind = Activation::soft_cap, .cap = head.soft_cap}, ctx);
}

Var record_loss(const Run& run, const Tensor& sum, const Var& x, const Var& w, const Tensor& dx) {
  struct Inputs {
    SlotPtr x, w;
  };
  return run.record("cross_entropy_head", sum, Inputs{x.slot, w.slot}, run.save(dx),
                    [](const Backward& back, const Inputs& inputs, const Saved& saved_dx) {
                      back.accumulate(inputs.x, saved_dx.get(back.ctx));
                    });
}

Tensor empty_chunk(const ExecContext& ctx, const LossHead& head, std::int64_t tokens, std::int64_t columns,
                   DType dtype) {
  const std::int64_t bytes = chunk_bytes(head, ctx.stream.device().backend);
  const std::int64_t row_bytes = columns * static_cast<std::int64_t>(size_of(dtype));
  return ctx.empty({chunk_rows(bytes, tokens, row_bytes), columns}, dtype);
}

namespace {

struct Gradients {
  Tensor dx;  // undefined if not wanted
  Sink dw;    // undefined dst if not wanted
};

// Computes the losses of rows [begin, begin + rows), and both gradients if wanted.
void run_chunk(const Run& run, const LossHead& head, const Tensor& x, const Tensor& w, const Tensor& logits,
               const LossOutput& out, Gradients& gradients, std::int64_t begin) {
  const ExecContext& ctx = run.ctx;
  const std::int64_t rows = logits.dim(0);
  const Tensor x_part = x.narrow(0, begin, rows);
  linear_forward(ctx, {x_part, w, {}, {}}, logits);
  const Tensor capped = capped_logits(ctx, head, logits);
  const bool gradient = gradients.dx.defined() || gradients.dw.dst.defined();
  cross_entropy_kernel({.logits = capped,
                        .targets = head.targets.narrow(0, begin, rows),
                        .weights = head.weights.defined() ? head.weights.narrow(0, begin, rows) : Tensor{},
                        .loss = out.token_loss.narrow(0, begin, rows),
                        .correct = out.correct.defined() ? out.correct.narrow(0, begin, rows) : Tensor{},
                        .vocab = head.vocab,
                        .scale = head.scale,
                        .z_loss = head.z_loss,
                        .gradient = gradient,
                        .state = run.state},
                       ctx);
  if (gradient) uncap_gradient(ctx, head, logits, capped);
  if (gradients.dx.defined()) input_gradient(ctx, capped, w, {gradients.dx.narrow(0, begin, rows)});
  if (gradients.dw.dst.defined()) weight_gradient(ctx, capped, x_part, gradients.dw);
}

}  // namespace

LossOutput cross_entropy_head(Run& run, const Var& x, const Var& w, const LossHead& head) {
  if (is_tensor_parallel(run)) return vocab_parallel_head(run, x, w, head);
  check_head(x.value, x.value.dim(0), w.value, w.value.dim(0), head);
  const std::int64_t tokens = x.value.dim(0), columns = w.value.dim(0);
  LossOutput out{{run.ctx.empty({1}), nullptr}, run.ctx.empty({tokens}), {}};
  if (head.correct) out.correct = run.ctx.empty({tokens});
  Gradients gradients;
  if (run.tape && x.slot) gradients.dx = run.ctx.empty(x.value.shape(), x.value.dtype());
  if (run.tape && w.slot && tokens > 0) gradients.dw = open_sink(*w.slot, w.value.shape(), w.value.dtype(), run.ctx);
  {
    const Tensor logits = empty_chunk(run.ctx, head, tokens, columns, x.value.dtype());
    for (std::int64_t begin = 0; begin < tokens; begin += logits.dim(0)) {
      const Tensor part = logits.narrow(0, 0, std::min(logits.dim(0), tokens - begin));
      run_chunk(run, head, x.value, w.value, part, out, gradients, begin);
    }
  }
  column_sum_kernel({.x = out.token_loss.view({tokens, 1}), .out = out.sum.value}, run.ctx);
  if (!run.tape) return out;
  out.sum = record_loss(run, out.sum.value, x, w, gradients.dx);
  return out;
}

}  // namespace ring
