// Snapshots in memory that outlives a worker: a snapshot that can be loaded is whole, whatever happened to its writer.
#include "checkpoint/memory_tier.h"

#include <sys/wait.h>

#include <csignal>

#include "comm/mesh/mesh.h"
#include "core/log.h"
#include "tests/checkpoint/fixture.h"
#include "tests/io_faults.h"

namespace ring::test {
namespace {

class MemoryTiers : public testing::Test {
 protected:
  // Returns the tier as a restarted worker finds it.
  MemoryTier tier(const std::string& identity = "this") const {
    return MemoryTier(kept_.files(), identity, kept_.key());
  }
  static MemoryTier& reserve_memory(MemoryTier& t) {
    t.reserve(SmallState(0).state, stream());
    return t;
  }
  static void save_snapshot(MemoryTier& t, std::int64_t step) {
    const SmallState s(static_cast<std::uint64_t>(step));
    t.seal(t.take_snapshot(s.state, stream()), step, R"({"config":"a: 1"})");
  }
  static void expect_loads(MemoryTier& t, std::int64_t step) {
    SmallState loaded(0);
    const Manifest m = t.load(step, loaded.state, stream());
    EXPECT_EQ(m.metadata, R"({"config":"a: 1"})");
    EXPECT_TRUE(loaded.equals(SmallState(static_cast<std::uint64_t>(step)))) << step;
  }
  static std::vector<std::int64_t> steps(std::vector<std::int64_t> list) { return list; }
  static fs::path file(int number) { return "/proc/self/fd/" + std::to_string(number); }

  const AgentMemory kept_;
};

TEST_F(MemoryTiers, TheTwoNewestCanBeLoadedByTheNextProcess) {
  MemoryTier writer = tier();
  EXPECT_EQ(writer.complete_steps(), steps({}));
  reserve_memory(writer);
  EXPECT_EQ(writer.complete_steps(), steps({}));
  for (const std::int64_t step : {10, 20, 30}) save_snapshot(writer, step);
  MemoryTier next = tier();
  EXPECT_EQ(next.complete_steps(), steps({20, 30}));
  expect_loads(next, 30);
  EXPECT_EQ(reserve_memory(next).complete_steps(), steps({20, 30})) << "taking the room again destroys nothing";
  save_snapshot(next, 40);
  EXPECT_EQ(tier().complete_steps(), steps({30, 40}));
}

TEST_F(MemoryTiers, ATierThatLoadsNothingCanKeepASnapshot) {
  for (const std::int64_t kept : {10, 20}) {
    MemoryTier writer = tier();
    reserve_memory(writer);
    save_snapshot(writer, 10);
    save_snapshot(writer, 20);
    MemoryTier next = tier();
    reserve_memory(next).keep(kept);
    save_snapshot(next, 30);
    EXPECT_EQ(tier().complete_steps(), steps({kept, 30}));
  }
}

TEST_F(MemoryTiers, ASnapshotBeingWrittenDoesNotCountAndTheOlderOneDoes) {
  MemoryTier writer = tier();
  reserve_memory(writer);
  save_snapshot(writer, 10);
  save_snapshot(writer, 20);
  const SmallState s(30);
  const Snapshot unsealed = writer.take_snapshot(s.state, stream());
  MemoryTier next = tier();
  EXPECT_EQ(next.complete_steps(), steps({20}));
  expect_loads(next, 20);
}

TEST_F(MemoryTiers, ASnapshotHeldForACheckpointIsNotOverwritten) {
  MemoryTier t = tier();
  reserve_memory(t);
  const SmallState s(10);
  const Snapshot saved = t.take_snapshot(s.state, stream());
  t.seal(saved, 10, "{}");
  t.protect_latest();
  for (const std::int64_t step : {20, 30, 40}) save_snapshot(t, step);
  EXPECT_EQ(t.complete_steps(), steps({10, 40}));
  const TempFolder folder;
  write_checkpoint(folder.path(), 10, saved, "{}");
  SmallState loaded(0);
  load_state(folder.path() / checkpoint_name(10), loaded.state, stream());
  EXPECT_TRUE(loaded.equals(s));
}

// There is no space for the manifest. Later snapshots find space, and no damaged snapshot is loaded.
TEST_F(MemoryTiers, WithoutSpaceForAManifestTheSnapshotBeforeCounts) {
  MemoryTier t = tier();
  reserve_memory(t);
  save_snapshot(t, 10);
  {
    const IoWatch full("memfd:", [](const IoCall& c) { return c.name == "write" ? ENOSPC : 0; });
    const SmallState s(20);
    const Snapshot snapshot = t.take_snapshot(s.state, stream());
    EXPECT_TRUE(contains(error_of([&] { t.seal(snapshot, 20, "{}"); }), "No space left on device"));
    EXPECT_EQ(tier().complete_steps(), steps({10}));
    t.invalidate();
    EXPECT_EQ(tier().complete_steps(), steps({}));
  }
  save_snapshot(t, 30);
  EXPECT_EQ(tier().complete_steps(), steps({30}));
}

TEST_F(MemoryTiers, OtherSettingsFindNothing) {
  MemoryTier writer = tier();
  save_snapshot(reserve_memory(writer), 10);
  EXPECT_EQ(tier("other").complete_steps(), steps({}));
  MemoryTier other = tier("other");
  reserve_memory(other);
  EXPECT_EQ(tier().complete_steps(), steps({})) << "the room is the other's now";
}

TEST_F(MemoryTiers, ForgottenStepsAreGoneAndClearedMemoryIsFree) {
  MemoryTier t = tier();
  EXPECT_EQ(t.bytes(), 0u);
  save_snapshot(reserve_memory(t), 10);
  EXPECT_GE(t.bytes(), 2 * SmallState(0).state.bytes());
  t.invalidate();
  EXPECT_EQ(t.complete_steps(), steps({}));
  t.clear();
  EXPECT_EQ(t.bytes(), 0u);
  EXPECT_EQ(tier().complete_steps(), steps({}));
}

// The byte belongs to the newest snapshot. If it is padding, the snapshot stays whole.
TEST_F(MemoryTiers, AFlippedByteIsNoticedAndTheOlderSnapshotIsWhole) {
  log::set_level(log::Level::error);
  MemoryTier writer = tier();
  reserve_memory(writer);
  save_snapshot(writer, 10);
  save_snapshot(writer, 20);
  const int newest = kept_.files()[writer.complete_steps().back() == 20 ? 0 : 1];
  const auto size = static_cast<std::streamoff>(fs::file_size(file(newest)));
  int noticed = 0;
  for (std::streamoff at = 0; at < size; at += at < 24 ? 1 : 97) {
    flip_byte(file(newest), at);
    const std::vector<std::int64_t> found = tier().complete_steps();
    noticed += found.size() == 1;
    SmallState loaded(0);
    MemoryTier next = tier();
    ASSERT_FALSE(found.empty()) << at;
    next.load(found.back(), loaded.state, stream());
    ASSERT_TRUE(loaded.equals(SmallState(static_cast<std::uint64_t>(found.back())))) << at;
    flip_byte(file(newest), at);
  }
  log::set_level(log::Level::info);
  EXPECT_GT(noticed, 60);
  EXPECT_EQ(tier().complete_steps(), steps({10, 20}));
}

// Replaces the manifest of a slot, as a process without the key could: with hashes that are right.
void rewrite_manifest(const fs::path& slot, const std::function<void(Manifest&)>& change) {
  std::uint64_t header[3];
  std::fstream f(slot, std::ios::binary | std::ios::in | std::ios::out);
  f.read(reinterpret_cast<char*>(header), sizeof header);
  std::string text(header[2], '\0');
  f.seekg(static_cast<std::streamoff>(header[1])).read(text.data(), static_cast<std::streamsize>(text.size()));
  const std::size_t manifest = text.find('\n', text.find('\n') + 1) + 1;
  Manifest m = parse_manifest(text.substr(manifest), Cover::part);
  change(m);
  text = text.substr(0, manifest) + to_text(m);
  header[2] = text.size();
  f.seekp(static_cast<std::streamoff>(header[1])).write(text.data(), static_cast<std::streamsize>(text.size()));
  f.seekp(0).write(reinterpret_cast<const char*>(header), sizeof header);
}

TEST_F(MemoryTiers, AForgedSnapshotIsRefused) {
  log::set_level(log::Level::error);
  MemoryTier writer = tier();
  save_snapshot(reserve_memory(writer), 10);
  const fs::path slot = file(kept_.files()[1]);  // the slot that is written first
  const std::vector<std::function<void(Manifest&)>> changes = {
      [](Manifest& m) { m.step = 11; },
      [](Manifest& m) { m.metadata = R"({"config":"a: 2"})"; },
      [](Manifest& m) { m.values.begin()->second = std::int64_t{7}; },
      [](Manifest& m) { m.tensors.begin()->second.slices.front().offset += 8; },
      [](Manifest& m) { m.tensors.begin()->second.slices.front().offset = ~std::uint64_t{0} - 8; },
      [](Manifest& m) { std::swap(m.tensors.begin()->second, std::next(m.tensors.begin())->second); }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    rewrite_manifest(slot, [](Manifest&) {});
    ASSERT_EQ(tier().complete_steps(), steps({10})) << "the same manifest written again";
    const std::string whole = read_all(slot);
    rewrite_manifest(slot, changes[i]);
    EXPECT_EQ(tier().complete_steps(), steps({})) << "change " << i;
    std::ofstream(slot, std::ios::binary | std::ios::in) << whole;
  }
  log::set_level(log::Level::info);
}

// Each launcher has its own key, so that snapshots of other jobs are not loaded even if their settings are equal.
TEST_F(MemoryTiers, TheSnapshotOfAnotherJobIsRefused) {
  log::set_level(log::Level::error);
  const AgentMemory other;
  MemoryTier theirs(other.files(), "this", other.key());
  save_snapshot(reserve_memory(theirs), 10);
  for (std::size_t i = 0; i < 2; ++i)
    std::ofstream(file(kept_.files()[i]), std::ios::binary) << read_all(file(other.files()[i]));
  EXPECT_EQ(MemoryTier(kept_.files(), "this", other.key()).complete_steps(), steps({10})) << "all of it was copied";
  EXPECT_EQ(tier().complete_steps(), steps({}));
  log::set_level(log::Level::info);
}

// The writer is killed at any moment: while it copies, hashes, or writes the manifest.
TEST_F(MemoryTiers, AKilledWriterLeavesWholeSnapshots) {
  std::int64_t before = 0;
  for (int round = 0; round < 30; ++round) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t writer = fork();
    if (writer == 0) {
      MemoryTier t = tier();
      reserve_memory(t);
      if (before > 0) expect_loads(t, before);
      for (std::int64_t step = before + 1;; ++step) {
        save_snapshot(t, step);
        if (step == before + 1 && ::write(ends[1], "", 1) != 1) _exit(1);
      }
    }
    char one = 0;
    ASSERT_EQ(::read(ends[0], &one, 1), 1) << "the writer wrote nothing";
    ::usleep(397 * static_cast<useconds_t>(round));
    for (const int end : ends) ::close(end);
    kill(writer, SIGKILL);
    waitpid(writer, nullptr, 0);
    MemoryTier next = tier();
    const std::vector<std::int64_t> found = next.complete_steps();
    ASSERT_TRUE(before == 0 || !found.empty()) << round;
    for (const std::int64_t step : found) expect_loads(next, step);
    if (!found.empty()) before = found.back();
  }
  EXPECT_GE(before, 30) << "one of each round, at least";
}

// The job has one rank here.
TEST_F(MemoryTiers, ALoneRanksNewestStepIsTheCommonOne) {
  const auto mesh = Mesh::join(WorkerEnvironment{}, {}, {.axes = {{"dp", 1}}});
  EXPECT_EQ(newest_common_step(nullptr, mesh->host()), std::nullopt);
  MemoryTier t = tier();
  EXPECT_EQ(newest_common_step(&t, mesh->host()), std::nullopt);
  save_snapshot(reserve_memory(t), 10);
  save_snapshot(t, 20);
  EXPECT_EQ(newest_common_step(&t, mesh->host()), 20);
}

}  // namespace
}  // namespace ring::test
