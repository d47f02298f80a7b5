#include <algorithm>

#include "autograd/ops/linear.h"
#include "autograd/ops/loss_head.h"
#include "comm/communicator.h"
#include "kernels/matmul.h"
#include "kernels/sliced_cross_entropy.h"

namespace ring {
namespace {

// Arguments of the head. x has all rows. When a chunk is finished, its rows of x are overwritten by their gradient from
// this process's columns of the logits.
struct Head {
  const Run& run;
  const LossHead& head;
  Tensor x, w, token_loss, correct;
  bool want_dx;
  Sink dw;  // undefined dst if not wanted
};

// Computes this process's statistics of the rows and gathers those of all processes, in rank order.
Tensor statistics_of(const Head& h, const Tensor& logits, const Tensor& targets, std::int64_t first) {
  const ExecContext& ctx = h.run.ctx;
  const std::int64_t rows = logits.dim(0);
  const Tensor own = ctx.empty({rows, kLogitStatistics}),
               all = ctx.empty({h.run.layout.tp->size(), rows, kLogitStatistics});
  logit_statistics_kernel({.logits = logits, .targets = targets, .out = own, .first = first, .vocab = h.head.vocab},
                          ctx);
  h.run.layout.tp->all_gather(all, own, ctx.stream.record()).wait(ctx.stream);
  return all;
}

void run_chunk(Head& h, const Tensor& logits, std::int64_t begin) {
  const ExecContext& ctx = h.run.ctx;
  const std::int64_t rows = logits.dim(0), first = h.run.layout.tp->rank() * h.w.dim(0);
  const auto part = [&](const Tensor& t) { return t.defined() ? t.narrow(0, begin, rows) : t; };
  const Tensor x = part(h.x), targets = part(h.head.targets);
  linear_forward(ctx, {x, h.w, {}, {}}, logits);
  const Tensor capped = capped_logits(ctx, h.head, logits);
  const bool gradient = h.want_dx || h.dw.dst.defined();
  sliced_cross_entropy_kernel({.logits = capped,
                               .targets = targets,
                               .weights = part(h.head.weights),
                               .statistics = statistics_of(h, capped, targets, first),
                               .loss = part(h.token_loss),
                               .correct = part(h.correct),
                               .first = first,
                               .vocab = h.head.vocab,
                               .scale = h.head.scale,
                               .z_loss = h.head.z_loss,
                               .gradient = gradient,
                               .state = h.run.state},
                              ctx);
  if (gradient) uncap_gradient(ctx, h.head, logits, capped);
  if (h.dw.dst.defined()) weight_gradient(ctx, capped, x, h.dw);
  if (h.want_dx) input_gradient(ctx, capped, h.w, {x});
}

}  // namespace

LossOutput vocab_parallel_head(Run& run, const Var& x, const Var& w, const LossHead& head) {
  Communicator& tp = *run.layout.tp;
  RING_CHECK(x.value.shape().size() == 2 && w.value.shape().size() == 2, "cross_entropy_head: input ",
             describe(x.value), " and weight ", describe(w.value), ": expected two dims each");
  const std::int64_t tokens = x.value.dim(0) * tp.size(), columns = w.value.dim(0);
  check_head(x.value, tokens, w.value, columns * tp.size(), head);
  const ExecContext& ctx = run.ctx;
  LossOutput out{{ctx.empty({1}), nullptr}, ctx.empty({tokens}), {}};
  if (head.correct) out.correct = ctx.empty({tokens});
  Head h{run,   head, ctx.empty({tokens, x.value.dim(1)}, x.value.dtype()), w.value, out.token_loss, out.correct,
         false, {}};
  tp.all_gather(h.x, x.value, ctx.stream.record()).wait(ctx.stream);
  h.want_dx = run.tape && x.slot;
  if (run.tape && w.slot && tokens > 0) h.dw = open_sink(*w.slot, w.value.shape(), w.value.dtype(), ctx);
  {
    const Tensor logits = empty_chunk(ctx, head, tokens, columns, x.value.dtype());
    for (std::int64_t begin = 0; begin < tokens; begin += logits.dim(0))
      run_chunk(h, logits.narrow(0, 0, std::min(logits.dim(0), tokens - begin)), begin);
  }
  column_sum_kernel({.x = out.token_loss.view({tokens, 1}), .out = out.sum.value}, ctx);
  if (!run.tape) return out;
  Tensor dx;
  if (h.want_dx) {
    dx = ctx.empty(x.value.shape(), x.value.dtype());
    tp.reduce_scatter(dx, h.x, Reduce::sum, ctx.stream.record()).wait(ctx.stream);
  }
  out.sum = record_loss(run, out.sum.value, x, w, dx);
  return out;
}

}  // namespace ring
