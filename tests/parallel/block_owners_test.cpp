// Blocks of documents that are sharded among ranks: their owners, and sums that are sent to the owners.

#include "autograd/learned/block_owners.h"

#include <gtest/gtest.h>

#include "parallel/context/exchange.h"
#include "tests/comm/ranks.h"
#include "tests/parallel/context_problem.h"
#include "tests/parallel/cuts.h"

namespace ring::test {
namespace {

constexpr std::int32_t kBlock = 64;

// A row of a selection: the first token and number of tokens of its block in the micro-batch.
struct BlockRange {
  std::int32_t first, count;
};
std::vector<BlockRange> blocks_of(const std::vector<Span>& documents) {
  std::vector<BlockRange> blocks;
  for (const Span& d : documents)
    for (std::int32_t begin = 0, end = 0; begin < d.count; begin = end) {
      end = std::min(d.count, begin + kBlock - (d.position + begin) % kBlock);
      blocks.push_back({d.first + begin, end - begin});
    }
  return blocks;
}

bool has(const std::vector<LocalRows>& held, std::int32_t token) {
  return std::ranges::any_of(held, [&](const LocalRows& h) { return token >= h.global && token < h.global + h.count; });
}

// Returns the tokens of each row, as the loss of an indexer counts them.
std::vector<std::int32_t> tokens_of(const std::vector<PoolSegment>& runs, std::size_t rows) {
  std::vector<std::int32_t> tokens(rows);
  for (const PoolSegment& r : runs)
    for (std::int32_t i = 0; i < r.blocks(kBlock); ++i) {
      const std::int32_t n =
          std::min(r.count, (i + 1) * kBlock - r.leading_gap) - std::max(0, i * kBlock - r.leading_gap);
      if (n <= 0) continue;
      EXPECT_EQ(tokens.at(static_cast<std::size_t>(r.out + i)), 0) << "a block in two runs";
      tokens.at(static_cast<std::size_t>(r.out + i)) = n;
    }
  return tokens;
}

TEST(DistBlockOwners, HaveTheSumsOfAllRanks) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const Pattern pattern = block_sparse(kBlock, {{.local = 2}});
  const auto value = [](std::int32_t token) { return static_cast<float>(1 + token % 97); };
  for (const SequenceCut& cut : kCuts)
    for (const int ranks : {2, 3, 4})
      for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous}) {
        const std::vector<Span> documents = documents_of(cut.length, 2, cut.documents);
        const std::vector<BlockRange> blocks = blocks_of(documents);
        const auto errors = run_ranks(ranks, [&](Communicator& comm) {
          const ExecContext ctx{Stream::cpu(1)};
          const ContextShards shards =
              ContextLayout(kind, cut.length, ranks, cut.align).shards(comm.rank(), 2, documents);
          const std::vector<LocalRows>& held = shards.rows_by_rank[static_cast<std::size_t>(comm.rank())];
          const Tensor sums = ctx.zeros({std::ssize(blocks), 1, 2});
          for (std::size_t b = 0; b < blocks.size(); ++b)
            for (std::int32_t t = blocks[b].first; t < blocks[b].first + blocks[b].count; ++t)
              if (has(held, t)) sums.data<float>()[2 * b] += 1, sums.data<float>()[2 * b + 1] += value(t);
          const auto exchange = make_ring(comm, {});
          reduce_to_owners(sums, shards, pattern, *exchange, ctx);
          const std::vector<std::int32_t> tokens = tokens_of(owned_blocks(shards, pattern), blocks.size());
          for (std::size_t b = 0; b < blocks.size(); ++b) {
            const bool ours = has(held, blocks[b].first);
            float sum = 0;
            for (std::int32_t t = blocks[b].first; ours && t < blocks[b].first + blocks[b].count; ++t) sum += value(t);
            ASSERT_EQ(tokens[b], ours ? blocks[b].count : 0) << cut.name << ", " << b;
            ASSERT_EQ(sums.data<float>()[2 * b], ours ? static_cast<float>(blocks[b].count) : 0) << cut.name;
            ASSERT_EQ(sums.data<float>()[2 * b + 1], sum) << cut.name << ", " << ranks << " ranks, " << b;
          }
          if (cut.name == "aligned" && ranks != 3) {
            ASSERT_EQ(exchange->bytes_sent(), 0) << "nothing is cut";
          }
        });
        EXPECT_EQ(joined(errors), "");
      }
}

}  // namespace
}  // namespace ring::test
