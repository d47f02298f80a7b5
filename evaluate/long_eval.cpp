#include "evaluate/long_eval.h"

#include <algorithm>
#include <bit>

#include "kernels/cross_entropy.h"

namespace ring {
namespace {

std::size_t bucket_of(std::int64_t position) { return std::bit_width(static_cast<std::uint64_t>(position)); }

}  // namespace

std::vector<PositionBucket> losses_by_position(const Model& model, const ExecContext& ctx, const ValidationSet& set) {
  const LoaderOptions& options = set.options();
  RING_CHECK(options.world == 1 && !options.packing.documents, "losses by position require whole windows on one rank");
  std::vector<PositionBucket> buckets(bucket_of(options.context - 1) + 1);
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    buckets[i].first = i == 0 ? 0 : std::int64_t{1} << (i - 1);
    buckets[i].end = std::min(std::int64_t{1} << i, options.context);
  }
  const Sequences seqs = Sequences::uniform(options.rows, options.context, ctx);
  for (std::int64_t i = 0; i < set.batches(); ++i) {
    const Batch b = set.batch(i);
    Run run{ctx};
    LossHead head;
    head.targets = from_host(b.targets, ctx.stream);
    const LossOutput out = model.loss(run, from_host(b.inputs, ctx.stream), seqs, head);
    const std::vector<float> losses = to_host<float>(out.token_loss, ctx.stream);
    for (std::size_t t = 0; t < losses.size(); ++t) {
      if (b.targets[t] == kIgnoreTarget) continue;
      PositionBucket& bucket = buckets[bucket_of(static_cast<std::int64_t>(t) % options.context)];
      bucket.sum += losses[t];
      ++bucket.tokens;
    }
  }
  std::erase_if(buckets, [](const PositionBucket& b) { return b.tokens == 0; });
  return buckets;
}

}  // namespace ring
