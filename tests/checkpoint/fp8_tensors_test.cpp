// States in FP8 in checkpoints: converted from and to floats, and sharded like their parameters.
#include "checkpoint/fp8_tensors.h"

#include <cmath>

#include "tests/checkpoint/fixture.h"

namespace ring::test {
namespace {

constexpr const char* kCodesName = "optimizer.v.w";

// Numbers of many sizes, all positive.
float positive_number(std::int64_t i) {
  return std::exp2(static_cast<float>(i * 37 % 23) - 30.0f) * (1 + 0.01f * static_cast<float>(i % 97));
}

Tensor positive_numbers(const Shape& shape) {
  Tensor t = Tensor::empty(shape, DType::f32, stream());
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] = positive_number(i);
  return t;
}

// Codes of a whole tensor or of a region of it, with their scales.
struct CodedTensor {
  StateTensor codes;
  Tensor scales;
  CodedTensor(const Shape& whole, const Shape& start, const Shape& size)
      : codes{kCodesName, whole, start, Tensor::zeros(size, DType::u8, stream())},
        scales(Tensor::zeros({moment_blocks(size.numel())}, DType::u8, stream())) {}
  explicit CodedTensor(const Shape& whole) : CodedTensor(whole, zeros(whole), whole) {}
  static Shape zeros(Shape s) {
    for (int i = 0; i < s.size(); ++i) s[i] = 0;
    return s;
  }
  void add_to(State& state) const {
    state.add(codes);
    state.add(scales_of(codes, Fp8Moment::e4m4, scales));
  }
  float value(std::int64_t i) const {
    return from_fp8_moment<Fp8Moment::e4m4>(codes.local.data<std::uint8_t>()[i],
                                            scales.data<std::uint8_t>()[i / kMomentBlock]);
  }
};

fs::path saved_with(const TempFolder& folder, std::int64_t step, const std::function<void(State&)>& add) {
  State state;
  add(state);
  return write_checkpoint(folder.path(), step, state.snapshot(stream()), "{}");
}

const std::vector<Shape>& coded_shapes() {
  static const std::vector<Shape> all = {{7, 32}, {4, 20}, {37}, {3, 16}, {5}};
  return all;
}

TEST(Fp8Tensors, NamesOfScalesLeadBackToTheirCodes) {
  for (const Fp8Moment form : {Fp8Moment::e4m3, Fp8Moment::e4m4}) {
    const auto owner = owner_of_scales(scales_name(kCodesName, form));
    ASSERT_TRUE(owner);
    EXPECT_EQ(owner->codes, kCodesName);
    EXPECT_EQ(owner->form, form);
  }
  EXPECT_EQ(scales_name("optimizer.m.w", Fp8Moment::e4m3), "optimizer.m.w:e4m3_scales");
  EXPECT_FALSE(owner_of_scales(kCodesName));
}

TEST(Fp8Tensors, RegionsAreMadeOfBlocks) {
  EXPECT_TRUE(is_made_of_blocks({8, 32}, {3, 16}, {2, 16}));
  EXPECT_FALSE(is_made_of_blocks({8, 32}, {3, 8}, {2, 16}));
  EXPECT_FALSE(is_made_of_blocks({8, 32}, {3, 16}, {2, 8}));
  EXPECT_TRUE(is_made_of_blocks({9, 20}, {4, 0}, {4, 20}));
  EXPECT_TRUE(is_made_of_blocks({9, 20}, {8, 0}, {1, 20})) << "the last row";
  EXPECT_FALSE(is_made_of_blocks({9, 20}, {0, 0}, {3, 20})) << "its last block continues";
  EXPECT_FALSE(is_made_of_blocks({9, 20}, {3, 0}, {4, 20})) << "its first block began before";
  EXPECT_FALSE(is_made_of_blocks({9, 20}, {0, 0}, {9, 10}));
  EXPECT_TRUE(is_made_of_blocks({37}, {32}, {5}));
  EXPECT_FALSE(is_made_of_blocks({37}, {0}, {5}));
  EXPECT_TRUE(is_made_of_blocks({37}, {5}, {0})) << "nothing";
}

// Floats become the nearest codes, in blocks of the local tensor, and codes become exactly their values.
TEST(Fp8Tensors, ConvertFromAndToFloats) {
  for (const Shape& shape : coded_shapes()) {
    const TempFolder folder;
    const Tensor floats = positive_numbers(shape);
    const CodedTensor coded(shape), again(shape);
    {
      State state;
      coded.add_to(state);
      load_state(saved_with(folder, 1, [&](State& s) { s.add(kCodesName, floats); }), state, stream());
    }
    for (std::int64_t i = 0; i < floats.numel(); ++i) {
      const float x = floats.data<float>()[i], unit = std::ldexp(1.0f, coded.scales.data<std::uint8_t>()[i / 16] - 127);
      ASSERT_NEAR(coded.value(i), x, std::max(x / 32, unit)) << i;
    }
    const fs::path path = saved_with(folder, 2, [&](State& s) { coded.add_to(s); });
    for (const DType type : {DType::f32, DType::bf16}) {
      const Tensor back = Tensor::empty(shape, type, stream());
      State state;
      state.add(kCodesName, back);
      load_state(path, state, stream());
      for (std::int64_t i = 0; i < back.numel(); ++i)
        ASSERT_EQ(type == DType::f32 ? back.data<float>()[i] : to_float(back.data<bf16>()[i]), coded.value(i)) << i;
      const fs::path as_floats = saved_with(folder, 3, [&](State& s) { s.add(kCodesName, back); });
      State last;
      again.add_to(last);
      load_state(as_floats, last, stream());
      for (std::int64_t i = 0; i < back.numel(); ++i) ASSERT_EQ(again.value(i), coded.value(i)) << "there and back";
      fs::remove_all(as_floats);
    }
  }
}

// Ranks with other parts read their codes and scales, or the values of these.
TEST(Fp8Tensors, AreResharded) {
  const TempFolder folder;
  const Shape shape = {8, 64};
  const CodedTensor coded(shape);
  for (std::size_t i = 0; i < coded.codes.local.bytes(); ++i)
    coded.codes.local.raw()[i] = static_cast<std::byte>(i % 251);
  for (std::size_t i = 0; i < coded.scales.bytes(); ++i) coded.scales.raw()[i] = static_cast<std::byte>(100 + i);
  const fs::path path = saved_with(folder, 1, [&](State& s) { coded.add_to(s); });
  for (const auto& [start, size] : {std::pair<Shape, Shape>{{2, 0}, {3, 64}}, {{0, 16}, {8, 32}}, {{5, 48}, {2, 16}}}) {
    const CodedTensor part(shape, start, size);
    const StateTensor floats{kCodesName, shape, start, Tensor::empty(size, DType::f32, stream())};
    State codes, values;
    part.add_to(codes);
    values.add(floats);
    load_state(path, codes, stream());
    load_state(path, values, stream());
    for (std::int64_t r = 0; r < size[0]; ++r)
      for (std::int64_t c = 0; c < size[1]; ++c) {
        const float want = coded.value((start[0] + r) * 64 + start[1] + c);
        ASSERT_EQ(part.value(r * size[1] + c), want) << start << " row " << r << " column " << c;
        ASSERT_EQ(floats.local.data<float>()[r * size[1] + c], want) << start << " row " << r << " column " << c;
      }
  }
}

TEST(Fp8Tensors, ScalesMustBeThere) {
  const TempFolder folder;
  const CodedTensor coded({4, 32}), other({4, 32});
  const fs::path bare = saved_with(folder, 1, [&](State& s) { s.add(coded.codes); });
  State state, floats;
  other.add_to(state);
  const Tensor back = Tensor::zeros({4, 32}, DType::f32, stream());
  floats.add(kCodesName, back);
  EXPECT_TRUE(contains(error_of([&] { load_state(bare, state, stream()); }), "optimizer.v.w:e4m4_scales"));
  EXPECT_TRUE(contains(error_of([&] { load_state(bare, floats, stream()); }), "optimizer.v.w: u8[4,32]"));
  const fs::path short_of_scales = saved_with(folder, 2, [&](State& s) {
    s.add(coded.codes);
    s.add(scales_name(kCodesName, Fp8Moment::e4m4), Tensor::zeros({4, 1}, DType::u8, stream()));
  });
  EXPECT_TRUE(contains(error_of([&] { load_state(short_of_scales, floats, stream()); }), "optimizer.v.w: u8[4,32]"));
}

}  // namespace
}  // namespace ring::test
