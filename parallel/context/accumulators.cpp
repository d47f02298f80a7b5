#include "parallel/context/accumulators.h"

namespace ring {
namespace {

// Returns the f32 buffer for partial results: the result itself if it is f32; else `carry`, the caller's partial
// result, which the first call consumes; else a new tensor.
Tensor place_of_sums(const Tensor& result, const Tensor& carry, const ExecContext& ctx) {
  if (result.dtype() == DType::f32) return result;
  return carry.defined() ? carry : ctx.empty(result.shape());
}

}  // namespace

void run_call(Attention args, const AttentionCall& call, const ExecContext& ctx) {
  args.queries = call.queries, args.keys = call.keys, args.selection.rows = call.block_rows;
  attention_kernel(args, ctx);
}
void run_call(AttentionBackward args, const AttentionCall& call, const ExecContext& ctx) {
  args.queries = call.queries, args.keys = call.keys, args.selection.rows = call.block_rows;
  attention_backward_kernel(args, ctx);
}

ForwardAccumulator::ForwardAccumulator(const Attention& args, std::int64_t calls, const ExecContext& ctx)
    : args_(args), ctx_(ctx), calls_(calls) {
  if (calls_ == 0 && args_.q.dim(0) > 0) run_call(args_, {}, ctx_);
  if (calls_ > 1) sum_ = place_of_sums(args_.out, args_.carry, ctx_);
}

void ForwardAccumulator::accumulate(const std::vector<AttentionCall>& calls, const Tensor& k, const Tensor& v) {
  for (const AttentionCall& call : calls) {
    const bool first = done_ == 0, last = ++done_ == calls_;
    Attention one = args_;
    one.k = k, one.v = v;
    if (!first) one.carry = sum_;
    if (!last) one.out = sum_;
    run_call(one, call, ctx_);
  }
}

BackwardAccumulator::BackwardAccumulator(const AttentionBackward& args, std::int64_t calls, const ExecContext& ctx)
    : args_(args), ctx_(ctx), calls_(calls) {
  args_.carry_dk = args_.carry_dv = {};
  if (args_.q.dim(0) == 0) return;
  if (calls_ == 0) copy_rounded(args_.dq, ctx_.zeros(args_.q.shape()), ctx_);
  if (calls_ > 1) dq_ = place_of_sums(args_.dq, args_.carry_dq, ctx_);
}

void BackwardAccumulator::accumulate(const std::vector<AttentionCall>& calls, const Tensor& k, const Tensor& v,
                                     KvPair& gradients) {
  for (const AttentionCall& call : calls) {
    const bool first = done_ == 0, last = ++done_ == calls_;
    AttentionBackward one = args_;
    one.k = k, one.v = v;
    if (!first) one.carry_dq = dq_;
    if (!last) one.dq = dq_;
    if (gradients.k.defined())
      one.carry_dk = gradients.k, one.carry_dv = gradients.v;
    else
      gradients = kv_pair(ctx_.empty({2, k.dim(0), k.dim(1), k.dim(2)}));
    one.dk = gradients.k, one.dv = gradients.v;
    run_call(one, call, ctx_);
  }
}

}  // namespace ring
