// A snapshot keeps the state as it was, whatever the run does with the state afterwards.

#include "core/devices.h"
#include "core/host_chunks.h"
#include "tests/checkpoint/fixture.h"
#include "tests/late_stream.h"

namespace ring::test {
namespace {

// Returns the names and contents of the files of a checkpoint.
std::map<std::string, std::string> files_of(const fs::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(checkpoint))
    files[entry.path().filename().string()] = read_all(entry.path());
  return files;
}

// Changes every byte of every tensor and every value, like a training step.
void change_all(SmallState& s) {
  for (const Tensor& t : s.tensors)
    for (std::size_t i = 0; i < t.bytes(); ++i) t.raw()[i] = std::byte(std::to_integer<unsigned>(t.raw()[i]) + 1);
  ++s.cursor, ++s.counter, s.loss += 1, s.note += "later";
}

TEST(Snapshot, IsWrittenByAnotherThreadWithTheOldState) {
  const TempFolder at_once, later, changed;
  SmallState s(41);
  const auto expected = files_of(write_checkpoint(at_once.path(), 1, s.state.snapshot(stream()), "{}"));
  ASSERT_EQ(expected.size(), 2u);
  const Snapshot snapshot = s.state.snapshot(stream());
  change_all(s);
  std::thread writer([&] { write_checkpoint(later.path(), 1, snapshot, "{}"); });
  for (int i = 0; i < 1000; ++i) change_all(s);
  writer.join();
  EXPECT_EQ(files_of(later.path() / checkpoint_name(1)), expected);
  EXPECT_NE(files_of(write_checkpoint(changed.path(), 1, s.state.snapshot(stream()), "{}")), expected);
}

TEST(Snapshot, OutlivesItsState) {
  const TempFolder folder;
  std::optional<SmallState> s(std::in_place, 3);
  const Snapshot snapshot = s->state.snapshot(stream());
  s.reset();
  SmallState loaded(0);
  load_state(write_checkpoint(folder.path(), 1, snapshot, "{}"), loaded.state, stream());
  EXPECT_TRUE(loaded.equals(SmallState(3)));
}

TEST(Snapshot, CopiesTheBytesOfTheState) {
  const SmallState s(1);
  const Snapshot snapshot = s.state.snapshot(stream());
  std::uint64_t bytes = 0;
  for (const auto& [name, t] : snapshot.tensors()) {
    EXPECT_NE(t.local.raw(), s.state.tensors().at(name).local.raw()) << name;
    bytes += t.local.bytes();
  }
  EXPECT_EQ(bytes, s.state.bytes());
}

// A snapshot uses the memory that is kept for it, unless another snapshot still uses it.
TEST(Snapshot, ReusesItsMemory) {
  const SmallState s(1), more(2);
  SnapshotRoom room;
  const auto first_byte = [](const Snapshot& snapshot) { return snapshot.tensors().begin()->second.local.raw(); };
  std::optional<Snapshot> first(s.state.snapshot(stream(), &room));
  const std::byte* const place = first_byte(*first);
  const Snapshot beside = more.state.snapshot(stream(), &room);
  EXPECT_NE(first_byte(beside), place);
  EXPECT_TRUE(same_bytes(first->tensors().at("model.norm").local, s.state.tensors().at("model.norm").local));
  first.reset();
  SnapshotRoom own;
  for (int i = 0; i < 3; ++i) {
    const SmallState next(static_cast<std::uint64_t>(i));
    const Snapshot snapshot = next.state.snapshot(stream(), &own);
    EXPECT_EQ(own.memory.use_count() > 1, true);
    for (const auto& [name, t] : snapshot.tensors())
      EXPECT_TRUE(same_bytes(t.local, next.state.tensors().at(name).local)) << name;
    if (i == 0) continue;
    EXPECT_EQ(static_cast<const void*>(first_byte(snapshot)), own.memory.get());
  }
  void* const kept = own.memory.get();
  const Snapshot again = s.state.snapshot(stream(), &own);
  EXPECT_EQ(own.memory.get(), kept);
}

TEST(Snapshot, UsesReservedMemory) {
  const SmallState s(1);
  SnapshotRoom room;
  s.state.reserve(stream(), room);
  EXPECT_EQ(room.bytes, s.state.snapshot_bytes());
  const Snapshot snapshot = s.state.snapshot(stream(), &room);
  EXPECT_EQ(static_cast<const void*>(snapshot.tensors().begin()->second.local.raw()), room.memory.get());
}

// Tensors on the host that get new values in chunks. The copies back run as late as they may.
struct Travelling {
  Travelling() {
    state.add("t", t);
    state.set_wait_for_writes([this](const Stream& s) { chunks.wait_for_copies(s); });
  }
  void write_in_chunks(float value) {
    const std::vector<float> values(64, value);
    chunks.for_each_chunk([&](std::int64_t first, std::int64_t n, const std::vector<Tensor>& here) {
      copy(here[0], from_host(values, stream()).narrow(0, first, n), stream());
    });
  }
  std::vector<float> values() const { return {t.data<float>(), t.data<float>() + t.numel()}; }
  static std::vector<float> all(float value) { return std::vector<float>(64, value); }

  State state;
  const Tensor t = Tensor::zeros({64}, DType::f32, stream());
  HostChunks chunks{{t}, {.chunk = 64, .ring = 256}, stream(), stream(), late_stream()};
};

TEST(Snapshot, IncludesCopiesStillInFlight) {
  Travelling away;
  away.write_in_chunks(3);
  ASSERT_NE(away.values(), Travelling::all(3)) << "nothing is on its way";
  const Snapshot snapshot = away.state.snapshot(stream());
  const Tensor& held = snapshot.tensors().at("t").local;
  EXPECT_EQ(std::vector<float>(held.data<float>(), held.data<float>() + 64), Travelling::all(3));
}

TEST(Snapshot, WithoutACopyWaitsForCopiesInFlight) {
  Travelling away;
  away.write_in_chunks(3);
  const Snapshot live = away.state.live_snapshot(stream());
  EXPECT_EQ(away.values(), Travelling::all(3));
}

TEST(Snapshot, IsLoadedAfterCopiesInFlight) {
  const TempFolder folder;
  Travelling away;
  away.write_in_chunks(3);
  const fs::path saved = write_checkpoint(folder.path(), 1, away.state.snapshot(stream()), "{}");
  away.write_in_chunks(5);
  load_state(saved, away.state, stream());
  away.chunks.wait_for_copies(stream());
  EXPECT_EQ(away.values(), Travelling::all(3)) << "copies came over it";
}

TEST(GpuSnapshot, IsOfWhatWasQueuedBeforeAndNothingWaits) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  constexpr std::int64_t kElements = std::int64_t{64} << 20;
  const Stream device = Stream::create({Backend::cuda, 0});
  const std::vector<float> before(kElements, 1.5f), after(kElements, 2.5f);
  const Tensor t = from_host(before, device), other = from_host(after, device);
  State state;
  state.add("t", t);
  device.synchronize();
  const std::uint64_t waits = host_wait_count();
  fill_zero(t, device);
  copy(t, from_host(before, device), device);
  const Snapshot snapshot = state.snapshot(device);
  device.wait(snapshot.copied());
  copy(t, other, device);  // what the next step does
  EXPECT_EQ(host_wait_count(), waits);
  snapshot.wait();
  const Tensor& held = snapshot.tensors().at("t").local;
  EXPECT_EQ(held.device().backend, Backend::cpu);
  EXPECT_EQ(std::memcmp(held.raw(), before.data(), held.bytes()), 0);
  EXPECT_EQ(to_host<float>(t, device), after);
}

}  // namespace
}  // namespace ring::test
