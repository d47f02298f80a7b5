#pragma once
// Attention split into several kernel calls over different keys. Partial results are carried in f32 and rounded once,
// by the last call.

#include "parallel/context/plan.h"
#include "parallel/context/rows.h"

namespace ring {

inline std::int64_t calls_of(const std::vector<AttentionCall>& rounds) {
  return static_cast<std::int64_t>(rounds.size());
}

class ForwardSum {
 public:
  // calls: total number of rounds that add() will get; 0 if no query sees a key. The first round starts from
  // args.carry, whose memory may then hold partial results.
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
  // calls: as above. args.carry_dk and carry_dv are ignored: the caller adds them.
  BackwardSum(const AttentionBackward& args, std::int64_t calls, const ExecContext& ctx);
  // Adds the gradients of keys k, v from these rounds to `gradients`, f32 [2,M,H,D]. If undefined, `gradients` is
  // allocated by the first round, and stays undefined without rounds.
  void add(const std::vector<AttentionCall>& rounds, const Tensor& k, const Tensor& v, KvPair& gradients);

 private:
  AttentionBackward args_;
  const ExecContext& ctx_;
  std::int64_t calls_, done_ = 0;
  Tensor dq_;
};

// Runs a single call of the kernel, without partial results.
void run_round(Attention, const AttentionCall&, const ExecContext&);
void run_round(AttentionBackward, const AttentionCall&, const ExecContext&);

}  // namespace ring
