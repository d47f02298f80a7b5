#include "core/fake.h"

#include <gtest/gtest.h>

namespace ring {
namespace {

TEST(FakeStreams, CountMemoryWithoutAllocatingIt) {
  const FakeMode fake;
  const Stream stream = Stream::create({Backend::cuda, 3});
  EXPECT_EQ(stream.device(), (Device{Backend::cuda, 3}));
  EXPECT_FALSE(stream.impl().computes());
  const std::int64_t terabyte = std::int64_t{1} << 40;
  {
    const Tensor a = Tensor::empty({terabyte}, DType::bf16, stream), b = Tensor::zeros({terabyte}, DType::u8, stream);
    EXPECT_FALSE(has_bytes(a));
    EXPECT_NE(a.raw(), b.raw());
    EXPECT_EQ(stream.allocator()->stats().in_use, 3 * static_cast<std::size_t>(terabyte));
    copy(b.narrow(0, 0, 8), Tensor::empty({8}, DType::u8, stream), stream);
  }
  EXPECT_EQ(stream.allocator()->stats().in_use, 0u);
  EXPECT_EQ(stream.allocator()->stats().peak, 3 * static_cast<std::size_t>(terabyte) + 8);
}

TEST(FakeStreams, EndWithTheirMode) {
  {
    const FakeMode fake;
    EXPECT_TRUE(FakeMode::on());
    EXPECT_EQ(Stream::create({Backend::cpu, 0}, 5).impl().threads(), 5);
    EXPECT_TRUE(Stream::cpu(1).impl().computes()) << "host memory stays real";
  }
  EXPECT_FALSE(FakeMode::on());
  const Stream stream = Stream::create({Backend::cpu, 0}, 1);
  EXPECT_TRUE(stream.impl().computes());
  EXPECT_TRUE(has_bytes(Tensor::zeros({4}, DType::f32, stream)));
}

}  // namespace
}  // namespace ring
