// Tensors in host memory that are changed chunk by chunk: every element once, and no order between streams is missing.
#include "core/host_chunks.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/host_tensor.h"
#include "tests/late_stream.h"

namespace ring::test {
namespace {

Tensor numbers(std::int64_t n, float first, const Stream& stream) {
  std::vector<float> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), first);
  return from_host(values, stream, Lifetime::run);
}

std::vector<float> values_of(const Tensor& t) { return {t.data<float>(), t.data<float>() + t.numel()}; }

struct Streams {
  Stream compute, in, out;
};

// Streams that run at once or as late as events allow, in every combination.
std::vector<Streams> all_streams() {
  std::vector<Streams> all;
  const auto stream = [](bool late) { return late ? late_stream() : Stream::cpu(1); };
  for (const int late : {0, 1, 2, 3, 4, 5, 6, 7}) all.push_back({stream(late & 1), stream(late & 2), stream(late & 4)});
  return all;
}

// A pass makes b what a was, and a what the pass brings: what is here matters, and what is left behind.
void expect_passes(const Streams& s, std::int64_t n, std::int64_t chunk_bytes, bool begins) {
  const Stream cpu = Stream::cpu(1);
  const Tensor a = numbers(n, 1, cpu), b = numbers(n, 0.5, cpu);
  HostChunks chunks({a, b}, chunk_bytes, s.compute, s.in, s.out);
  std::vector<Tensor> brings;
  for (int pass = 0; pass < 3; ++pass) {
    brings.push_back(numbers(n, static_cast<float>(1000 * (pass + 2)), cpu));
    if (begins) chunks.begin();
    chunks.change([&](std::int64_t first, std::int64_t count, const std::vector<Tensor>& here) {
      ASSERT_EQ(here[0].numel(), count);
      copy(here[1], here[0], s.compute);
      copy(here[0], brings.back().narrow(0, first, count), s.compute);
    });
  }
  s.compute.synchronize();
  EXPECT_EQ(values_of(a), values_of(brings[2])) << n << " elements";
  EXPECT_EQ(values_of(b), values_of(brings[1])) << n << " elements";
}

TEST(HostChunks, CopiesMayRunAsLateAsEventsAllow) {
  for (const Streams& s : all_streams())
    for (const std::int64_t n : {1, 15, 16, 64, 100, 101, 1000})
      for (const std::int64_t bytes : {8, 16 * 8, 48 * 8, 1 << 20})
        for (const bool begins : {false, true}) expect_passes(s, n, bytes, begins);
}

TEST(HostChunks, EveryElementComesOnce) {
  const Stream cpu = Stream::cpu(1);
  for (const std::int64_t n : {1, 16, 17, 1000}) {
    const Tensor f = numbers(n, 1, cpu), h = Tensor::zeros({n}, DType::bf16, cpu);
    HostChunks chunks({f, h}, 300, cpu);  // 48 elements of 6 bytes
    std::int64_t next = 0;
    chunks.change([&](std::int64_t first, std::int64_t count, const std::vector<Tensor>& here) {
      EXPECT_EQ(first, next);
      EXPECT_EQ(first % HostChunks::kAlign, 0);
      EXPECT_LE(count, 48);
      EXPECT_EQ(here[1].dtype(), DType::bf16);
      EXPECT_NE(here[0].raw(), f.narrow(0, first, count).raw()) << "it did not travel";
      next += count;
    });
    EXPECT_EQ(next, n);
  }
}

// An attempt that ran out of memory behind begin() is made again.
TEST(HostChunks, MayBeginAgain) {
  const Stream cpu = Stream::cpu(1);
  for (const Streams& s : all_streams()) {
    const Tensor a = numbers(100, 1, cpu), new_a = numbers(100, 7, cpu);
    HostChunks chunks({a}, 64, s.compute, s.in, s.out);
    chunks.begin();
    chunks.begin();
    chunks.change([&](std::int64_t first, std::int64_t n, const std::vector<Tensor>& here) {
      copy(here[0], new_a.narrow(0, first, n), s.compute);
    });
    s.compute.synchronize();
    EXPECT_EQ(values_of(a), values_of(new_a));
  }
}

TEST(HostChunks, TakeWhatTheySay) {
  const Stream cpu = Stream::cpu(1);
  for (const std::int64_t n : {0, 1, 100, 1000})
    for (const std::int64_t bytes : {64, 4096, 1 << 20}) {
      const Tensor f = Tensor::zeros({n}, DType::f32, cpu), h = Tensor::zeros({n}, DType::bf16, cpu);
      const std::size_t before = cpu.allocator()->stats().in_use;
      HostChunks chunks({f, h}, bytes, cpu);
      EXPECT_EQ(cpu.allocator()->stats().in_use - before, chunks.device_bytes()) << n << " elements, " << bytes;
      EXPECT_EQ(HostChunks::device_bytes(n, 6, bytes), chunks.device_bytes());
      EXPECT_EQ(chunks.host_bytes(), static_cast<std::size_t>(6 * n));
      chunks.change([&](std::int64_t, std::int64_t count, const auto&) { EXPECT_GT(count, 0); });
    }
  EXPECT_EQ(HostChunks::device_bytes(1 << 20, 8, 1 << 13), std::size_t{3} << 13);
}

TEST(HostChunks, AreOfOneLength) {
  const Stream cpu = Stream::cpu(1);
  EXPECT_THROW(HostChunks({numbers(3, 0, cpu), numbers(4, 0, cpu)}, 64, cpu), Error);
  EXPECT_THROW(HostChunks({}, 64, cpu), Error);
}

TEST(HostTensor, IsZeroAndOfTheHost) {
  const Stream cpu = Stream::cpu(1);
  const std::size_t before = cpu.allocator()->stats().in_use;
  const Tensor t = host_tensor({3, 5}, DType::f32, cpu);
  EXPECT_EQ(values_of(t), std::vector<float>(15, 0.0f));
  EXPECT_EQ(t.device(), Device{});
  EXPECT_EQ(cpu.allocator()->stats().in_use, before) << "taken of the device's memory";
  EXPECT_EQ(host_tensor({0}, DType::f32, cpu).numel(), 0);
}

TEST(HostTensor, SaysWhatWasAskedFor) {
  try {
    host_tensor({std::int64_t{1} << 60}, DType::f32, Stream::cpu(1));
    FAIL() << "there is no such memory";
  } catch (const OutOfMemory& e) {
    EXPECT_NE(e.facts.find("4294967296.00 GiB asked for"), std::string::npos) << e.facts;
  }
}

void expect_copy_in_order(const Stream& stream) {
  const std::int64_t n = std::int64_t{1} << 22;
  const Tensor source = host_tensor({n}, DType::f32, stream), host = host_tensor({n}, DType::f32, stream);
  const Tensor copied = host_tensor({n}, DType::f32, stream), device = Tensor::zeros({n}, DType::f32, stream);
  for (std::int64_t i = 0; i < n; ++i) source.data<float>()[i] = static_cast<float>(i % 1000);
  copy(device, source, stream);
  copy(host, device, stream);
  const std::uint64_t waits = host_waits();
  copy_on_host(copied, host, stream);  // behind the copy from the device
  EXPECT_EQ(host_waits(), waits);
  stream.synchronize();
  EXPECT_EQ(values_of(copied), values_of(source));
}

TEST(HostTensor, IsCopiedInTheOrderOfAStream) { expect_copy_in_order(Stream::cpu(1)); }

TEST(GpuHostTensor, IsCopiedInTheOrderOfAStream) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  expect_copy_in_order(Stream::create({Backend::cuda, 0}));
}

}  // namespace
}  // namespace ring::test
