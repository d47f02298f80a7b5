#pragma once
// Attention in several calls of a kernel, each over other keys: what they share is carried on in f32 and rounded once,
// by the last call.

#include "parallel/context/plan.h"
#include "parallel/context/rows.h"

namespace ring {

inline std::int64_t calls_of(const std::vector<AttentionCall>& rounds) {
  return static_cast<std::int64_t>(rounds.size());
}

class ForwardSum {
 public:
  // calls: all rounds that are to come. None: no query sees anything. The first one carries what the arguments carry,
  // whose memory holds sums from then on.
  ForwardSum(const Attention& args, std::int64_t calls, const ExecContext& ctx);
  void add(const std::vector<AttentionCall>& rounds, const Tensor& k, const Tensor& v);

 private:
  void call(const AttentionCall&, const Tensor& k, const Tensor& v);

  Attention args_;
  const ExecContext& ctx_;
  std::int64_t calls_, done_ = 0;
  Tensor sum_;
};

class BackwardSum {
 public:
  // The gradients of keys that the arguments carry are the caller's.
  BackwardSum(const AttentionBackward& args, std::int64_t calls, const ExecContext& ctx);
  // Adds the gradients of these keys from these rounds to `gradients`, f32 [2,M,H,D]; undefined: it becomes them, and
  // stays undefined without a round.
  void add(const std::vector<AttentionCall>& rounds, const Tensor& k, const Tensor& v, KvPair& gradients);

 private:
  AttentionBackward args_;
  const ExecContext& ctx_;
  std::int64_t calls_, done_ = 0;
  Tensor dq_;
};

// One call that is all: the kernel itself.
void run_round(Attention, const AttentionCall&, const ExecContext&);
void run_round(AttentionBackward, const AttentionCall&, const ExecContext&);

}  // namespace ring
