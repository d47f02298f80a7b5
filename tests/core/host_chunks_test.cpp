// Tensors in host memory that are changed chunk by chunk: every element is visited once, and all dependencies between
// streams are kept.
#include "core/host_chunks.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <thread>

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

// Each pass copies a to b and new values to a, so that the test sees both what a pass reads and what it writes.
void expect_passes(const Streams& s, std::int64_t n, HostChunks::Sizes bytes, bool begins) {
  const Stream cpu = Stream::cpu(1);
  const Tensor a = numbers(n, 1, cpu), b = numbers(n, 0.5, cpu);
  HostChunks chunks({a, b}, bytes, s.compute, s.in, s.out);
  std::vector<Tensor> brings;
  for (int pass = 0; pass < 3; ++pass) {
    brings.push_back(numbers(n, static_cast<float>(1000 * (pass + 2)), cpu));
    if (begins) chunks.prefetch();
    chunks.for_each_chunk([&](std::int64_t first, std::int64_t count, const std::vector<Tensor>& here) {
      ASSERT_EQ(here[0].numel(), count);
      copy(here[1], here[0], s.compute);
      copy(here[0], brings.back().narrow(0, first, count), s.compute);
    });
  }
  chunks.wait_for_copies(s.compute);
  s.compute.synchronize();
  EXPECT_EQ(values_of(a), values_of(brings[2])) << n << " elements";
  EXPECT_EQ(values_of(b), values_of(brings[1])) << n << " elements";
}

// Gives new values to `a`, in chunks of 16 elements. `ring`: chunks that fit into the ring.
struct Pass {
  Pass(const Streams& streams, std::int64_t ring)
      : s(streams), chunks({a}, {.chunk = 64, .ring = 64 * ring}, s.compute, s.in, s.out) {}
  void run() {
    chunks.prefetch();
    chunks.for_each_chunk([&](std::int64_t first, std::int64_t n, const std::vector<Tensor>& here) {
      copy(here[0], brings.narrow(0, first, n), s.compute);
    });
  }
  const Tensor a = numbers(100, 1, Stream::cpu(1)), brings = numbers(100, 500, Stream::cpu(1));
  const Streams s;
  HostChunks chunks;
};

TEST(HostChunks, CopiesMayRunAsLateAsEventsAllow) {
  for (const Streams& s : all_streams())
    for (const std::int64_t n : {1, 15, 16, 64, 100, 101, 1000})
      for (const std::int64_t chunk : {8, 16 * 8, 48 * 8, 1 << 20})
        for (const std::int64_t ring : {0, 4, 5, 1000})
          for (const bool begins : {false, true})
            expect_passes(s, n, {chunk, ring * std::max<std::int64_t>(chunk, 128)}, begins);
}

TEST(HostChunks, TheLastChunksAreCopiedBackWhileTheStreamContinues) {
  for (const std::int64_t ring : {3, 5, 7}) {
    Pass p({Stream::cpu(1), Stream::cpu(1), late_stream()}, ring);
    p.run();
    p.s.compute.synchronize();
    const std::int64_t left = std::max<std::int64_t>(0, 7 - ring) * 16;  // their slots in the ring were reused
    for (std::int64_t i = 0; i < 100; ++i)
      EXPECT_EQ(p.a.data<float>()[i], static_cast<float>(i < left ? 500 + i : 1 + i)) << "ring of " << ring;
    const Stream other = Stream::cpu(1);
    p.chunks.wait_for_copies(other);
    EXPECT_EQ(values_of(p.a), values_of(p.brings));
  }
}

// The write stands for a load of a checkpoint.
TEST(HostChunks, AWriteAfterAPassIsSeenByTheNextPass) {
  const Stream cpu = Stream::cpu(1);
  for (const Streams& s : all_streams())
    for (const std::int64_t ring : {3, 5, 100}) {
      const Tensor a = numbers(100, 1, cpu), loaded = numbers(100, 1000, cpu), seen = numbers(100, 0, cpu);
      HostChunks chunks({a}, {.chunk = 64, .ring = 64 * ring}, s.compute, s.in, s.out);
      const auto pass = [&] {
        chunks.prefetch();
        chunks.for_each_chunk([&](std::int64_t first, std::int64_t n, const std::vector<Tensor>& here) {
          copy(seen.narrow(0, first, n), here[0], s.compute);
        });
      };
      pass();
      chunks.wait_for_copies(s.compute);
      copy(a, loaded, s.compute);
      pass();
      s.compute.synchronize();
      EXPECT_EQ(values_of(seen), values_of(loaded)) << "ring of " << ring;
      chunks.wait_for_copies(s.compute);
      s.compute.synchronize();
      EXPECT_EQ(values_of(a), values_of(loaded)) << "ring of " << ring;
    }
}

TEST(HostChunks, CopiesEndBeforeTheirMemoryIsFreed) {
  std::optional<Pass> p;
  p.emplace(Streams{Stream::cpu(1), Stream::cpu(1), late_stream()}, 5);
  p->run();
  const Tensor a = p->a, brings = p->brings;
  p.reset();
  EXPECT_EQ(values_of(a), values_of(brings));
}

class DoneStream final : public LateStream {
 public:
  void synchronize() override { done = true, LateStream::synchronize(); }
  bool done = false;
};

TEST(HostChunks, UnusedPrefetchesEndBeforeTheirMemoryIsFreed) {
  const auto in = std::make_shared<DoneStream>();
  std::optional<Pass> p;
  p.emplace(Streams{Stream::cpu(1), Stream(in), Stream::cpu(1)}, 5);
  p->chunks.prefetch();
  p.reset();
  EXPECT_TRUE(in->done);
}

// A stream that records, like a CUDA stream during graph capture.
class RecordingStream final : public LateStream {
 public:
  RecordingStream() { allocator = Stream::cpu(1).allocator(); }
  bool recording() const override { return true; }
};

// Counts the defined events that it was made to wait for.
class CountingStream final : public LateStream {
 public:
  void wait(const Event& e) override {
    waits += e.defined();
    LateStream::wait(e);
  }
  int waits = 0;
};

TEST(HostChunks, ARecordedPassEndsWhenAllChunksAreCopiedBack) {
  const auto counting = std::make_shared<CountingStream>();
  Pass p({Stream(std::make_shared<RecordingStream>()), Stream(counting), late_stream()}, 100);
  for (int pass = 0; pass < 2; ++pass) {
    counting->waits = 0;
    p.chunks.prefetch();
    EXPECT_EQ(counting->waits, 1) << "for more than the recording's own stream";
    p.run();
    const Stream other = Stream::cpu(1);
    p.chunks.wait_for_copies(other);
    EXPECT_EQ(values_of(p.a), values_of(p.brings));
  }
}

TEST(HostChunks, EarlierCopiesAreJoinedBeforeARecording) {
  const auto counting = std::make_shared<CountingStream>();
  Pass p({Stream::cpu(1), Stream(counting), late_stream()}, 100);
  p.run();
  p.chunks.join_copies();
  EXPECT_EQ(values_of(p.a), values_of(p.brings));
  counting->waits = 0;
  p.chunks.prefetch();
  EXPECT_EQ(counting->waits, 0) << "for copies that have joined";
}

TEST(HostChunks, EveryElementIsVisitedOnce) {
  const Stream cpu = Stream::cpu(1);
  for (const std::int64_t n : {1, 16, 17, 1000}) {
    const Tensor f = numbers(n, 1, cpu), h = Tensor::zeros({n}, DType::bf16, cpu);
    HostChunks chunks({f, h}, {.chunk = 300}, cpu);  // 48 elements of 6 bytes each
    std::int64_t next = 0;
    chunks.for_each_chunk([&](std::int64_t first, std::int64_t count, const std::vector<Tensor>& here) {
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

// Tensors with gaps between them are visited as one, and chunks end only at the allowed ends.
TEST(HostChunks, ChunksOfSeveralPiecesEndAtAllowedEnds) {
  const Stream cpu = Stream::cpu(1);
  const HostChunks::Ends ends = {48, 64, 176, 208};
  for (const std::int64_t bytes : {64, 256, 300, 4096}) {
    const Tensor a = numbers(60, 0, cpu), b = numbers(128, 100, cpu), whole = numbers(208, 500, cpu);
    HostChunks chunks({{{0, a}, {64, b}}, {{0, whole}}}, ends, 208, {.chunk = bytes}, cpu);
    EXPECT_EQ(chunks.device_bytes(), HostChunks::device_bytes(208, 16 * 8, {.chunk = bytes}, ends));
    EXPECT_EQ(chunks.host_bytes(), std::size_t{4} * (60 + 128 + 208));
    std::int64_t next = 0;
    chunks.for_each_chunk([&](std::int64_t first, std::int64_t n, const std::vector<Tensor>& here) {
      EXPECT_EQ(first, next);
      next = first + n;
      EXPECT_TRUE(std::ranges::count(ends, next)) << "ends at " << next;
      for (const Tensor& t : here)
        for (std::int64_t i = 0; i < n; ++i) t.data<float>()[i] += 1;
    });
    EXPECT_EQ(next, 208);
    chunks.wait_for_copies(cpu);
    EXPECT_EQ(values_of(a), values_of(numbers(60, 1, cpu)));
    EXPECT_EQ(values_of(b), values_of(numbers(128, 101, cpu)));
    EXPECT_EQ(values_of(whole), values_of(numbers(208, 501, cpu)));
  }
}

// A tensor with one value per block travels with the blocks of its chunk.
TEST(HostChunks, ValuesMayBelongToBlocks) {
  const Stream cpu = Stream::cpu(1);
  for (const std::int64_t bytes : {1, 200, 700, 4096}) {
    const Tensor codes = Tensor::zeros({160}, DType::u8, cpu), scales = Tensor::zeros({10}, DType::u8, cpu);
    HostChunks chunks({{{0, codes}}, {{.host = scales, .per_block = true}}}, {}, 160, {.chunk = bytes}, cpu);
    EXPECT_EQ(chunks.device_bytes(), HostChunks::device_bytes(160, 17, {.chunk = bytes}));
    EXPECT_EQ(chunks.host_bytes(), 170u);
    chunks.for_each_chunk([&](std::int64_t first, std::int64_t n, const std::vector<Tensor>& here) {
      ASSERT_EQ(n % HostChunks::kBlock, 0);
      ASSERT_EQ(here[0].numel(), n);
      ASSERT_EQ(here[1].numel(), n / HostChunks::kBlock);
      for (std::int64_t i = 0; i < n; ++i) here[0].data<std::uint8_t>()[i] = static_cast<std::uint8_t>(first + i);
      for (std::int64_t i = 0; i < n / HostChunks::kBlock; ++i)
        here[1].data<std::uint8_t>()[i] = static_cast<std::uint8_t>(100 + first / HostChunks::kBlock + i);
    });
    chunks.wait_for_copies(cpu);
    for (int i = 0; i < 160; ++i) ASSERT_EQ(codes.data<std::uint8_t>()[i], i);
    for (int i = 0; i < 10; ++i) ASSERT_EQ(scales.data<std::uint8_t>()[i], 100 + i);
  }
}

// A pass sees the values that the previous pass wrote, however many chunks are fetched before it and however late
// copies run.
TEST(HostChunks, ChunksMayBeFetchedOneByOne) {
  for (const Streams& s : all_streams())
    for (const int fetched : {0, 1, 3, 20}) {
      const Stream cpu = Stream::cpu(1);
      const Tensor a = numbers(100, 1, cpu), b = numbers(100, 500, cpu);
      HostChunks chunks({a, b}, {.chunk = 128, .ring = 5 * 128}, s.compute, s.in, s.out);
      for (int pass = 0; pass < 3; ++pass) {
        chunks.prefetch_first();
        for (int i = 0; i < fetched; ++i) chunks.prefetch_next();
        chunks.for_each_chunk([&](std::int64_t, std::int64_t count, const std::vector<Tensor>& here) {
          const Tensor old = Tensor::empty({count}, DType::f32, cpu, Lifetime::run);
          copy(old, here[0], s.compute);
          copy(here[0], here[1], s.compute);
          copy(here[1], old, s.compute);
        });
      }
      chunks.wait_for_copies(s.compute);
      s.compute.synchronize();
      EXPECT_EQ(a.data<float>()[99], 599) << fetched;
      EXPECT_EQ(b.data<float>()[99], 100) << fetched;
    }
}

// If a step runs out of memory after prefetch(), it is repeated, so prefetch() may be called twice.
TEST(HostChunks, PrefetchMayBeRepeated) {
  const Stream cpu = Stream::cpu(1);
  for (const Streams& s : all_streams()) {
    const Tensor a = numbers(100, 1, cpu), new_a = numbers(100, 7, cpu);
    HostChunks chunks({a}, {.chunk = 64}, s.compute, s.in, s.out);
    chunks.prefetch();
    chunks.prefetch();
    chunks.for_each_chunk([&](std::int64_t first, std::int64_t n, const std::vector<Tensor>& here) {
      copy(here[0], new_a.narrow(0, first, n), s.compute);
    });
    chunks.wait_for_copies(s.compute);
    s.compute.synchronize();
    EXPECT_EQ(values_of(a), values_of(new_a));
  }
}

TEST(HostChunks, UseTheMemoryThatTheyReport) {
  const Stream cpu = Stream::cpu(1);
  for (const std::int64_t n : {0, 1, 100, 1000})
    for (const HostChunks::Sizes bytes : {HostChunks::Sizes{64}, {64, 500}, {64, 1 << 20}, {4096, -1}, {1 << 20}}) {
      const Tensor f = Tensor::zeros({n}, DType::f32, cpu), h = Tensor::zeros({n}, DType::bf16, cpu);
      const std::size_t before = cpu.allocator()->stats().in_use;
      HostChunks chunks({f, h}, bytes, cpu);
      EXPECT_EQ(cpu.allocator()->stats().in_use - before, chunks.device_bytes()) << n << " elements, " << bytes.ring;
      EXPECT_EQ(HostChunks::device_bytes(n, 16 * 6, bytes), chunks.device_bytes());
      EXPECT_EQ(chunks.host_bytes(), static_cast<std::size_t>(6 * n));
      chunks.for_each_chunk([&](std::int64_t, std::int64_t count, const auto&) { EXPECT_GT(count, 0); });
    }
  EXPECT_EQ(HostChunks::device_bytes(1 << 20, 16 * 8, {1 << 13}), std::size_t{3} << 13);
  EXPECT_EQ(HostChunks::device_bytes(1 << 20, 16 * 8, {1 << 13, (5 << 13) + 100}),
            std::size_t{5} << 13);                                                                 // whole chunks
  EXPECT_EQ(HostChunks::device_bytes(1 << 20, 16 * 8, {1 << 13, 1 << 30}), std::size_t{8} << 20);  // all chunks
}

TEST(HostChunks, TensorsMustHaveEqualLengths) {
  const Stream cpu = Stream::cpu(1);
  EXPECT_THROW(HostChunks({numbers(3, 0, cpu), numbers(4, 0, cpu)}, {64}, cpu), Error);
  EXPECT_THROW(HostChunks({}, {64}, cpu), Error);
}

TEST(HostTensor, IsZeroAndUsesHostMemory) {
  const Stream cpu = Stream::cpu(1);
  const std::size_t before = cpu.allocator()->stats().in_use;
  const Tensor t = host_tensor({3, 5}, DType::f32, cpu);
  EXPECT_EQ(values_of(t), std::vector<float>(15, 0.0f));
  EXPECT_EQ(t.device(), Device{});
  EXPECT_EQ(cpu.allocator()->stats().in_use, before) << "taken of the device's memory";
  EXPECT_EQ(host_tensor({0}, DType::f32, cpu).numel(), 0);
}

bool all_resident(const Tensor& t) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((t.bytes() + page - 1) / page);
  EXPECT_EQ(mincore(t.raw(), t.bytes(), resident.data()), 0);
  return std::ranges::all_of(resident, [](unsigned char c) { return c & 1; });
}

TEST(HostTensor, PagesAreResidentBeforeTheFirstWrite) {
  const Tensor t = host_tensor({std::int64_t{10} << 20}, DType::f32, Stream::cpu(1));
  for (int i = 0; i < 2000 && !all_resident(t); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(all_resident(t));
  EXPECT_TRUE(std::ranges::all_of(values_of(t), [](float v) { return v == 0; }));
}

TEST(HostTensor, AFailureSaysHowMuchWasAskedFor) {
  try {
    host_tensor({std::int64_t{1} << 60}, DType::f32, Stream::cpu(1));
    FAIL() << "there is no such memory";
  } catch (const OutOfMemory& e) {
    EXPECT_NE(e.facts.find("4294967296.00 GiB requested"), std::string::npos) << e.facts;
  }
}

void expect_copy_in_order(const Stream& stream) {
  const std::int64_t n = std::int64_t{1} << 22;
  const Tensor source = host_tensor({n}, DType::f32, stream), host = host_tensor({n}, DType::f32, stream);
  const Tensor copied = host_tensor({n}, DType::f32, stream), device = Tensor::zeros({n}, DType::f32, stream);
  for (std::int64_t i = 0; i < n; ++i) source.data<float>()[i] = static_cast<float>(i % 1000);
  copy(device, source, stream);
  copy(host, device, stream);
  const std::uint64_t waits = host_wait_count();
  copy_on_host(copied, host, stream);  // after the copy from the device
  EXPECT_EQ(host_wait_count(), waits);
  stream.synchronize();
  EXPECT_EQ(values_of(copied), values_of(source));
}

TEST(HostTensor, IsCopiedInStreamOrder) { expect_copy_in_order(Stream::cpu(1)); }

TEST(GpuHostTensor, IsCopiedInTheOrderOfAStream) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  expect_copy_in_order(Stream::create({Backend::cuda, 0}));
}

}  // namespace
}  // namespace ring::test
