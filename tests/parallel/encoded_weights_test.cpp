// Frozen weights of FP8 layers, of which the device holds only the encoded bytes: the bits, checkpoints and memory of
// runs. The runs are compared with runs with train.ema, in which frozen weights keep their copies.
#include "parallel/encoded_weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "comm/gloo/gloo.h"
#include "comm/mesh/mesh.h"
#include "core/fields.h"
#include "engine/devices.h"
#include "kernels/elementwise.h"
#include "model/decoder.h"
#include "model/fp8_encoding.h"
#include "model/linear_formats.h"
#include "optim/groups.h"
#include "tests/parallel/training.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

using Overrides = std::vector<std::string>;

// Gradients flow through the frozen weights of blocks.1 to blocks.0, in which wq is frozen, but not the weights with
// which it is stacked. The bias is frozen, too.
const char* const kFrozenWeights =
    "optimizer.groups=[{match: ['blocks.1.*.weight', 'blocks.1.attention.wo.bias', 'blocks.0.attention.wq.weight', "
    "'blocks.0.mlp.down.weight', 'embedding.*'], frozen: true}]";

class DistEncodedWeights : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static TrainingOptions options(int ranks, const Overrides& more, int steps = 3) {
    TrainingOptions o;
    o.ranks = ranks;
    o.steps = steps;
    o.validate = o.verify_order = true;
    o.overrides = {str("train.linears=", GetParam()), kFrozenWeights, "model.biases=all", "optimizer.eps=1e-4",
                   "train.micro_batch=2"};
    o.overrides.insert(o.overrides.end(), more.begin(), more.end());
    return o;
  }
  static Training trained(const TrainingOptions& o) {
    Training t = train_on_ranks(o);
    EXPECT_EQ(t.errors, "");
    return t;
  }
  static void expect_same(const Training& one, const Training& other) {
    EXPECT_EQ(one.losses, other.losses);
    EXPECT_EQ(one.norms, other.norms);
    EXPECT_EQ(one.validation, other.validation);
    for (const auto& [name, values] : one.tensors) {
      const auto found = other.tensors.find(name);
      ASSERT_NE(found, other.tensors.end()) << name;
      EXPECT_TRUE(values == found->second) << name;
    }
  }

  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("ringmaster-encoded-" + std::to_string(getpid()))).string();
};
INSTANTIATE_TEST_SUITE_P(All, DistEncodedWeights, testing::Values("fp8_blocks", "fp8_tensor"),
                         [](const auto& format) { return std::string(format.param); });

TEST_P(DistEncodedWeights, GiveTheBitsOfCopies) {
  // Tensor-parallel shards are multiples of 128, and stacked weights have several owners.
  const Overrides wide = {"model.width=256",  "model.heads=4",     "model.kv_heads=4",     "model.mlp_width=256",
                          "model.context=16", "model.init=normal", "model.init_std=0.0262"};
  const auto with = [&](Overrides more) {
    more.insert(more.end(), wide.begin(), wide.end());
    return more;
  };
  const Layout layouts[] = {{"one", 1, {}},
                            {"recomputed", 1, {"train.recompute=full", "train.mlp_chunk=24"}},
                            {"muon", 1, {"optimizer.kind=muon"}},
                            {"offloaded", 1, {"optimizer.offload=states", "optimizer.offload_chunk_bytes=10000"}},
                            {"some_linears", 1, {"train.linears_except=['blocks.1.attention.*']"}},
                            {"dp", 2, {}},
                            {"zero1", 2, {"parallel.zero=1"}},
                            {"zero2", 2, {"parallel.zero=2", "optimizer.kind=muon"}},
                            {"zero3", 2, {"parallel.zero=3", "train.recompute=block"}},
                            {"cp", 2, {"parallel.cp=2"}},
                            {"tp", 2, with({"parallel.tp=2"})},
                            {"wide_zero1", 3, with({"parallel.zero=1", "train.batch_size=6", "train.micro_batch=1"})},
                            {"wide_zero3", 3, with({"parallel.zero=3", "train.batch_size=6", "train.micro_batch=1"})},
                            {"tp_zero2", 4, with({"parallel.tp=2", "parallel.zero=2"})},
                            {"tp_zero3", 4, with({"parallel.tp=2", "parallel.zero=3"})}};
  for (const Layout& l : layouts) {
    SCOPED_TRACE(l.name);
    TrainingOptions o = options(l.ranks, l.overrides);
    const Training encoded = trained(o);
    o.overrides.emplace_back("train.ema=0.9");
    expect_same(encoded, trained(o));
  }
}

// Checkpoints have the exact values, whatever the layout that writes or reads them.
TEST_P(DistEncodedWeights, ResumeFromExactValues) {
  const Layout layouts[] = {{"one", 1, {}},
                            {"zero1", 2, {"parallel.zero=1"}},
                            {"zero3", 2, {"parallel.zero=3", "model.dropout=0.1"}},
                            {"offload_all", 2, {"optimizer.offload=all", "parallel.zero=2"}}};
  for (const Layout& l : layouts) {
    SCOPED_TRACE(l.name);
    std::filesystem::remove_all(folder_);
    const Training start = trained(options(l.ranks, l.overrides, 0)), whole = trained(options(l.ranks, l.overrides, 4));
    for (const char* name : {"model.blocks.1.mlp.down.weight", "model.blocks.0.attention.wq.weight"})
      EXPECT_TRUE(start.tensors.at(name) == whole.tensors.at(name)) << name;
    EXPECT_FALSE(start.tensors.at("model.blocks.0.attention.wk.weight") ==
                 whole.tensors.at("model.blocks.0.attention.wk.weight"));
    TrainingOptions half = options(l.ranks, l.overrides, 2), rest = half;
    half.save = folder_;
    const Training first = trained(half);
    rest.load = first.checkpoint;
    const Training second = trained(rest);
    EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
    EXPECT_EQ(second.tensors, whole.tensors);
    EXPECT_EQ(second.validation, whole.validation);

    TrainingOptions other = options(3, {"parallel.zero=3", "train.batch_size=6", "train.micro_batch=1"}, 0);
    other.load = first.checkpoint;
    EXPECT_EQ(trained(other).tensors, first.tensors);
    // A run with a different initial model takes over the weights of the first run.
    other = options(1, {"run.seed=7"}, 0);
    const Training unlike = trained(other);
    other.load = first.checkpoint;
    other.init_from = true;
    const Training taken = trained(other);
    EXPECT_NE(taken.validation, unlike.validation);
    other.overrides.emplace_back("train.ema=0.9");
    EXPECT_EQ(taken.validation, trained(other).validation);
  }
}

// Only weights frozen as a whole are encoded: 1 byte per number and 4 per scale, in rows of scales of 16 bytes.
TEST_P(DistEncodedWeights, TakeTheBytesOfTheirFormat) {
  const TrainingOptions o = options(1, {}, 1);
  Config config = tiny_config();
  config.data.path = "any";
  override_config(config, o.overrides);
  Decoder model(config.model, vocab_padding(Backend::cpu));
  bind_groups(config.optimizer, model.parameters());
  bind_linears(model, linears_of(config.train), 1);
  const auto up = [](std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; };
  std::int64_t bytes = 0, exact = 0;
  std::vector<std::string> encoded;
  for (const Param* p : model.parameters().declared()) {
    if (!p->encoded) {
      bytes += 4 * param_aligned(p->shape.numel());
      continue;
    }
    encoded.push_back(p->parts[0].name);
    const bool tensorwise = std::string(GetParam()) == "fp8_tensor";
    const std::int64_t scales = tensorwise ? 16 : up(p->shape[0], 128) * 16 * up(up(p->shape[1], 128), 4);
    bytes += up(p->shape.numel() + scales, 256) * 256;
    exact += 4 * p->shape.numel();
  }
  EXPECT_EQ(encoded, (std::vector<std::string>{"blocks.0.mlp.down.weight", "blocks.1.attention.wq.weight",
                                               "blocks.1.attention.wo.weight", "blocks.1.mlp.gate.weight",
                                               "blocks.1.mlp.down.weight"}));
  const std::string text = trained(o).memory[0];
  EXPECT_TRUE(text.starts_with(str("weights ", bytes_text(static_cast<std::uint64_t>(bytes)), ", "))) << text;
  EXPECT_TRUE(text.ends_with(str("; on the host ", bytes_text(static_cast<std::uint64_t>(exact))))) << text;
}

TEST_P(DistEncodedWeights, TakeTheMemoryThatIsPredicted) {
  for (const int ranks : {1, 2})
    for (const char* recompute : {"none", "block"}) {
      TrainingOptions o =
          options(ranks, {str("train.recompute=", recompute), str("parallel.zero=", ranks > 1 ? 3 : 0)});
      o.dry = true;
      const Training t = trained(o);
      EXPECT_EQ(t.slabs, t.dry_slabs) << recompute << ", " << ranks << " ranks";
    }
}

class EncodedFormat final : public LinearFormat {
 public:
  explicit EncodedFormat(Fp8Blocks blocks) : fp8(blocks) {}
  Var apply(Run&, const Var&, const Param&, const Var&, const Var&) const override { fail("not used"); }
  const WeightEncoding* encoding() const override { return &fp8; }
  const Fp8Encoding fp8;
};

void expect_same_rows(const Tensor& got, const Tensor& want) {
  ASSERT_EQ(got.shape(), want.shape());
  const auto row = [](const Tensor& t, std::int64_t r) {
    return t.raw() + r * t.stride(0) * static_cast<std::int64_t>(size_of(t.dtype()));
  };
  const std::size_t bytes = static_cast<std::size_t>(got.dim(1)) * size_of(got.dtype());
  for (std::int64_t r = 0; r < got.dim(0); ++r) ASSERT_EQ(std::memcmp(row(got, r), row(want, r), bytes), 0) << r;
}

// Encodes a matrix some rows at a time, also from a dtype that differs from the dtype of the weights, as on GPUs.
TEST(EncodedWeights, OfALargeMatrixAreThoseOfTheWhole) {
  const ExecContext ctx{Stream::cpu(2)};
  const auto mesh = mesh_of_one();
  for (const Fp8Blocks blocks : {Fp8Blocks::squares, Fp8Blocks::tensor})
    for (const DType type : {DType::f32, DType::bf16})
      for (const bool gathered : {false, true}) {
        SCOPED_TRACE(str(blocks == Fp8Blocks::tensor ? "tensor, " : "squares, ", type, gathered ? ", gathered" : ""));
        EncodedFormat format(blocks);
        Parameters params;
        params.add({{"trained", 0, 16, {Init::Kind::ones}}}, 0);
        Param& p = params.add({{"w", 0, 4400, {Init::Kind::normal, 0.02f}}}, 1040);
        params.freeze(p);
        p.format = &format;
        p.encoded = true;
        params.allocate(ctx, 5, {.weights = type});
        const OwnedShard shard = own_everything(params);
        const EncodedWeights encoded({mesh->axis("dp"), mesh->axis("tp"), {}, gathered}, shard, params, type, ctx);
        encoded.encode(ctx);
        EXPECT_EQ(encoded.bytes(),
                  static_cast<std::size_t>(EncodedWeights::device_bytes(params, shard.pieces, gathered)));

        Tensor whole = shard.values.of(shard.pieces.back()).view(p.shape);
        EXPECT_GT(whole.numel(), 1 << 22);
        if (type != whole.dtype()) {
          const Tensor cast = ctx.empty(p.shape, type);
          cast_kernel({whole, cast}, ctx);
          whole = cast;
        }
        const Fp8Matrix want = empty_fp8(p.shape[0], p.shape[1], blocks, ctx);
        quantize_fp8_kernel({whole, want, {}, {blocks == Fp8Blocks::tensor ? ctx.zeros({1}) : Tensor{}}}, ctx);
        Tensor bytes = p.var.value;
        if (gathered) encoded.copy_piece(shard.pieces.back(), bytes = ctx.zeros({format.fp8.bytes(p)}, DType::u8), ctx);
        const Fp8Matrix got = format.fp8.matrix(p, bytes);
        expect_same_rows(got.values, want.values);
        expect_same_rows(got.scales, want.scales);
      }
}

}  // namespace
}  // namespace ring::test
