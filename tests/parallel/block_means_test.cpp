// Means over blocks of documents that are sharded among ranks.

#include <gtest/gtest.h>

#include "autograd/selected/block_means.h"
#include "core/philox.h"
#include "parallel/context/exchange.h"
#include "tests/comm/ranks.h"
#include "tests/parallel/context_problem.h"
#include "tests/parallel/cuts.h"

namespace ring::test {
namespace {

constexpr std::int64_t kMeanWidth = 6;

Tensor numbers(std::int64_t rows, const ExecContext& ctx) {
  const Tensor t = ctx.empty({rows, kMeanWidth});
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data<float>()[i] = random_normal({5, 1, 0}, static_cast<std::uint64_t>(i));
  return t;
}

// Returns means in float64, as defined: blocks are those of the packed row that contains the document.
std::vector<double> means_of(const Tensor& x, const std::vector<Span>& documents, std::int32_t block) {
  std::vector<double> means;
  for (const Span& d : documents)
    for (std::int32_t begin = 0, end = 0; begin < d.count; begin = end) {
      end = std::min(d.count, begin + block - (d.position + begin) % block);
      for (std::int64_t c = 0; c < kMeanWidth; ++c) {
        double sum = 0;
        for (std::int32_t i = begin; i < end; ++i) sum += x.data<float>()[(d.first + i) * kMeanWidth + c];
        means.push_back(sum / (end - begin));
      }
    }
  return means;
}

TEST(DistBlockMeans, AreThoseOfWholeDocumentsOnEveryRank) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const Pattern pattern = block_sparse(64, {{.local = 2}});
  for (const SequenceCut& cut : kCuts)
    for (const int ranks : {2, 3, 4})
      for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous}) {
        const std::vector<Span> documents = documents_of(cut.length, 2, cut.documents);
        const auto errors = run_ranks(ranks, [&](Communicator& comm) {
          const ExecContext ctx{Stream::cpu(1)};
          const ContextShards shards =
              ContextLayout(kind, cut.length, ranks, cut.align).shards(comm.rank(), 2, documents);
          const Tensor all = numbers(2 * cut.length, ctx), own = ctx.empty({shards.tokens(comm.rank()), kMeanWidth});
          for (const LocalRows& h : shards.rows_by_rank[static_cast<std::size_t>(comm.rank())])
            copy(own.narrow(0, h.first, h.count), all.narrow(0, h.global, h.count), ctx.stream);
          const Tensor got = block_means(own, shards, pattern, *make_all_to_all(comm), ctx);
          const std::vector<double> want = means_of(all, documents, 64);
          ASSERT_EQ(got.numel(), std::ssize(want)) << cut.name;
          for (std::size_t i = 0; i < want.size(); ++i)
            ASSERT_NEAR(got.data<float>()[i], want[i], 1e-6) << cut.name << ", " << ranks << " ranks, " << i;
        });
        EXPECT_EQ(joined(errors), "");
      }
}

}  // namespace
}  // namespace ring::test
