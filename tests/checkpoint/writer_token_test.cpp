// If several processes mean to train one run, only the newest commits.
#include "checkpoint/writer_token.h"

#include <functional>
#include <mutex>
#include <set>

#include "checkpoint/files.h"
#include "core/log.h"
#include "tests/checkpoint/fixture.h"
#include "tests/io_faults.h"

namespace ring::test {
namespace {

class WriterTokens : public testing::Test {
 protected:
  fs::path run() const { return folder_.path(); }
  fs::path checkpoints() const { return run() / "checkpoints"; }
  std::string save(std::int64_t step, const WriterToken& token) const {
    const SmallState s(static_cast<std::uint64_t>(step));
    WriterGroup alone;
    alone.token = &token;
    return error_of([&] { write_checkpoint(checkpoints(), step, s.state.snapshot(stream()), "{}", {5, 0}, alone); });
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(checkpoints())) all.push_back(entry.path().filename().string());
    std::ranges::sort(all);
    return all;
  }

  const TempFolder folder_;
};

TEST_F(WriterTokens, IncreaseAndAreInTheManifest) {
  const WriterToken first(run());
  EXPECT_EQ(first.number(), 1);
  EXPECT_EQ(save(10, first), "");
  const WriterToken second(run());
  EXPECT_EQ(second.number(), 2);
  EXPECT_EQ(save(20, second), "");
  EXPECT_EQ(read_manifest(checkpoints() / checkpoint_name(10)).token, 1);
  EXPECT_EQ(read_manifest(checkpoints() / checkpoint_name(20)).token, 2);
  EXPECT_EQ(newest_holder(run())->token, 2);
  EXPECT_EQ(newest_holder(run())->pid, ::getpid());
}

// The numbers are larger than any process can have counted to.
TEST_F(WriterTokens, NamesOutOfRangeAreNoTokens) {
  fs::create_directories(run() / "writers");
  for (const char* name : {"9223372036854775807.json", "9223372036854775808.json", "99999999999999999999999.json",
                           "1000000000000000000.json", "-00000005.json", "7.json", "0000000000007.json"})
    write_text(run() / "writers" / name, "{}");
  EXPECT_FALSE(newest_holder(run()));
  const WriterToken first(run());
  EXPECT_EQ(first.number(), 1);
  EXPECT_EQ(save(10, first), "");
}

TEST_F(WriterTokens, TheLargestIsNamed) {
  fs::create_directories(run() / "writers");
  write_text(run() / "writers/999999999999999999.json", "{}");
  EXPECT_EQ(newest_holder(run())->token, 999999999999999999);
  const std::string error = error_of([&] { WriterToken token(run()); });
  EXPECT_TRUE(contains(error, "writers/999999999999999999.json: the writer token 999999999999999999 is the largest"))
      << error;
  EXPECT_TRUE(contains(error, "Remove this file")) << error;
}

TEST_F(WriterTokens, AnOlderTokenCommitsNothingAndNamesBoth) {
  const WriterToken first(run());
  EXPECT_EQ(save(10, first), "");
  const WriterToken second(run());
  const std::string error = save(20, first);
  EXPECT_TRUE(contains(error, "another process has taken over")) << error;
  for (const char* part : {"token 1", "token 2", " UTC"}) EXPECT_TRUE(contains(error, part)) << error;
  EXPECT_TRUE(contains(error, str("process ", ::getpid()))) << error;
  EXPECT_EQ(names(), std::vector<std::string>{checkpoint_name(10)});
  EXPECT_EQ(save(30, second), "");
}

// A change to a directory while a process trains in it, and parts of the error of the next save.
struct Suffered {
  const char* what;
  std::function<void(const fs::path& run, const fs::path& elsewhere)> act;
  std::vector<std::string> said;
};

TEST(MovedDirectories, RefuseSaves) {
  const TempFolder temp;
  const fs::path run = temp.path() / "run", elsewhere = temp.path() / "elsewhere";
  const std::string now = fs::canonical(temp.path()).string() + "/elsewhere";
  const std::vector<Suffered> all = {
      {"removed", [](const auto& r, const auto&) { fs::remove_all(r); }, {" was removed while", "from a copy"}},
      {"moved", [](const auto& r, const auto& e) { fs::rename(r, e); }, {"is now " + now, "ringmaster train " + now}},
      {"replaced",
       [](const auto& r, const auto& e) {
         fs::rename(r, e);
         fs::copy(e, r, fs::copy_options::recursive);
       },
       {"no longer leads to", "is now " + now}},
      {"a link to another",
       [](const auto& r, const auto& e) {
         fs::rename(r, e);
         fs::create_directory(e.string() + "2");
         fs::create_directory_symlink(e.string() + "2", r);
       },
       {"no longer leads to", "is now " + now}}};
  for (const Suffered& s : all) {
    fs::create_directory(run);
    const WriterToken token(run);
    write_small(run / "checkpoints", 10);
    s.act(run, elsewhere);
    const std::size_t there = fs::exists(run) ? list_checkpoints(run / "checkpoints").size() : 0;
    const std::vector<std::string> errors = run_ranks(2, [&](WriterGroup group) {
      const SmallState state(20);
      group.token = group.rank == 0 ? &token : nullptr;
      EXPECT_THROW(write_checkpoint(run / "checkpoints", 20, state.state.snapshot(stream()), "{}", {}, group),
                   DirectoryMoved);
      write_checkpoint(run / "checkpoints", 20, state.state.snapshot(stream()), "{}", {}, group);
    });
    EXPECT_EQ(errors[0], errors[1]) << s.what;
    for (const std::string& part : s.said) EXPECT_TRUE(contains(errors[0], part)) << s.what << ": " << errors[0];
    EXPECT_TRUE(contains(errors[0], run.string())) << errors[0];
    EXPECT_EQ(fs::exists(run) ? list_checkpoints(run / "checkpoints").size() : 0, there) << s.what;
    for (const auto& entry : fs::directory_iterator(temp.path())) fs::remove_all(entry);
  }
}

// At each call of a save in turn: either the checkpoint is whole in the moved directory, or it was not committed. No
// checkpoint appears at the old path.
TEST(MovedDirectories, RefuseSavesOrHoldTheWholeCheckpoint) {
  log::set_level(log::Level::error);
  int refused = 0;
  for (int k = 0;; ++k) {
    const TempFolder temp;
    const fs::path run = temp.path() / "run", elsewhere = temp.path() / "elsewhere";
    fs::create_directory(run);
    const WriterToken token(run);
    write_small(run / "checkpoints", 10);
    const SmallState state(20);
    WriterGroup alone;
    alone.token = &token;
    std::string error;
    {
      int call = 0;
      const IoWatch watch(run.string(), [&](const IoCall&) {
        if (call++ == k) fs::rename(run, elsewhere);
        return 0;
      });
      error =
          error_of([&] { write_checkpoint(run / "checkpoints", 20, state.state.snapshot(stream()), "{}", {}, alone); });
      if (call <= k) break;
    }
    EXPECT_TRUE(error.empty() || contains(error, "no longer leads to")) << "at call " << k << ": " << error;
    refused += !error.empty();
    EXPECT_FALSE(fs::exists(run)) << "at call " << k;
    const auto found = find_newest_verified(elsewhere / "checkpoints");
    ASSERT_TRUE(found) << "at call " << k;
    EXPECT_TRUE(found->manifest.step == 20 || !error.empty()) << "at call " << k;
  }
  log::set_level(log::Level::info);
  EXPECT_GT(refused, 10);
}

// Result of a save of step 20, at whose k-th call another process takes over and lists checkpoints; -1: none does.
struct Overtaken {
  int calls = 0;
  std::string error;
  std::vector<std::int64_t> seen{}, there{};  // steps seen by the other process then, and at the end
};
std::vector<std::int64_t> steps_in(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  for (const CheckpointEntry& e : list_checkpoints(folder)) steps.push_back(e.step);
  return steps;
}
Overtaken overtake_at(int k) {
  const TempFolder run;
  const fs::path folder = run.path() / "checkpoints";
  const SmallState s(20);
  const WriterToken first(run.path());
  write_small(folder, 10);
  WriterGroup alone;
  alone.token = &first;
  Overtaken o;
  {
    bool inside = false;
    const IoWatch watch(folder.string(), [&](const IoCall&) {
      if (inside || o.calls++ != k) return 0;
      inside = true;
      const WriterToken successor(run.path());
      remove_stale_entries(folder);
      o.seen = steps_in(folder);
      inside = false;
      return 0;
    });
    o.error = error_of([&] { write_checkpoint(folder, 20, s.state.snapshot(stream()), "{}", {5, 0}, alone); });
  }
  o.there = steps_in(folder);
  EXPECT_EQ(find_newest_verified(folder)->manifest.step, o.there.back()) << k;
  return o;
}

TEST_F(WriterTokens, ASuccessorSeesAllThatTheOlderProcessEverCommits) {
  const int calls = overtake_at(-1).calls;
  int committed = 0, refused = 0;
  for (int k = 0; k < calls; ++k) {
    const Overtaken o = overtake_at(k);
    EXPECT_EQ(o.there, o.seen) << "call " << k << ": " << o.error;
    EXPECT_TRUE(contains(o.error, "has taken over") || o.there.size() == 2) << "call " << k << ": " << o.error;
    (o.there.size() == 2 ? committed : refused)++;
  }
  EXPECT_GT(refused, 8);
  EXPECT_GT(committed, 0);
}

TEST_F(WriterTokens, AreTakenByOneProcessEach) {
  std::mutex mutex;
  std::set<std::int64_t> taken;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) {
        const WriterToken token(run());
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(taken.insert(token.number()).second) << token.number();
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(newest_holder(run())->token, *taken.rbegin());
}

TEST_F(WriterTokens, ContinueAfterTheirFolderWasDeleted) {
  for (int i = 0; i < 4; ++i) {
    const WriterToken token(run());
    EXPECT_EQ(save(10 + i, token), "");
  }
  fs::remove_all(run() / "writers");
  EXPECT_EQ(WriterToken(run()).number(), 5);
}

TEST_F(WriterTokens, CheckpointsWithoutATokenAreRead) {
  const fs::path path = write_small(checkpoints(), 10);
  EXPECT_EQ(read_text(path / "manifest.json").find("token"), std::string::npos);
  EXPECT_EQ(read_manifest(path).token, 0);
  EXPECT_EQ(WriterToken(run()).number(), 1);
}

}  // namespace
}  // namespace ring::test
