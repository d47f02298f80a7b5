#include "parallel/context/sums.h"

namespace ring {

void run_round(Attention args, const Round& round, const Context& ctx) {
  args.queries = round.queries, args.keys = round.keys;
  attention_kernel(args, ctx);
}
void run_round(AttentionBackward args, const Round& round, const Context& ctx) {
  args.queries = round.queries, args.keys = round.keys;
  attention_backward_kernel(args, ctx);
}

ForwardSum::ForwardSum(const Attention& args, std::int64_t calls, const Context& ctx)
    : args_(args), ctx_(ctx), calls_(calls) {
  if (calls_ == 0 && args_.q.dim(0) > 0) run_round(args_, {}, ctx_);
  if (calls_ > 1) sum_ = args_.out.dtype() == DType::f32 ? args_.out : ctx_.empty(args_.q.shape());
}

void ForwardSum::add(const std::vector<Round>& rounds, const Tensor& k, const Tensor& v) {
  for (const Round& round : rounds) {
    const bool first = done_ == 0, last = ++done_ == calls_;
    Attention one = args_;
    one.k = k, one.v = v;
    if (!first) one.carry = sum_;
    if (!last) one.out = sum_;
    run_round(one, round, ctx_);
  }
}

BackwardSum::BackwardSum(const AttentionBackward& args, std::int64_t calls, const Context& ctx)
    : args_(args), ctx_(ctx), calls_(calls) {
  if (args_.q.dim(0) == 0) return;
  dq_ = ctx_.zeros(args_.q.shape());
  if (calls_ == 0) store(args_.dq, dq_, ctx_);
}

KeyPair BackwardSum::add(const std::vector<Round>& rounds, const Tensor& k, const Tensor& v) {
  const KeyPair gradients = key_pair(ctx_.zeros({2, k.dim(0), k.dim(1), k.dim(2)}));
  for (const Round& round : rounds) {
    AttentionBackward one = args_;
    one.k = k, one.v = v;
    one.carry_dq = dq_;
    one.dq = ++done_ == calls_ ? args_.dq : dq_;
    one.dk = one.carry_dk = gradients.k;
    one.dv = one.carry_dv = gradients.v;
    run_round(one, round, ctx_);
  }
  return gradients;
}

}  // namespace ring
