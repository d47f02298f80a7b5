// The memory of selections at 4 million tokens, without computing anything: lists of kept blocks, block lists, scores
// and their gradients grow with the tokens, not with the square of the blocks.

#include <gtest/gtest.h>

#include "core/fake.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/learned/block_index.h"
#include "tests/cases/attention_oracle.h"

namespace ring::test {
namespace {

constexpr std::int32_t kLongContext = 4 << 20, kSelectedBlock = 128, kKept = 32;
constexpr std::int64_t kHeadDim = 128;
constexpr BlockRule kKeepRule{.kind = BlockRuleKind::content, .local = 2, .first = 1, .keep = kKept};

// Peak memory of one layer, in bytes.
struct Peaks {
  std::size_t select = 0, forward = 0, backward = 0;
};

Peaks peaks_of(std::int32_t tokens, std::int64_t kv_heads, bool learned) {
  const FakeMode fake;
  const ExecContext ctx{Stream::create({Backend::cuda, 0})};
  const Pattern pattern = block_sparse(kSelectedBlock, {kKeepRule});
  const std::vector<Span> spans = {{0, tokens, 0, 0}};
  const std::int32_t blocks = blocks_of(pattern, spans[0]);
  const Tensor q = ctx.empty({tokens, 4 * kv_heads, kHeadDim}, DType::bf16),
               k = ctx.empty({tokens, kv_heads, kHeadDim}, DType::bf16), lse = ctx.empty({4 * kv_heads, tokens});
  const IndexShape shape{.kv_heads = kv_heads, .count = kv_heads};
  const Tensor projected = ctx.empty({blocks, shape.width()}, DType::bf16);
  Allocator& memory = *ctx.stream.impl().allocator;
  memory.reset_peak();
  const std::size_t before = memory.stats().in_use;
  const IndexSelection made =
      learned ? select_by_index(projected, {}, shape, whole_documents({blocks}), blocks, pattern.blocks, ctx)
              : IndexSelection{select_blocks(pattern, q, k, 1, spans, ctx), {}};
  Peaks peaks{.select = memory.stats().peak - before};
  const std::size_t kept = made.selection.kept.bytes(), scores = learned ? made.scores.bytes() : 0;
  EXPECT_LE(kept + scores, peaks.select);
  peaks.forward = kept + scores +
                  list_bytes(Attention{.q = q,
                                       .k = k,
                                       .v = k,
                                       .out = q,
                                       .lse = lse,
                                       .queries = spans,
                                       .keys = spans,
                                       .pattern = pattern,
                                       .selection = made.selection});
  AttentionBackward backward{.q = q, .k = k, .v = k, .out = q, .lse = lse, .dout = q, .dq = q, .dk = k, .dv = k};
  backward.queries = backward.keys = spans, backward.pattern = pattern, backward.selection = made.selection;
  peaks.backward = kept + scores + list_bytes(backward);  // the scores' gradient is as large as the scores
  EXPECT_LE(list_bytes(backward), scratch_bytes(backward, ctx));
  return peaks;
}

TEST(SelectionMemory, IsAFiftiethOfTheKeysAtFourMillionTokens) {
  for (const std::int64_t kv_heads : {1, 8}) {
    const std::size_t keys = std::size_t{kLongContext} * static_cast<std::size_t>(kv_heads * kHeadDim) * 2;
    const Peaks peaks = peaks_of(kLongContext, kv_heads, true);
    EXPECT_LE(peaks.select, keys / 50) << kv_heads << " KV heads";
    EXPECT_LE(peaks.forward, keys / 50) << kv_heads << " KV heads";
    EXPECT_LE(peaks.backward, keys / 50) << kv_heads << " KV heads";
  }
}

TEST(SelectionMemory, GrowsWithTheTokens) {
  for (const bool learned : {false, true}) {
    const Peaks some = peaks_of(kLongContext / 4, 8, learned), all = peaks_of(kLongContext, 8, learned);
    EXPECT_LE(all.select, 5 * some.select);
    EXPECT_LE(all.forward, 4.01 * static_cast<double>(some.forward));
    EXPECT_LE(all.backward, 4.01 * static_cast<double>(some.backward));
  }
}

}  // namespace
}  // namespace ring::test
