// Streams, events, copies and memory of a GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "core/devices.h"
#include "core/host_node.h"
#include "core/host_tensor.h"
#include "core/tensor.h"

namespace ring {
namespace {

class GpuStream : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
  static Stream stream() { return Stream::create({Backend::cuda, 0}); }
};

template <class Fn>
std::string message(const Fn& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::vector<float> counting(std::int64_t n) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i % 1000003);
  return v;
}

TEST_F(GpuStream, CopiesThereAndBack) {
  const Stream s = stream();
  EXPECT_EQ(s.device(), (Device{Backend::cuda, 0}));
  EXPECT_NE(s.native(), nullptr);
  for (std::int64_t n : {1, 1000, 5000000}) {
    const std::vector<float> host = counting(n);
    const Tensor t = from_host(host, s), second = Tensor::empty({n}, DType::f32, s);
    copy(second, t, s);
    EXPECT_EQ(to_host<float>(second, s), host);
    fill_zero(second, s);
    EXPECT_EQ(to_host<float>(second, s), std::vector<float>(host.size(), 0.0f));
  }
  EXPECT_THROW(s.pool(), Error);
}

// Small copies are made by kernels, with words of different sizes.
TEST_F(GpuStream, FewBytesComeAndLeaveWhole) {
  const Stream s = stream();
  const std::size_t most = std::size_t{1} << 20;
  const auto memory = s.impl().host_buffer(2 * most + 16);
  auto* host = static_cast<std::uint8_t*>(memory.get());
  const Tensor device = Tensor::empty({static_cast<std::int64_t>(most) + 16}, DType::u8, s);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4}, std::size_t{48}, std::size_t{1003}, most - 1, most})
    for (const std::size_t from : {0, 1, 4, 8})
      for (const std::size_t to : {0, 2, 4}) {
        for (std::size_t i = 0; i < bytes; ++i) host[from + i] = static_cast<std::uint8_t>(i * 31 + bytes + from);
        std::memset(host + most + 16, 0, most);
        s.impl().copy(device.raw() + to, host + from, bytes);
        s.impl().copy(host + most + 16, device.raw() + to, bytes);
        s.synchronize();
        EXPECT_EQ(std::memcmp(host + from, host + most + 16, bytes), 0) << bytes << " from " << from << " to " << to;
      }
}

// A small copy overtakes the large copies that another stream has queued for the copy engine of the same direction. If
// others use the GPU, the small copy may start late, but not in each attempt.
TEST_F(GpuStream, FewBytesDoNotQueueBehindMany) {
  const Stream large = stream(), small = stream();
  const std::size_t many = std::size_t{256} << 20, few = 4096;
  const auto page_locked = large.impl().host_buffer(many), word = small.impl().host_buffer(few);
  const Tensor device = Tensor::empty({static_cast<std::int64_t>(many)}, DType::u8, large);
  const Tensor target = Tensor::zeros({static_cast<std::int64_t>(few)}, DType::u8, small);
  small.synchronize();
  const auto overtakes = [&](bool in) {
    for (int i = 0; i < 100; ++i)  // takes half a second
      in ? large.impl().copy(device.raw(), page_locked.get(), many)
         : large.impl().copy(page_locked.get(), device.raw(), many);
    const Event all = large.record();
    in ? small.impl().copy(target.raw(), word.get(), few) : small.impl().copy(word.get(), target.raw(), few);
    small.synchronize();
    const bool overtook = !all.done();
    large.synchronize();
    return overtook;
  };
  for (const bool in : {true, false}) {
    bool overtook = false;
    for (int attempt = 0; attempt < 10 && !overtook; ++attempt) overtook = overtakes(in);
    EXPECT_TRUE(overtook) << (in ? "to the device" : "to the host");
  }
}

// The tensor is larger than two slabs of locked pages: copies begin and end anywhere, and none is staged through
// unlocked memory.
TEST_F(GpuStream, CopiesCrossSlabsOfLockedPages) {
  const Stream s = stream();
  const auto slab = static_cast<std::int64_t>(PageLocker::kSlab / sizeof(float));
  const std::int64_t n = 2 * slab + 12345;
  const Tensor host = host_tensor({n}, DType::f32, s), back = host_tensor({n}, DType::f32, s);
  auto* const values = host.data<float>();
  EXPECT_EQ(values[0], 0.0f);
  EXPECT_EQ(values[n - 1], 0.0f);
  for (std::int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 1000003);
  const Tensor device = Tensor::zeros({n}, DType::f32, s);
  copy(device, host, s);
  for (const auto& [first, length] : {std::pair{std::int64_t{0}, slab - 1}, {slab - 1, 2}, {slab + 1, n - slab - 1}})
    copy(back.narrow(0, first, length), device.narrow(0, first, length), s);
  s.synchronize();
  EXPECT_TRUE(std::equal(values, values + n, back.data<float>()));
  const PageLockFacts facts = page_lock_facts(s.device());
  EXPECT_GE(facts.taken, 2 * host.bytes());
  EXPECT_EQ(facts.locked, facts.taken) << "every slab was copied";
}

TEST_F(GpuStream, CopiesOfRowsCrossSlabsOfLockedPages) {
  const Stream s = stream();
  const std::int64_t columns = 1 << 20, rows = 100;  // rows of 4 MiB: 64 in a slab
  const Tensor host = host_tensor({rows, columns}, DType::f32, s), device = Tensor::zeros({rows, 8}, DType::f32, s);
  for (std::int64_t r = 0; r < rows; ++r) host.data<float>()[r * columns + 7] = static_cast<float>(r + 1);
  s.impl().copy_rows(device.raw(), 8 * sizeof(float), host.raw(), columns * sizeof(float), 8 * sizeof(float), rows);
  const std::vector<float> got = to_host<float>(device, s);
  for (std::int64_t r = 0; r < rows; ++r)
    EXPECT_EQ(got[static_cast<std::size_t>(r * 8 + 7)], static_cast<float>(r + 1));
}

// The host continues before a busy device has copied. Pageable memory would block the host.
TEST_F(GpuStream, CopiesToLockedPagesDoNotHoldTheHostUp) {
  const Stream s = stream();
  const std::int64_t n = std::int64_t{1} << 28;
  const Tensor host = host_tensor({n}, DType::u8, s), device = Tensor::zeros({n}, DType::u8, s);
  copy(host, device, s);  // locks the pages of `host`
  s.synchronize();
  for (int i = 0; i < 200; ++i) fill_zero(device, s);
  copy(host, device, s);
  EXPECT_FALSE(s.record().done());
  s.synchronize();
}

// The staging ring wraps around while a piece near its end and newer pieces at its beginning wait to be copied.
TEST_F(GpuStream, UploadsStayWholeWhenStagingTurns) {
  const Stream s = stream();
  const std::int64_t mib = 1 << 20, busy_bytes = std::int64_t{1} << 30;
  const Tensor from = Tensor::zeros({busy_bytes}, DType::u8, s), to = Tensor::empty({busy_bytes}, DType::u8, s);
  std::vector<Tensor> tensors;
  std::vector<std::vector<std::uint8_t>> contents;
  const auto upload = [&](std::int64_t bytes) {
    contents.emplace_back(static_cast<std::size_t>(bytes), static_cast<std::uint8_t>(contents.size() + 1));
    s.impl().upload(tensors[contents.size() - 1].raw(), contents.back().data(), contents.back().size());
  };
  const std::int64_t sizes[] = {20, 20, 20, 5, 30, 32};
  for (const std::int64_t size : sizes) tensors.push_back(Tensor::empty({size * mib}, DType::u8, s));
  for (const std::int64_t size : sizes) {
    if (contents.size() == 2)
      for (int i = 0; i < 300; ++i) copy(to, from, s);  // the third upload and later ones have to wait
    upload(size * mib);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i)
    EXPECT_TRUE(to_host<std::uint8_t>(tensors[i], s) == contents[i]) << "upload " << i + 1;
}

// A stream ends while its uploads wait behind other work. The next stream uploads through the same staging memory.
TEST_F(GpuStream, StagingMemoryPassesToTheNextStreamAfterItsCopies) {
  const Stream reader = stream();
  const std::int64_t bytes = 20 << 20, busy_bytes = std::int64_t{1} << 30;
  const Tensor uploads[] = {Tensor::zeros({bytes}, DType::u8, reader), Tensor::zeros({bytes}, DType::u8, reader)};
  const Tensor from = Tensor::zeros({busy_bytes}, DType::u8, reader),
               to = Tensor::empty({busy_bytes}, DType::u8, reader);
  reader.synchronize();
  for (const Tensor& t : uploads) {
    const Stream s = stream();
    const std::vector<std::uint8_t> contents(static_cast<std::size_t>(bytes), &t == &uploads[0] ? 1 : 2);
    for (int i = 0; i < 300; ++i) copy(to, from, s);
    s.impl().upload(t.raw(), contents.data(), contents.size());
  }
  for (const std::uint8_t i : {0, 1})
    EXPECT_EQ(to_host<std::uint8_t>(uploads[i], reader),
              std::vector<std::uint8_t>(static_cast<std::size_t>(bytes), i + 1));
}

TEST_F(GpuStream, EventsOrderStreams) {
  const Stream a = stream(), b = stream();
  const std::int64_t n = 1 << 24;
  const Tensor x = Tensor::empty({n}, DType::f32, a), y = Tensor::empty({n}, DType::f32, b);
  const std::vector<float> host = counting(n);
  const Tensor source = from_host(host, a);
  for (int i = 0; i < 20; ++i) fill_zero(x, a);  // keeps the first stream busy
  copy(x, source, a);
  const Event written = a.record();
  b.wait(written);
  copy(y, x, b);
  const Event copied = b.record();
  copied.synchronize();
  EXPECT_TRUE(copied.done() && written.done());
  EXPECT_EQ(to_host<float>(y, b), host);
  Stream::cpu(1).wait(copied);
  a.wait(Event{});
  a.synchronize();
}

// The recording calls queue_host_node() at its beginning, twice in a row, between recorded copies, and at its end.
TEST_F(GpuStream, ARecordingQueuesAnewInEachLaunch) {
  const Stream s = stream();
  const auto zeros = [&] { return Tensor::zeros({1000}, DType::f32, s); };
  const Tensor x = zeros(), y = zeros(), first = zeros(), second = zeros();
  float now = 1;
  int calls = 0;
  const auto add = [&](const Tensor& t, float more) {
    queue_host_node(s, [&, to = t.raw(), more] {
      EXPECT_FALSE(s.impl().recording());
      ++calls;
      const std::vector<float> host(1000, now + more);
      s.impl().upload(to, host.data(), host.size() * sizeof(float));
    });
  };
  const auto recorded = s.impl().record_work([&] {
    EXPECT_TRUE(s.impl().recording());
    add(x, 0);
    add(y, 10);
    copy(first, x, s);
    add(x, 20);
    EXPECT_TRUE(s.impl().recording());
    copy(second, x, s);
    add(x, 30);
  });
  ASSERT_NE(recorded, nullptr);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(to_host<float>(first, s), std::vector<float>(1000, 0.0f));
  for (now = 1; now < 4; ++now) {
    recorded->launch();
    EXPECT_EQ(to_host<float>(first, s), std::vector<float>(1000, now));
    EXPECT_EQ(to_host<float>(y, s), std::vector<float>(1000, now + 10));
    EXPECT_EQ(to_host<float>(second, s), std::vector<float>(1000, now + 20));
    EXPECT_EQ(to_host<float>(x, s), std::vector<float>(1000, now + 30));
  }
  EXPECT_EQ(calls, 12);
}

// A recording that follows a failed one is complete.
TEST_F(GpuStream, ARecordingThatFailsBetweenItsPartsLeavesTheStreamAsItWas) {
  const Stream s = stream();
  const Tensor x = Tensor::zeros({1000}, DType::f32, s), y = Tensor::zeros({1000}, DType::f32, s);
  EXPECT_THROW(s.impl().record_work([&] {
    copy(y, x, s);
    queue_host_node(s, [] {});
    fail("in the middle");
  }),
               Error);
  EXPECT_FALSE(s.impl().recording());
  bool called = false;
  queue_host_node(s, [&] { called = true; });
  EXPECT_TRUE(called);
  s.impl().record_work([&] { copy(y, x, s); })->launch();
  s.synchronize();
}

TEST_F(GpuStream, MemoryIsCountedAndUsedAgain) {
  const Stream s = stream();
  Allocator& memory = *s.allocator();
  EXPECT_EQ(memory.stats().in_use, 0u);
  const std::size_t bytes = 64 << 20;
  {
    const Tensor t = Tensor::empty({static_cast<std::int64_t>(bytes)}, DType::u8, s);
    EXPECT_EQ(memory.stats().in_use, bytes);
    EXPECT_GE(memory.stats().reserved, bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.raw()) % 256, 0u);
  }
  EXPECT_EQ(memory.stats().in_use, 0u);
  EXPECT_EQ(memory.stats().peak, bytes);
  s.synchronize();
  const std::size_t held = memory.stats().reserved;
  for (int i = 0; i < 100; ++i) Tensor::zeros({static_cast<std::int64_t>(bytes)}, DType::u8, s);
  s.synchronize();
  EXPECT_EQ(memory.stats().reserved, held) << "freed memory was not used again";
  memory.reset_peak();
  EXPECT_EQ(memory.stats().peak, 0u);
}

TEST_F(GpuStream, TensorsMayOutliveTheirStream) {
  Tensor t;
  {
    const Stream s = stream();
    t = Tensor::zeros({1000}, DType::f32, s);
    s.synchronize();
  }
  const Stream other = stream();
  EXPECT_EQ(to_host<float>(t, other), std::vector<float>(1000, 0.0f));
}

TEST_F(GpuStream, OutOfMemorySaysHowMuch) {
  const Stream s = stream();
  const Tensor held = Tensor::empty({1000}, DType::f32, s);
  const std::string what = message([&] { Tensor::empty({std::int64_t{1} << 50}, DType::u8, s); });
  for (const char* part : {"1125899906842624 bytes requested", "4000 in use", "of the device's"})
    EXPECT_NE(what.find(part), std::string::npos) << what;
  EXPECT_EQ(s.allocator()->stats().in_use, 4000u);
  EXPECT_EQ(to_host<float>(Tensor::zeros({8}, DType::f32, s), s), std::vector<float>(8, 0.0f)) << "not usable after it";
}

TEST_F(GpuStream, AMissingDeviceIsAnErrorWithTheCount) {
  const int count = device_count(Backend::cuda);
  for (int index : {-1, count}) {
    const std::string what = message([&] { Stream::create({Backend::cuda, index}); });
    EXPECT_NE(what.find(str("this machine has ", count, " GPU")), std::string::npos) << what;
  }
}

TEST(Devices, AreCounted) {
  EXPECT_EQ(device_count(Backend::cpu), 1);
  EXPECT_GE(device_count(Backend::cuda), 0);
  EXPECT_EQ(backend_available(Backend::cuda), device_count(Backend::cuda) > 0);
}

}  // namespace
}  // namespace ring
