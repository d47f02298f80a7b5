#include "core/tensor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "core/unavailable.h"

namespace ring {
namespace {

class TensorTest : public testing::Test {
 protected:
  Tensor iota(const Shape& shape) const {
    Tensor t = Tensor::empty(shape, DType::i32, stream);
    std::iota(t.data<std::int32_t>(), t.data<std::int32_t>() + t.numel(), 0);
    return t;
  }
  static std::string message(const std::function<void()>& fn) {
    try {
      fn();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  Stream stream = Stream::cpu(1);
};

std::int32_t at(const Tensor& t, std::initializer_list<std::int64_t> index) {
  std::int64_t offset = 0;
  int dim = 0;
  for (std::int64_t i : index) offset += i * t.stride(dim++);
  return t.data<std::int32_t>()[offset];
}

TEST(Shape, CountsComparesAndPrints) {
  EXPECT_EQ(Shape({2, 3, 4}).numel(), 24);
  EXPECT_EQ(Shape({}).numel(), 1);
  EXPECT_EQ(Shape({5, 0}).numel(), 0);
  EXPECT_EQ(Shape({2, 3}), Shape({2, 3}));
  EXPECT_FALSE(Shape({2, 3}) == Shape({2, 3, 1}));
  EXPECT_FALSE(Shape({2, 3}) == Shape({3, 2}));
  EXPECT_EQ(str(Shape({2, 3})), "[2,3]");
  EXPECT_EQ(str(Shape({})), "[]");
}

TEST(Shape, HoldsSixDimsAndNoMore) {
  EXPECT_EQ(Shape({1, 2, 3, 4, 5, 6}).size(), 6);
  EXPECT_THROW(Shape({1, 2, 3, 4, 5, 6, 7}), Error);
}

TEST(DType, HasNamesAndSizes) {
  for (DType t : {DType::f32, DType::bf16, DType::i32, DType::u8}) EXPECT_EQ(parse_dtype(to_string(t)), t);
  EXPECT_EQ(size_of(DType::f32), sizeof(float));
  EXPECT_EQ(size_of(DType::bf16), sizeof(bf16));
  EXPECT_EQ(size_of(DType::i32), 4u);
  EXPECT_EQ(size_of(DType::u8), 1u);
}

TEST(DType, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  for (const char* bad : {"", "F32", "float", "f32 "}) try {
      parse_dtype(bad);
      ADD_FAILURE() << "accepted '" << bad << "'";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("f32, bf16, i32 or u8"), std::string::npos);
    }
}

TEST_F(TensorTest, EmptyIsContiguousAndAligned) {
  const Tensor t = Tensor::empty({2, 3, 4}, DType::bf16, stream);
  EXPECT_TRUE(t.defined() && t.is_contiguous() && t.unique());
  EXPECT_EQ(t.bytes(), 48u);
  EXPECT_EQ(t.strides(), Shape({12, 4, 1}));
  EXPECT_EQ(t.dim(-1), 4);
  EXPECT_EQ(t.stride(-2), 4);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.raw()) % 64, 0u);
  EXPECT_EQ(describe(t), "bf16[2,3,4] on cpu:0");
  EXPECT_EQ(describe(Tensor{}), "undefined tensor");
}

TEST_F(TensorTest, ZerosClearsUsedMemory) {
  { Tensor dirty = iota({1000}); }
  const Tensor t = Tensor::zeros({1000}, DType::i32, stream);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(t.data<std::int32_t>()[i], 0);
}

TEST_F(TensorTest, CopiesShareMemory) {
  Tensor a = iota({4});
  Tensor b = a;
  EXPECT_FALSE(a.unique());
  b.data<std::int32_t>()[2] = 77;
  EXPECT_EQ(a.data<std::int32_t>()[2], 77);
}

TEST_F(TensorTest, TensorsMayHaveNoBytes) {
  const Tensor t = Tensor::zeros({0, 5}, DType::f32, stream);
  EXPECT_EQ(t.bytes(), 0u);
  copy(t, Tensor::empty({0, 5}, DType::f32, stream), stream);
  EXPECT_EQ(t.view({5, -1}).shape(), Shape({5, 0}));
}

TEST_F(TensorTest, ViewKeepsTheBytes) {
  const Tensor t = iota({2, 6});
  const Tensor v = t.view({3, -1});
  EXPECT_EQ(v.shape(), Shape({3, 4}));
  EXPECT_EQ(v.raw(), t.raw());
  EXPECT_EQ(at(v, {2, 3}), 11);
}

TEST_F(TensorTest, ViewRefusesAShapeThatDoesNotFit) {
  const Tensor t = iota({2, 6});
  EXPECT_NE(message([&] { t.view({5, 2}); }).find("view of [2,6] as [5,2]"), std::string::npos);
  EXPECT_NE(message([&] { t.view({5, -1}); }), "");
  EXPECT_NE(message([&] { t.view({-1, -1}); }).find("more than one -1"), std::string::npos);
  EXPECT_NE(message([&] { t.view({-2, -6}); }), "");
  EXPECT_NE(message([&] { t.narrow(1, 0, 3).view({6}); }).find("contiguous"), std::string::npos);
}

TEST_F(TensorTest, NarrowSelectsRowsAndColumns) {
  const Tensor t = iota({4, 5});
  const Tensor rows = t.narrow(0, 1, 2);
  EXPECT_TRUE(rows.is_contiguous());
  EXPECT_EQ(at(rows, {0, 0}), 5);
  const Tensor columns = t.narrow(-1, 3, 2);
  EXPECT_FALSE(columns.is_contiguous());
  EXPECT_EQ(columns.shape(), Shape({4, 2}));
  EXPECT_EQ(at(columns, {2, 1}), 14);
  EXPECT_EQ(at(columns.narrow(0, 3, 1), {0, 0}), 18);
  EXPECT_EQ(t.narrow(0, 4, 0).numel(), 0);
}

TEST_F(TensorTest, NarrowRefusesRangesOutside) {
  const Tensor t = iota({4, 5});
  EXPECT_NE(message([&] { t.narrow(0, 3, 2); }).find("narrow of [4,5] at dim 0 to [3, 5)"), std::string::npos);
  EXPECT_NE(message([&] { t.narrow(0, -1, 2); }), "");
  EXPECT_NE(message([&] { t.narrow(0, 1, -1); }), "");
  EXPECT_NE(message([&] { t.narrow(2, 0, 1); }), "");
  EXPECT_NE(message([&] { t.narrow(-3, 0, 1); }), "");
}

TEST_F(TensorTest, SplitDimCutsHeadsOutOfColumns) {
  const Tensor t = iota({3, 8});
  const Tensor heads = t.narrow(1, 2, 6).split_dim(1, 2);  // 3 heads of width 2, from columns 2..8
  EXPECT_EQ(heads.shape(), Shape({3, 3, 2}));
  EXPECT_EQ(at(heads, {1, 2, 1}), 8 + 2 + 5);
  EXPECT_EQ(t.split_dim(-1, 4).shape(), Shape({3, 2, 4}));
  EXPECT_EQ(t.split_dim(0, 1).shape(), Shape({3, 1, 8}));
}

TEST_F(TensorTest, SplitDimRefusesRemaindersAndUnknownDims) {
  const Tensor t = iota({3, 8});
  EXPECT_NE(message([&] { t.split_dim(1, 3); }).find("is not divisible by 3"), std::string::npos);
  EXPECT_NE(message([&] { t.split_dim(1, 0); }), "");
  EXPECT_NE(message([&] { t.split_dim(2, 1); }), "");
  EXPECT_NE(message([&] { t.split_dim(-3, 1); }), "");
}

TEST_F(TensorTest, DataChecksTheType) {
  EXPECT_NE(message([&] { iota({2}).data<float>(); }).find("i32 was read as f32"), std::string::npos);
  EXPECT_NE(message([&] { Tensor{}.data<float>(); }).find("undefined"), std::string::npos);
}

TEST_F(TensorTest, ImpossibleShapesAreErrors) {
  EXPECT_NE(message([&] {
              Tensor::empty({2, -1}, DType::f32, stream);
            }).find("negative dim in shape [2,-1]"),
            std::string::npos);
  const std::int64_t big = std::int64_t{1} << 40;  // big * big overflows to 0
  EXPECT_NE(message([&] {
              Tensor::empty({big, big}, DType::u8, stream);
            }).find(str(Shape{big, big})),
            std::string::npos);
  EXPECT_NE(message([&] { Tensor::empty({big, big, 0}, DType::u8, stream); }), "");
  EXPECT_NE(message([&] { Tensor::empty({std::int64_t{1} << 61, 2}, DType::f32, stream); }), "");  // bytes overflow
}

TEST_F(TensorTest, WrapNeedsEnoughBytes) {
  std::vector<std::int32_t> bytes(6);
  auto storage = std::make_shared<Storage>(bytes.data(), 24, Device{}, nullptr);
  EXPECT_EQ(Tensor::wrap(storage, {2, 3}, DType::i32).data<std::int32_t>(), bytes.data());
  const std::string few = message([&] { Tensor::wrap(storage, {7}, DType::i32); });
  EXPECT_NE(few.find("needs 28 bytes"), std::string::npos) << few;
  EXPECT_NE(few.find("has 24"), std::string::npos) << few;
  EXPECT_NE(message([&] { Tensor::wrap(storage, {-2}, DType::i32); }), "");
}

TEST_F(TensorTest, BytesHaveADifferentType) {
  std::vector<float> numbers = {1, 2, 3, 4, 5, 6};
  const Tensor t = Tensor::wrap(std::make_shared<Storage>(numbers.data(), 24, Device{}, nullptr), {3, 2}, DType::f32);
  const Tensor bytes = t.narrow(0, 1, 2).view_as(DType::u8);
  EXPECT_EQ(bytes.shape(), (Shape{2, 8}));
  EXPECT_EQ(bytes.raw(), t.raw() + 8);
  EXPECT_EQ(bytes.view({16}).narrow(0, 4, 8).view_as(DType::f32).data<float>()[1], 5);
  EXPECT_THROW(bytes.view({16}).narrow(0, 2, 8).view_as(DType::f32), Error);  // starts within a number
  EXPECT_THROW(bytes.view({16}).narrow(0, 0, 6).view_as(DType::f32), Error);  // ends within a number
  EXPECT_THROW(t.narrow(1, 0, 1).view_as(DType::u8), Error);                  // not contiguous
}

TEST_F(TensorTest, ForeignMemoryLivesAsLongAsATensorUsesIt) {
  auto owner = std::make_shared<std::vector<std::int32_t>>(4, 9);
  const std::weak_ptr<std::vector<std::int32_t>> watch = owner;
  std::int32_t* data = owner->data();
  Tensor t =
      Tensor::wrap(std::make_shared<Storage>(data, 16, Device{}, std::move(owner)), {4}, DType::i32).narrow(0, 1, 2);
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(t.data<std::int32_t>()[0], 9);
  t = {};
  EXPECT_TRUE(watch.expired());
}

TEST_F(TensorTest, StorageReturnsItsBytes) {
  { const Tensor t = iota({256}); }
  EXPECT_EQ(stream.allocator()->stats().in_use, 0u);
  const Tensor kept = [this] { return iota({256}).narrow(0, 0, 1); }();
  EXPECT_EQ(stream.allocator()->stats().in_use, 1024u);  // a view keeps the whole storage
}

TEST_F(TensorTest, TensorsOutliveTheirStream) {
  Tensor t;
  {
    const Stream own = Stream::cpu(2);
    t = Tensor::zeros({100}, DType::f32, own);
  }
  EXPECT_EQ(t.data<float>()[99], 0.0f);
}

TEST_F(TensorTest, CopyMovesBytesAndChecksBothSides) {
  const Tensor a = iota({2, 3}), b = Tensor::zeros({2, 3}, DType::i32, stream);
  copy(b, a, stream);
  EXPECT_EQ(std::memcmp(a.raw(), b.raw(), a.bytes()), 0);
  const std::string shapes = message([&] { copy(b, iota({3, 2}), stream); });
  EXPECT_NE(shapes.find("copy of i32[3,2] on cpu:0 into i32[2,3] on cpu:0"), std::string::npos) << shapes;
  EXPECT_NE(message([&] { copy(Tensor::zeros({2, 3}, DType::f32, stream), a, stream); }), "");
  EXPECT_NE(message([&] { copy(b.narrow(1, 0, 2), a.narrow(1, 0, 2), stream); }).find("contiguous"), std::string::npos);
  EXPECT_NE(message([&] { fill_zero(a.narrow(1, 0, 2), stream); }).find("contiguous"), std::string::npos);
}

TEST(Stream, CpuWorkIsDoneOnceQueued) {
  const Stream s = Stream::cpu(2);
  EXPECT_EQ(s.device(), Device{});
  EXPECT_EQ(s.pool().size(), 2);
  const Event e = s.record();
  EXPECT_TRUE(e.done());
  e.synchronize();
  s.wait(e);
  EXPECT_TRUE(Event{}.done());
}

TEST(Stream, AMissingBackendIsAnErrorThatSaysSo) {
  EXPECT_TRUE(backend_available(Backend::cpu));
  EXPECT_EQ(Stream::create({}, 3).pool().size(), 3);
  if (backend_available(Backend::cuda)) GTEST_SKIP() << "this build has CUDA";
  try {
    Stream::create({Backend::cuda, 0});
    ADD_FAILURE();
  } catch (const Unavailable& e) {
    EXPECT_EQ(e.resource, Resource::gpu);
    EXPECT_NE(std::string(e.what()).find("device 'cuda': "), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace ring
