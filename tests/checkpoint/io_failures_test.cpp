// Each file system call of a save may fail: the save then fails as a whole or is whole, the checkpoint before it stays,
// and no incomplete file is left.

#include <algorithm>

#include "core/log.h"
#include "tests/checkpoint/fixture.h"
#include "tests/io_faults.h"

namespace ring::test {
namespace {

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

// Result of saving step 20 while the k-th call gets `answer` (IoHook).
struct Attempt {
  std::string error;
  bool io = false;  // the error was SaveFailed
  int calls = 0;
  std::string at;  // the call that failed
};
Attempt save_with(const fs::path& folder, int k, int answer, const Retention& keep = {1, 0}) {
  const SmallState s(20);
  const Snapshot snapshot = s.state.snapshot(stream());
  Attempt a;
  const IoWatch watch(folder.string(), [&](const IoCall& call) {
    if (a.calls++ != k) return 0;
    a.at = call.name + " " + call.path;
    return answer;
  });
  try {
    write_checkpoint(folder, 20, snapshot, "{}", keep);
  } catch (const SaveFailed& e) {
    a.error = e.what(), a.io = true;
  } catch (const std::exception& e) {
    a.error = e.what();
  }
  return a;
}

void expect_whole(const fs::path& folder, const std::string& where) {
  const auto found = find_newest_verified(folder);
  ASSERT_TRUE(found) << where;
  SmallState loaded(0);
  load_state(found->path, loaded.state, stream());
  EXPECT_TRUE(loaded.equals(SmallState(static_cast<std::uint64_t>(found->manifest.step)))) << where;
}

TEST(IoFailures, AFailedCallLeavesTheOldOrTheNewCheckpoint) {
  log::set_level(log::Level::error);
  int calls = 0, failed = 0;
  for (int k = 0; k <= calls; ++k) {
    const TempFolder folder;
    write_small(folder.path(), 10);
    const Attempt a = save_with(folder.path(), k, k % 2 ? EIO : ENOSPC);
    calls = std::max(calls, a.calls);
    if (k == calls) break;
    expect_whole(folder.path(), a.at);
    EXPECT_TRUE(a.error.empty() || a.io) << a.at << ": " << a.error;
    failed += a.io;
    EXPECT_TRUE(a.io || list_checkpoints(folder.path()).back().step == 20) << a.at;
    // A file that could not be removed is removed by the next attempt.
    EXPECT_EQ(save_with(folder.path(), -1, 0).error, "") << a.at;
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{checkpoint_name(20)}) << a.at;
  }
  log::set_level(log::Level::info);
  EXPECT_GT(calls, 20);
  EXPECT_GT(failed, 10);
}

TEST(IoFailures, AreNamedWithTheirFile) {
  const TempFolder folder;
  write_small(folder.path(), 10);
  Attempt full;
  for (int k = 0; !contains(full.at, "write "); ++k) full = save_with(folder.path(), k, ENOSPC);
  EXPECT_TRUE(contains(full.error, "No space left on device")) << full.error;
  EXPECT_TRUE(contains(full.error, "shard-00000.h5")) << full.error;
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{checkpoint_name(10)});
}

TEST(IoFailures, ShortWritesAreContinued) {
  const TempFolder folder;
  int calls = 1;
  for (int k = 0; k < calls; ++k) {
    const Attempt a = save_with(folder.path(), k, kShort);
    calls = a.calls;
    EXPECT_EQ(a.error, "") << a.at;
    expect_whole(folder.path(), a.at);
  }
}

// From one call on, every call fails; later all of them work again.
TEST(IoFailures, ADiskThatFailsForATimeLeavesNoFiles) {
  log::set_level(log::Level::error);
  for (int k = 0; k < 40; k += 3) {
    const TempFolder folder;
    write_small(folder.path(), 10);
    {
      const SmallState s(20);
      const Snapshot snapshot = s.state.snapshot(stream());
      int calls = 0;
      const IoWatch watch(folder.path().string(), [&](const IoCall&) { return calls++ >= k ? EIO : 0; });
      error_of([&] { write_checkpoint(folder.path(), 20, snapshot, "{}", {1, 0}); });
    }
    expect_whole(folder.path(), str("from call ", k));
    EXPECT_EQ(save_with(folder.path(), -1, 0).error, "");
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{checkpoint_name(20)}) << k;
  }
  log::set_level(log::Level::info);
}

// A step that is saved again replaces its checkpoint. If the new one cannot be read back, the old one is restored.
TEST(IoFailures, AReplacedCheckpointIsRestored) {
  const TempFolder folder;
  write_small(folder.path(), 10);
  const SmallState other(20);
  const IoWatch watch(folder.path().string(), [](const IoCall& call) {
    if (call.name == "exchange") flip_byte(fs::path(call.path) / "shard-00000.h5", 5000);
    return 0;
  });
  const std::string error =
      error_of([&] { write_checkpoint(folder.path(), 10, other.state.snapshot(stream()), "{}"); });
  EXPECT_TRUE(contains(error, "damaged")) << error;
  expect_whole(folder.path(), "after the exchange");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{checkpoint_name(10)});
}

// The disk of one rank fails: the save fails on all ranks, and all can continue.
TEST(IoFailures, OfOneRankAreReportedOnAll) {
  const TempFolder folder;
  write_small(folder.path(), 10);
  const SmallState s(20);
  const auto save = [&] {
    return run_ranks(2, [&](const WriterGroup& group) {
      write_checkpoint(folder.path(), 20, s.state.snapshot(stream()), "{}", {1, 0}, group);
    });
  };
  {
    const IoWatch watch(folder.path().string(), [](const IoCall& call) {
      return call.name == "write" && contains(call.path, "shard-00001") ? EIO : 0;
    });
    for (const std::string& error : save()) EXPECT_TRUE(contains(error, "rank 1: cannot write")) << error;
  }
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{checkpoint_name(10)});
  EXPECT_EQ(save(), std::vector<std::string>(2));
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{checkpoint_name(20)});
}

}  // namespace
}  // namespace ring::test
