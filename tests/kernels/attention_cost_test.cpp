// The costs that attention reports for the time of a plan, on GPUs that this machine need not have.

#include <gtest/gtest.h>

#include "core/fake.h"
#include "kernels/attention/attention.h"
#include "tests/cases/attention_oracle.h"

namespace ring::test {
namespace {

AttentionBackward backward_of(Device device, std::int32_t queries, std::int32_t keys, std::int64_t kv_heads,
                              const Pattern& pattern, std::int64_t dim = 64) {
  const ExecContext ctx{Stream::create(device)};
  AttentionBackward a;
  a.q = a.out = a.dout = a.dq = ctx.empty({queries, 4 * kv_heads, dim}, DType::bf16);
  a.k = a.v = a.dk = a.dv = ctx.empty({keys, kv_heads, dim}, DType::bf16);
  a.lse = ctx.empty({4 * kv_heads, queries});
  a.queries = {{0, queries, 0, 0}}, a.keys = {{0, keys, 0, 0}};
  a.pattern = pattern;
  return a;
}

// Returns the FLOPs that count for time, relative to the FLOPs of the kept pairs.
double extra_flops(const AttentionBackward& a) {
  return cost(a).flops / attention_flops(10, a.q, a.k, a.pattern, a.queries, a.keys);
}

constexpr Device kGpu{Backend::cuda, 0};

// A block of 128 keys of a KV head is the work of one multiprocessor. With 1024 pools and 4 KV heads there are 32 such
// blocks. The first pools are seen by all queries, twice as many as see a pool on average, so the GPU takes 2 x 132 /
// 32 of the time that evenly divided pairs would take.
TEST(AttentionCost, FewBlocksOfKeysLeaveMultiprocessorsIdle) {
  const FakeMode fake;
  Pattern pools = dense();
  pools.pool = 64;
  EXPECT_NEAR(extra_flops(backward_of(kGpu, 65'536, 1024, 4, pools)), 8.25, 0.6);
  EXPECT_NEAR(extra_flops(backward_of(kGpu, 65'536, 1024, 16, pools)), 2.06, 0.2);
  EXPECT_EQ(extra_flops(backward_of(kGpu, 65'536, 1024, 64, pools)), 1);
  EXPECT_EQ(extra_flops(backward_of(kGpu, 8192, 8192, 8, dense())), 1);
  EXPECT_EQ(extra_flops(backward_of({}, 65'536, 1024, 4, pools)), 1) << "CPUs divide the work differently";
}

// The two kernels run seven GEMMs, of which five are counted per (query, key) pair.
TEST(AttentionCost, TwoKernelsComputeScoresTwice) {
  const FakeMode fake;
  Pattern sinks = window(1024);
  EXPECT_EQ(extra_flops(backward_of(kGpu, 32'768, 32'768, 8, sinks)), 1);
  sinks.sinks = 4;
  EXPECT_DOUBLE_EQ(extra_flops(backward_of(kGpu, 32'768, 32'768, 8, sinks)), 1.4);
  const Pattern blocks = block_sparse(128, {{.kind = BlockRuleKind::local_global, .local = 2, .first = 1}});
  EXPECT_DOUBLE_EQ(extra_flops(backward_of(kGpu, 32'768, 32'768, 8, blocks)), 1.4);
  EXPECT_EQ(extra_flops(backward_of({}, 32'768, 32'768, 8, blocks)), 1);
  EXPECT_DOUBLE_EQ(extra_flops(backward_of(kGpu, 32'768, 32'768, 8, dense(), 256)), 1.4);
}

}  // namespace
}  // namespace ring::test
