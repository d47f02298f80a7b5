// Properties that the op cases do not cover: wrong arguments, empty batches, and the memory of the loss head.

#include "autograd/ops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/error_of.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

class OpsTest : public testing::Test {
 protected:
  Tensor ids(const Values& v) const { return make_tensor({static_cast<std::int64_t>(v.size())}, DType::i32, v, ctx); }
  Var var(const Shape& shape) const {
    return {make_tensor(shape, DType::f32, random_values(str(shape), shape.numel()), ctx),
            std::make_shared<GradSlot>()};
  }
  // Returns the message of the Error that `call` throws.
  template <class F>
  std::string message(const F& call) {
    try {
      call();
    } catch (const Error& e) {
      return e.what();
    }
    return "nothing was thrown";
  }
  ExecContext ctx{Stream::cpu(2)};
  ring::Run run{.ctx = ctx};
};

TEST_F(OpsTest, ErrorsNameWrongShapes) {
  const std::string added = message([&] { add(run, var({2, 3}), var({3, 2})); });
  EXPECT_TRUE(contains(added, "add") && contains(added, "[2,3]") && contains(added, "[3,2]")) << added;
  const std::string normed = message([&] { rms_norm(run, var({2, 3}), var({4}), 1e-5f); });
  EXPECT_TRUE(contains(normed, "rms_norm") && contains(normed, "[2,3]") && contains(normed, "[4]")) << normed;
  const std::string layered = message([&] { layer_norm(run, var({2, 3}), var({3}), var({4}), 1e-5f); });
  EXPECT_TRUE(contains(layered, "layer_norm") && contains(layered, "[4]")) << layered;
  const std::string gated = message([&] { swiglu(run, var({2, 3})); });
  EXPECT_TRUE(contains(gated, "swiglu") && contains(gated, "[2,3]")) << gated;
  const std::string turned = message([&] { rope(run, var({2, 1, 8}), ids({1, 2}), var({3}).value); });
  EXPECT_TRUE(contains(turned, "rope") && contains(turned, "[3]")) << turned;
}

TEST_F(OpsTest, EmbeddingNamesAnIdOutsideOfTheTable) {
  for (double bad : {-1.0, 5.0}) {
    const std::string text = message([&] { embedding(run, ids({0, 4, bad}), var({5, 8})); });
    EXPECT_TRUE(contains(text, str("id ", bad, " at position 2")) && contains(text, "5 rows")) << text;
  }
}

TEST_F(OpsTest, LossHeadRefusesWrongArguments) {
  const Var x = var({3, 8}), w = var({5, 8});
  const auto head = [&](const LossHead& h) { return message([&] { cross_entropy_head(run, x, w, h); }); };
  EXPECT_TRUE(contains(head({.targets = ids({0, 1}), .vocab = 5}), "3 tokens"));
  EXPECT_TRUE(contains(head({.targets = ids({0, 1, 2}), .vocab = 6}), "vocabulary of 6"));
  EXPECT_TRUE(contains(head({.targets = ids({0, 1, 2}), .weights = x.value, .vocab = 5}), "weights"));
  EXPECT_TRUE(contains(head({.targets = ids({0, 1, 2}), .vocab = 5, .chunk_bytes = -1}), "chunks of -1"));
  EXPECT_TRUE(contains(head({.targets = ids({0, 1, 5}), .vocab = 5}), "target 5"));
}

TEST_F(OpsTest, LossHeadAcceptsNoTokens) {
  Tape tape;
  ring::Run recording{.ctx = ctx, .tape = &tape};
  const Var x = var({0, 8}), w = var({5, 8});
  const LossOutput out = cross_entropy_head(recording, x, w, {.targets = ids({}), .vocab = 5});
  EXPECT_EQ(read_values(out.sum.value), Values{0.0});
  tape.backward(out.sum.slot, {}, ctx);
  EXPECT_FALSE(w.slot->written);
}

// 1/4 of the vocabulary and of the tokens of a large model; chunks are smaller in proportion.
TEST_F(OpsTest, LossHeadNeverHoldsTheLogits) {
  constexpr std::int64_t n = 2048, width = 16, vocab = 32768;
  Var x = var({n, width}), w = var({vocab, width});
  const Tensor targets = ids(Values(n, 7));
  Allocator& allocator = *ctx.stream.allocator();
  const std::size_t before = allocator.stats().in_use;
  allocator.reset_peak();
  Tape tape;
  ring::Run recording{.ctx = ctx, .tape = &tape};
  const LossOutput out = cross_entropy_head(
      recording, x, w, {.targets = targets, .vocab = vocab, .scale = 1.0f / n, .chunk_bytes = std::int64_t{16} << 20});
  tape.backward(out.sum.slot, {}, ctx);
  const auto peak = static_cast<double>(allocator.stats().peak - before);
  const double logits = static_cast<double>(n) * vocab * 4;
  EXPECT_LE(peak, 0.1 * logits) << "peak " << peak << " bytes, all logits " << logits;
  EXPECT_GE(peak, static_cast<double>(vocab) * width * 4) << "the measurement misses the weight's gradient";
  EXPECT_NEAR(read_values(out.sum.value)[0] / n, std::log(vocab), 1.0);
}

TEST_F(OpsTest, ChunksOfTheLossHeadDoNotChangeTheLoss) {
  const auto result = [&](std::int64_t chunk_bytes) {
    Tape tape;
    ring::Run recording{.ctx = ctx, .tape = &tape};
    const Var x = var({100, 8}), w = var({50, 8});
    const LossOutput out =
        cross_entropy_head(recording, x, w, {.targets = ids(Values(100, 3)), .vocab = 40, .chunk_bytes = chunk_bytes});
    tape.backward(out.sum.slot, {}, ctx);
    return std::vector<Values>{read_values(out.token_loss), read_values(x.slot->grad), read_values(w.slot->grad)};
  };
  const std::vector<Values> whole = result(1 << 20);
  for (std::int64_t chunk_bytes : {1, 50 * 4 * 7, 50 * 4 * 16, 50 * 4 * 40, 50 * 4 * 99}) {
    const std::vector<Values> parts = result(chunk_bytes);
    for (std::size_t i = 0; i < whole.size(); ++i)
      for (std::size_t j = 0; j < whole[i].size(); ++j)
        ASSERT_NEAR(parts[i][j], whole[i][j], 1e-5) << chunk_bytes << " bytes, output " << i << ", element " << j;
  }
}

TEST_F(OpsTest, UniformSequencesHaveEqualLengths) {
  const Sequences s = Sequences::uniform(3, 4, ctx, 10);
  EXPECT_EQ(s.offsets, (std::vector<std::int32_t>{0, 4, 8, 12}));
  EXPECT_EQ(s.tokens(), 12);
  EXPECT_EQ(read_values(s.positions), (Values{10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13}));
  EXPECT_EQ(Sequences::uniform(0, 4, ctx).tokens(), 0);
  EXPECT_THROW(Sequences::uniform(1 << 16, 1 << 16, ctx), Error);
  EXPECT_THROW(Sequences::uniform(-1, 4, ctx), Error);
  EXPECT_THROW(Sequences::uniform(1, 4, ctx, std::int64_t{1} << 31), Error);
}

// Two rows of six tokens: documents of 2 and 3 tokens with a gap of one token between them, and one of 4 tokens
// followed by padding.
TEST_F(OpsTest, PackedSequencesHaveTheSpansOfTheirDocuments) {
  const Tensor positions = from_host(std::vector<std::int32_t>{0, 1, 0, 0, 1, 2, 0, 1, 2, 3, 0, 0}, ctx.stream);
  const Sequences s = Sequences::packed({0, 3, 6}, {2, 3, 4}, 6, positions);
  EXPECT_EQ(s.tokens(), 12);
  EXPECT_EQ(s.spans(), (std::vector<Span>{{0, 2, 0, 0}, {3, 3, 3, 3}, {6, 4, 0, 0}}));
  EXPECT_EQ(Sequences::packed({}, {}, 6, positions).tokens(), 12);
  EXPECT_TRUE(Sequences::packed({}, {}, 6, positions).spans().empty());
  EXPECT_EQ(Sequences::uniform(2, 3, ctx).spans(), (std::vector<Span>{{0, 3, 0, 0}, {3, 3, 0, 0}}));
  EXPECT_THROW(Sequences::packed({0, 3}, {4, 3}, 6, positions), Error);  // overlaps the next document
  EXPECT_THROW(Sequences::packed({0, 3}, {2, 4}, 6, positions), Error);  // extends into the next row
  EXPECT_THROW(Sequences::packed({0, 9}, {2, 4}, 6, positions), Error);  // extends past the end
  EXPECT_THROW(Sequences::packed({0, 3}, {2}, 6, positions), Error);     // a length is missing
  EXPECT_THROW(Sequences::packed({0, 3}, {2, 3}, 5, positions), Error);  // rows are not whole
}

// Dropout depends on the global row: two parts of a batch have the masks of the whole batch.
TEST_F(OpsTest, DropoutOfPartsEqualsDropoutOfTheWhole) {
  const Var x = var({10, 7});
  const auto drop = [&](std::int64_t first, std::int64_t rows) {
    ring::Run r{.ctx = ctx, .seed = 3, .step = 4, .first_row = first};
    return read_values(dropout_add(r, {x.value.narrow(0, first, rows), nullptr}, {}, 0.5f, 9).value);
  };
  Values parts = drop(0, 3);
  const Values rest = drop(3, 7);
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(parts, drop(0, 10));
}

}  // namespace
}  // namespace ring::test
