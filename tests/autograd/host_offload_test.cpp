// Saved activations in host memory: which tensors leave, when they come back, and that streams are ordered where
// needed.
#include "autograd/host_offload.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "autograd/ops.h"
#include "model/scopes.h"
#include "tests/late_stream.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

constexpr std::int64_t kOffloadRows = 256, kOffloadWidth = 64;
constexpr std::size_t kOne = kOffloadRows * kOffloadWidth * sizeof(float);  // bytes of an activation
static_assert(kOne >= HostOffload::kMinBytes);
constexpr std::size_t kPlenty = std::size_t{1} << 30;

// Overwrites freed memory, and fails at a chosen allocation.
class HostileAllocator final : public Allocator {
 public:
  explicit HostileAllocator(std::shared_ptr<Allocator> inner) : inner_(std::move(inner)) {}
  void* allocate(std::size_t bytes) override {
    if (fail_after >= 0 && fail_after-- == 0) throw OutOfMemory("out of memory in a test");
    return inner_->allocate(bytes);
  }
  void free(void* p, std::size_t bytes) override {
    std::memset(p, 0xFF, bytes);  // NaN
    inner_->free(p, bytes);
  }
  MemoryStats stats() const override { return inner_->stats(); }
  void reset_peak() override { inner_->reset_peak(); }

  int fail_after = -1;  // number of allocations that succeed first; below 0: none fails

 private:
  std::shared_ptr<Allocator> inner_;
};

class HostOffloadTest : public testing::Test {
 protected:
  HostOffloadTest() : memory(std::make_shared<HostileAllocator>(ctx.stream.allocator())) {
    ctx.stream.impl().allocator = memory;
  }
  Tensor filled(const std::string& name) const {
    return make_tensor({kOffloadRows, kOffloadWidth}, DType::f32, random_values(name, kOffloadRows * kOffloadWidth),
                       ctx);
  }
  Var parameter(const std::string& name) const {
    Var v{make_tensor({kOffloadWidth, kOffloadWidth}, DType::f32, random_values(name, kOffloadWidth * kOffloadWidth),
                      ctx),
          std::make_shared<GradSlot>()};
    v.slot->bound = true;
    v.slot->grad = ctx.zeros({kOffloadWidth, kOffloadWidth});
    return v;
  }

  // Each block computes gelu(x w^T) + x w^T and saves two tensors: x (twice) and the first product. The second product
  // is not needed. Returns the gradients of x and w.
  int blocks = 5;
  static constexpr std::size_t kSaved = 2 * kOne;  // per block
  Values gradients(SavedTensorHooks* hooks, bool recompute = false) const {
    Tape tape;
    ring::Run run{.ctx = ctx, .tape = &tape, .saving = {.recompute = recompute, .hooks = hooks}};
    const Var w = parameter("w");
    const Var in{filled("x"), std::make_shared<GradSlot>()};
    const Var out = forward(run, in, w);
    tape.backward(out.slot, filled("seed"), ctx);
    Values all = read_values(in.slot->grad);
    for (const double g : read_values(w.slot->grad)) all.push_back(g);
    return all;
  }
  Var forward(ring::Run& run, Var x, const Var& w) const {
    for (int i = 0; i < blocks; ++i) {
      const ScopeGuard scope = run.enter(block_scope(i));
      const Var product = linear(run, x, w);
      x = checkpoint_boundary(add(run, activate(run, product, Activation::gelu), linear(run, x, w)));
    }
    const ScopeGuard scope = run.enter({scopes::final_norm});
    return x;
  }
  std::size_t in_use() const { return memory->stats().in_use; }
  std::size_t peak_of(const std::function<void()>& work) const {
    memory->reset_peak();
    work();
    return memory->stats().peak;
  }

  ExecContext ctx{Stream::cpu(1)};
  std::shared_ptr<HostileAllocator> memory;
};

TEST_F(HostOffloadTest, GradientsHaveTheSameBits) {
  const Values here = gradients(nullptr);
  HostOffload offload(ctx, kPlenty);
  for (const bool recompute : {false, true})
    for (int pass = 0; pass < 3; ++pass) {
      EXPECT_EQ(gradients(&offload, recompute), here);
      EXPECT_EQ(offload.bytes().moved, 5 * (recompute ? kOne : kSaved));
      EXPECT_EQ(offload.bytes().stayed, 0u);
    }
}

// Copies that ran after their memory was reused would give wrong results.
TEST_F(HostOffloadTest, CopiesMayRunAsLateAsEventsAllow) {
  const Values here = gradients(nullptr);
  HostOffload offload(ctx, kPlenty, late_stream(), late_stream());
  for (int pass = 0; pass < 3; ++pass) EXPECT_EQ(gradients(&offload), here);
  EXPECT_GT(offload.bytes().fetched, 0u);
}

TEST_F(HostOffloadTest, AStorageIsCopiedOnce) {
  HostOffload offload(ctx, kPlenty);
  Tensor t = filled("t");
  const Values values = read_values(t);
  std::vector<std::shared_ptr<SavedStorage>> saved;
  const std::size_t before = in_use();
  for (const int part : {0, 1}) {
    const ScopeGuard scope(*ctx.scopes, block_scope(part), ScopePass::forward);
    for (const Tensor& view : {t, t.view({kOffloadWidth, kOffloadRows}), t.narrow(0, 16, 8), t.narrow(1, 3, 2)})
      saved.push_back(offload.pack(view, ctx));
  }
  t = {};
  for (const ScopeKind later : {scopes::final_norm, scopes::loss_head})
    const ScopeGuard scope(*ctx.scopes, {later}, ScopePass::forward);
  EXPECT_EQ(offload.bytes().moved, kOne);
  EXPECT_EQ(in_use(), before - kOne);
  const ScopeGuard scope(*ctx.scopes, block_scope(1), ScopePass::backward);
  EXPECT_EQ(read_values(saved[0]->get(ctx)), values);
  EXPECT_EQ(saved[1]->get(ctx).shape(), Shape({kOffloadWidth, kOffloadRows}));
  EXPECT_EQ(read_values(saved[6]->get(ctx)),
            Values(values.begin() + 16 * kOffloadWidth, values.begin() + 24 * kOffloadWidth));
  EXPECT_EQ(*saved[7]->get(ctx).data<float>(), static_cast<float>(values[3]));
  EXPECT_EQ(saved[7]->get(ctx).stride(0), kOffloadWidth);
  EXPECT_EQ(saved[0]->get(ctx).raw(), saved[5]->get(ctx).raw());
  EXPECT_EQ(offload.bytes().fetched, kOne);
  EXPECT_EQ(offload.bytes().late, 0u);
}

TEST_F(HostOffloadTest, SmallTensorsAndTensorsOutsideScopesStay) {
  HostOffload offload(ctx, kPlenty);
  EXPECT_EQ(offload.pack(filled("t"), ctx), nullptr) << "nobody says when it is to come back";
  const ScopeGuard scope(*ctx.scopes, block_scope(0), ScopePass::forward);
  EXPECT_EQ(offload.pack(ctx.empty({HostOffload::kMinBytes / sizeof(float) - 1}), ctx), nullptr);
  EXPECT_NE(offload.pack(ctx.empty({HostOffload::kMinBytes / sizeof(float)}), ctx), nullptr);
}

TEST_F(HostOffloadTest, HostMemoryStaysWithinItsLimit) {
  const Values here = gradients(nullptr);
  for (const std::size_t most : {std::size_t{0}, kOne - 1, 3 * kOne, 3 * kOne + kOne / 2}) {
    HostOffload offload(ctx, most);
    for (int pass = 0; pass < 3; ++pass) {
      EXPECT_EQ(gradients(&offload), here);
      EXPECT_EQ(offload.bytes().moved, most / kOne * kOne);
      EXPECT_EQ(offload.bytes().stayed, 5 * kSaved - most / kOne * kOne);
      EXPECT_LE(offload.host_bytes(), most);
    }
  }
}

// The tensors of two blocks are on the device, regardless of the number of blocks.
TEST_F(HostOffloadTest, MemoryDoesNotGrowWithBlocks) {
  const auto peak = [&](int count, SavedTensorHooks* hooks) {
    blocks = count;
    return peak_of([&] { gradients(hooks); });
  };
  HostOffload offload(ctx, kPlenty);
  const std::size_t of_four = peak(4, &offload), of_nine = peak(9, &offload), host = offload.host_bytes();
  EXPECT_EQ(of_nine, of_four);
  EXPECT_EQ(peak(9, nullptr) - peak(4, nullptr), 5 * kSaved);
  EXPECT_EQ(peak(9, &offload), of_nine);
  EXPECT_EQ(offload.host_bytes(), host) << "the same host memory serves every pass";
  EXPECT_EQ(in_use(), 0u);
}

// Bytes fetched so far at the beginning of each block's backward.
class FetchLog final : public ScopeListener {
 public:
  FetchLog(const ExecContext& ctx, const HostOffload& offload) : offload_(offload), subscription_(ctx.scopes, *this) {}
  void enter(const ScopeId& id, ScopePass pass) override {
    if (pass == ScopePass::backward && id.is_repeated()) fetched.push_back(offload_.bytes().fetched);
  }
  std::vector<std::size_t> fetched;

 private:
  const HostOffload& offload_;
  ScopeSubscription subscription_;
};

// The last block's tensors are still on the device when its backward begins.
TEST_F(HostOffloadTest, ABlockIsFetchedDuringTheBackwardOfTheNextBlock) {
  HostOffload offload(ctx, kPlenty);
  FetchLog log(ctx, offload);
  gradients(&offload);
  EXPECT_EQ(log.fetched, (std::vector<std::size_t>{kSaved, 2 * kSaved, 3 * kSaved, 4 * kSaved, 4 * kSaved}));
  EXPECT_EQ(offload.bytes().late, 0u);
}

// Without scopes in the backward, the tape's prefetches announce the tensor.
TEST_F(HostOffloadTest, ATensorThatNoScopeAnnouncesIsFetchedLate) {
  HostOffload offload(ctx, kPlenty);
  std::shared_ptr<SavedStorage> saved;
  const Values values = read_values(filled("t"));
  {
    const ScopeGuard scope(*ctx.scopes, block_scope(0), ScopePass::forward);
    saved = offload.pack(filled("t"), ctx);
  }
  for (const int part : {1, 2}) const ScopeGuard scope(*ctx.scopes, block_scope(part), ScopePass::forward);
  EXPECT_EQ(in_use(), 0u);
  EXPECT_EQ(read_values(saved->get(ctx)), values);
  EXPECT_EQ(offload.bytes().late, kOne);
}

TEST_F(HostOffloadTest, APassThatRanOutOfMemoryLeavesNothingBehind) {
  const Values here = gradients(nullptr);
  for (const bool late : {false, true}) {
    const auto copies = [&] { return late ? late_stream() : ctx.stream; };
    HostOffload offload(ctx, kPlenty, copies(), copies());
    int failures = 0;
    for (bool passed = false; !passed; ++failures) {
      memory->fail_after = failures;
      try {
        passed = gradients(&offload) == here;
        EXPECT_TRUE(passed);
      } catch (const OutOfMemory&) {
      }
      memory->fail_after = -1;
      EXPECT_EQ(in_use(), 0u) << "after a failure of allocation " << failures;
      EXPECT_EQ(gradients(&offload), here) << "after a failure of allocation " << failures;
      ASSERT_LT(failures, 1000);
    }
    EXPECT_GT(failures, 30);
  }
}

TEST_F(HostOffloadTest, TwoForwardsMayComeBeforeTheirBackwards) {
  const Values here = gradients(nullptr);
  HostOffload offload(ctx, kPlenty);
  const Var w = parameter("w");
  const Var first{filled("x"), std::make_shared<GradSlot>()}, second{filled("other"), std::make_shared<GradSlot>()};
  Tape tapes[2];
  ring::Run runs[2] = {{.ctx = ctx, .tape = &tapes[0], .saving = {.hooks = &offload}},
                       {.ctx = ctx, .tape = &tapes[1], .saving = {.hooks = &offload}}};
  const Var a = forward(runs[0], first, w), b = forward(runs[1], second, w);
  tapes[1].backward(b.slot, filled("seed"), ctx);
  w.slot->written = false;
  tapes[0].backward(a.slot, filled("seed"), ctx);
  Values all = read_values(first.slot->grad);
  for (const double g : read_values(w.slot->grad)) all.push_back(g);
  EXPECT_EQ(all, here);
}

}  // namespace
}  // namespace ring::test
