#pragma once
// Attention split into several kernel calls over different keys. Partial results are carried in f32 and rounded once,
// by the last call.

#include "parallel/context/plan.h"
#include "parallel/context/rows.h"

namespace ring {

inline std::int64_t calls_of(const std::vector<AttentionCall>& calls) {
  return static_cast<std::int64_t>(calls.size());
}

class ForwardAccumulator {
 public:
  // calls: total number of accumulate() calls; 0 if no query sees a key. The first call starts from args.carry, whose
  // memory may be reused for partial results.
  ForwardAccumulator(const Attention& args, std::int64_t calls, const ExecContext& ctx);
  void accumulate(const std::vector<AttentionCall>& calls, const Tensor& k, const Tensor& v);

 private:
  Attention args_;
  const ExecContext& ctx_;
  std::int64_t calls_, done_ = 0;
  Tensor sum_;
};

class BackwardAccumulator {
 public:
  // calls: same as in ForwardAccumulator. args.carry_dk and carry_dv are ignored: the caller adds them.
  BackwardAccumulator(const AttentionBackward& args, std::int64_t calls, const ExecContext& ctx);
  // Adds the gradients of keys k, v from these calls to `gradients`, f32 [2,M,H,D]. If undefined, `gradients` is
  // allocated by the first call, and stays undefined without calls.
  void accumulate(const std::vector<AttentionCall>& calls, const Tensor& k, const Tensor& v, KvPair& gradients);

 private:
  AttentionBackward args_;
  const ExecContext& ctx_;
  std::int64_t calls_, done_ = 0;
  Tensor dq_;
};

// Runs a single call of the kernel, without partial results.
void run_call(Attention, const AttentionCall&, const ExecContext&);
void run_call(AttentionBackward, const AttentionCall&, const ExecContext&);

}  // namespace ring
