#include "model/decoder.h"
#include "parallel/ordered_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/elementwise.h"
#include "parallel/owned_shard.h"
#include "parallel/parallelize.h"
#include "tests/comm/ranks.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

using Floats = std::vector<float>;

// A group whose reductions start adding at a given rank, like a ring over other GPUs. All ranks still get the same
// bits.
class AnotherOrder final : public Communicator {
 public:
  AnotherOrder(Communicator& group, int first)
      : Communicator(group.rank(), group.size()), group_(group), first_(first) {}
  std::string_view backend() const override { return group_.backend(); }
  void abort(const std::string& reason) override { group_.abort(reason); }

 private:
  Work do_all_reduce(Operation, const Tensor& t, Reduce, const Event&) override {
    const Stream stream = Stream::cpu(1);
    const Tensor all = Tensor::empty({size(), t.numel()}, t.dtype(), stream);
    group_.all_gather(all, t).synchronize();
    for (std::int64_t i = 0; i < t.numel(); ++i) {
      float sum = 0;
      for (int r = 0; r < size(); ++r) sum += all.data<float>()[(r + first_) % size() * t.numel() + i];
      t.data<float>()[i] = sum;
    }
    return {};
  }
  Work do_all_gather(Operation, const Tensor& out, const Tensor& in, const Event& after) override {
    return group_.all_gather(out, in, after);
  }
  Work do_reduce_scatter(Operation, const Tensor&, const Tensor&, Reduce, const Event&) override { return no(); }
  Work do_all_to_all(Operation, const Tensor&, const Tensor&, const Event&) override { return no(); }
  Work do_broadcast(Operation, const Tensor&, int, const Event&) override { return no(); }
  Work do_reduce_pieces(Operation, const std::vector<OwnedPiece>&, Reduce, const Event&) override { return no(); }
  Work do_broadcast_pieces(Operation, const std::vector<OwnedPiece>&, const Event&) override { return no(); }
  Work do_exchange(Operation, const std::vector<Transfer>&, const std::vector<Transfer>&, const Event&) override {
    return no();
  }
  Work do_barrier(Operation, const Event&) override { return no(); }
  [[noreturn]] static Work no() { fail("not part of this test"); }

  Communicator& group_;
  int first_;
};

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Returns the result of `fn` on each rank of a group whose reductions start at rank `first`.
using Fn = std::function<Floats(Communicator&, const ExecContext&)>;
std::vector<Floats> in_group(int ranks, int first, const Fn& fn) {
  std::vector<Floats> out(static_cast<std::size_t>(ranks));
  const auto errors = run_ranks(ranks, [&](Communicator& comm) {
    AnotherOrder group(comm, first);
    out[static_cast<std::size_t>(comm.rank())] = fn(group, ExecContext{Stream::cpu(1)});
    comm.barrier().synchronize();
  });
  EXPECT_EQ(joined(errors), "");
  return out;
}

// Returns the gradients of parameters that every slice of a model holds whole.
Floats replicated_gradients(Communicator& slices, const ExecContext& ctx) {
  ModelConfig config = tiny_config().model;
  config.width = 96, config.heads = config.kv_heads = 12, config.vocab_size = 288;
  Decoder model(config.resolved(), 16);
  model.shard({slices.rank(), slices.size()});
  model.parameters().allocate(ctx, 1);
  const OwnedShard shard = own_everything(model.parameters());
  random_normal_kernel({shard.gradients.flat, {.seed = 5, .site = static_cast<std::uint32_t>(slices.rank())}}, ctx);
  sum_replicated(shard, slices, ctx);
  Floats out;
  for (const UpdateRange& run : shard.ranges())
    if (!run.cut) {
      const Floats part = to_host<float>(run.of(shard.gradients), ctx.stream);
      out.insert(out.end(), part.begin(), part.end());
    }
  return out;
}

class DistOrderedSum : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

// The problem that ordered sums solve.
TEST_F(DistOrderedSum, ReductionsOfDifferentGroupsMayDiffer) {
  const auto reduced = [](Communicator& group, const ExecContext& ctx) {
    const Tensor t = ctx.empty({100});
    random_normal_kernel({t, {.seed = 5, .site = static_cast<std::uint32_t>(group.rank())}}, ctx);
    group.all_reduce(t, Reduce::sum).wait(ctx.stream);
    return to_host<float>(t, ctx.stream);
  };
  EXPECT_FALSE(same_bits(in_group(3, 0, reduced)[0], in_group(3, 1, reduced)[0]));
}

// Each replica sums over its own slices, on different GPUs.
TEST_F(DistOrderedSum, ReplicasAgreeOnReplicatedGradients) {
  for (const int ranks : {3, 4}) {
    const std::vector<Floats> one = in_group(ranks, 0, replicated_gradients);
    ASSERT_GT(one[0].size(), 0u);
    for (const int first : {1, 2}) {
      const std::vector<Floats> other = in_group(ranks, first, replicated_gradients);
      for (int r = 0; r < ranks; ++r)
        EXPECT_TRUE(same_bits(one[0], other[static_cast<std::size_t>(r)])) << "rank " << r << " of " << ranks;
    }
  }
}

TEST_F(DistOrderedSum, IsTheSumOfManyTensorsInRankOrder) {
  constexpr std::int64_t kMany = (4 << 20) + 1000, kFew = 3;  // more than is gathered at a time, and few
  const auto value = [](int rank, std::int64_t i) { return std::ldexp(1.0f, (rank + static_cast<int>(i % 3)) * 12); };
  const std::vector<Floats> got = in_group(3, 0, [&](Communicator& group, const ExecContext& ctx) {
    std::vector<Tensor> tensors;
    for (const std::int64_t n : {kMany, kFew}) {
      tensors.push_back(ctx.empty({n}));
      for (std::int64_t i = 0; i < n; ++i) tensors.back().data<float>()[i] = value(group.rank(), i);
    }
    sum_in_order(tensors, group, ctx);
    Floats out = to_host<float>(tensors[0], ctx.stream);
    for (std::int64_t i = 0; i < kFew; ++i) out.push_back(tensors[1].data<float>()[i]);
    return out;
  });
  for (std::int64_t i = 0; i < kMany + kFew; ++i) {
    const std::int64_t at = i < kMany ? i : i - kMany;
    const float want = value(0, at) + value(1, at) + value(2, at);
    for (const Floats& g : got) ASSERT_EQ(g[static_cast<std::size_t>(i)], want) << i;
  }
}

TEST_F(DistOrderedSum, HalfPrecisionIsRoundedOnce) {
  const std::vector<Floats> got = in_group(3, 0, [](Communicator& group, const ExecContext& ctx) {
    const Tensor t = ctx.empty({1}, DType::bf16), wide = ctx.empty({1});
    t.data<bf16>()[0] = to_bf16(group.rank() == 0 ? 256.0f : 0.75f);  // alone, neither 0.75 changes 256 in bf16
    sum_in_order({t}, group, ctx);
    return Floats{to_float(t.data<bf16>()[0])};
  });
  for (const Floats& g : got) EXPECT_EQ(g[0], 258.0f);
}

}  // namespace
}  // namespace ring::test
