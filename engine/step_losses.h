#pragma once
// The losses of a training step: named parts of one f32 vector, so that one message reduces all of them and one copy
// brings them to the host.

#include <span>

#include "core/tensor.h"
#include "kernels/kernel.h"

namespace ring {

// The losses of a mixture's corpora and the auxiliary loss, in host memory.
struct LossValues {
  std::span<const float> by_corpus, target_counts;  // one value per corpus of a mixture; otherwise empty
  const float* auxiliary = nullptr;                 // null if the model has no auxiliary loss
  std::span<const float> pairs;                     // see StepLosses::pairs; empty without preference.loss
};

inline constexpr std::int64_t kPairSums = 3;

struct StepLosses {
  StepLosses() = default;
  // corpora: the number of corpora of a mixture, or 0.
  StepLosses(std::int64_t corpora, bool has_auxiliary, bool has_pairs, const ExecContext& ctx)
      : all(ctx.empty({1 + 2 * corpora + (has_auxiliary ? 1 : 0) + (has_pairs ? kPairSums : 0)}, DType::f32,
                      Lifetime::run)),
        loss(all.narrow(0, 0, 1)),
        by_corpus(all.narrow(0, 1, corpora)),
        target_counts(all.narrow(0, 1 + corpora, corpora)) {
    if (has_auxiliary) auxiliary = all.narrow(0, 1 + 2 * corpora, 1);
    if (has_pairs) pairs = all.narrow(0, all.numel() - kPairSums, kPairSums);
  }

  // Interprets `host`, a copy of `all`, which must outlive the result.
  LossValues values(const float* host) const {
    const auto corpora = static_cast<std::size_t>(by_corpus.numel());
    LossValues v{{host + 1, corpora}, {host + 1 + corpora, corpora}};
    if (auxiliary.defined()) v.auxiliary = host + 1 + 2 * corpora;
    if (pairs.defined()) v.pairs = {host + all.numel() - kPairSums, kPairSums};
    return v;
  }

  Tensor all;            // the vector; the other members are views of it
  Tensor loss;           // [1]: sum over the targets
  Tensor by_corpus;      // [corpora]: sum over the targets of each corpus
  Tensor target_counts;  // [corpora]
  Tensor auxiliary;      // [1]: the model's auxiliary loss; undefined if the model has none
  Tensor pairs;          // [kPairSums]: rewards of the chosen and rejected answers, and number of pairs in which the
                         // chosen one has the larger reward; undefined without preference.loss
};

}  // namespace ring
