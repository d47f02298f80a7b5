// Reading while a run writes checkpoints and removes old ones: no checkpoint that disappears is reported as damaged.

#include "checkpoint/reshard.h"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>

#include "core/log.h"
#include "tests/checkpoint/fixture.h"
#include "tests/io_faults.h"
#include "tests/paths.h"
#include "tests/process.h"

namespace ring::test {
namespace {

// A process writes one checkpoint after another and keeps only the last.
class Pruning : public testing::Test {
 protected:
  void SetUp() override {
    write_small(checkpoints(), 1);
    child_ = ::fork();
    if (child_ == 0) write_forever();
  }
  void TearDown() override {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  // Repeats `read` until enough checkpoints were removed, which may take long on a busy machine.
  void repeat_while_pruned(const std::function<void()>& read) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(100);
    std::int64_t step = 0;
    for (int reads = 0; reads < 50 || (step < 60 && std::chrono::steady_clock::now() < end); ++reads) {
      read();
      if (const auto all = list_checkpoints(checkpoints()); !all.empty()) step = all.back().step;
    }
    EXPECT_GE(step, 60) << "hardly anything was removed meanwhile";
  }
  fs::path checkpoints() const { return temp_.path() / "checkpoints"; }
  static Finished run_checkpoint_command(std::vector<std::string> words) {
    words.insert(words.begin(), {ring_binary(), "checkpoint"});
    return run_process(words);
  }

  // In memory if possible, so that checkpoints come and go as fast as they are read.
  TempFolder temp_{fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path()};

 private:
  [[noreturn]] void write_forever() const {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    log::set_level(log::Level::error);
    try {
      for (std::int64_t step = 2;; ++step) write_small(checkpoints(), step, {1, 0});
    } catch (...) {
      ::_exit(3);
    }
  }
  pid_t child_ = -1;
};

TEST_F(Pruning, TheNewestIsFoundAndLoadedWhole) {
  std::int64_t before = 0;
  repeat_while_pruned([&] {
    SmallState loaded(0);
    const FoundCheckpoint found = read_found([&] { return find_newest_verified(checkpoints()).value(); },
                                             [&](const FoundCheckpoint& f) {
                                               SmallState fresh(0);
                                               load_state(f.path, fresh.state, stream());
                                               load_state(f.path, loaded.state, stream());
                                             });
    EXPECT_GE(found.manifest.step, before);
    before = found.manifest.step;
    EXPECT_TRUE(loaded.equals(SmallState(static_cast<std::uint64_t>(before)))) << "step " << before;
  });
}

TEST_F(Pruning, RemovedCheckpointsAreNotReportedAsDamaged) {
  int removed = 0;
  repeat_while_pruned([&] {
    for (const CheckpointEntry& entry : list_checkpoints(checkpoints())) {
      const Verification v = verify_during_training(entry.path);
      EXPECT_TRUE(v.problems.empty()) << joined(v.problems);
      removed += v.removed;
    }
  });
  EXPECT_GT(removed, 0) << "the race that this is about never happened";
}

TEST_F(Pruning, CommandsSeeTheCurrentCheckpoints) {
  const std::string run = temp_.path().string();
  for (int i = 0; i < 10; ++i) {
    for (const char* command : {"verify", "inspect"}) {
      const Finished done = run_checkpoint_command({command, run});
      EXPECT_EQ(done.code, 0) << command << ": " << done.output;
      EXPECT_EQ(done.output.find("damaged"), std::string::npos) << done.output;
    }
    const Finished compared =
        run_checkpoint_command({"diff", run, run, "--tensors"});  // exit code 1 if the steps were different
    EXPECT_TRUE(contains(compared.output, " of 7 tensors ") || contains(compared.output, " of 7 differ"))
        << compared.output;
  }
}

// At each writing call in turn, the run removes the checkpoint that is being read and has a newer one.
TEST(Resharding, TakesTheNextNewestIfTheRunRemovesACheckpoint) {
  int k = 0;
  for (;; ++k) {
    const TempFolder run, out;
    write_small(run.path(), 1);
    int calls = 0;
    Resharded done;
    {
      const IoWatch watch(out.path().string(), [&](const IoCall& call) {
        const bool writes = call.name == "create" || call.name == "write" || call.name == "rename";
        if (writes && calls++ == k) write_small(run.path(), 2, {1, 0});
        return 0;
      });
      done = reshard_newest(run.path(), out.path(), 2);
      if (calls <= k) break;
    }
    EXPECT_EQ(done.from, run.path() / checkpoint_name(2)) << "at call " << k;
    SmallState loaded(0);
    load_state(done.to, loaded.state, stream());
    EXPECT_TRUE(loaded.equals(SmallState(2))) << "at call " << k;
    for (const auto& entry : fs::directory_iterator(out.path())) EXPECT_EQ(entry.path(), done.to);
  }
  EXPECT_GT(k, 5);
}

TEST(Resharding, SaysIfTheRunRemovedTheCheckpoint) {
  const TempFolder run, out;
  const fs::path path = write_small(run.path(), 1);
  const IoWatch watch(out.path().string(), [&](const IoCall& call) {
    if (call.name == "write") fs::remove_all(path);
    return 0;
  });
  const std::string what = error_of([&] { reshard_newest(path, out.path(), 2); });
  EXPECT_TRUE(contains(what, path.string() + " was removed")) << what;
  EXPECT_TRUE(fs::is_empty(out.path()));
}

TEST(Replaced, IsReadAgainInsteadOfReportedAsDamaged) {
  const TempFolder temp;
  const fs::path path = write_small(temp.path(), 7);
  const FolderIdentity first = identity_of(path);
  EXPECT_EQ(identity_of(path), first);
  write_small(temp.path(), 7);  // replaces the checkpoint
  EXPECT_NE(identity_of(path), first);
  int reads = 0;
  const auto find = [&] { return FoundCheckpoint{path, {}, identity_of(path)}; };
  read_found(find, [&](const FoundCheckpoint&) {
    if (++reads > 2) return;
    write_small(temp.path(), 7);
    throw Error("half of the old one, half of the new one");
  });
  EXPECT_EQ(reads, 3);
  EXPECT_THROW(read_found(find, [](const FoundCheckpoint&) { throw Error("damaged"); }), Error);
}

TEST(Replaced, SaysIfTheCheckpointWasRemovedForGood) {
  const TempFolder temp;
  const fs::path path = write_small(temp.path(), 7);
  bool looked = false;
  const std::string what = error_of([&] {
    read_found(
        [&] {
          if (looked) fail("there is none");
          return FoundCheckpoint{path, {}, identity_of(path)};
        },
        [&](const FoundCheckpoint&) {
          looked = true;
          fs::remove_all(path);
          fail("cannot read");
        });
  });
  EXPECT_TRUE(contains(what, path.string() + " was removed") && contains(what, "there is none")) << what;
  EXPECT_TRUE(verify_during_training(path).removed);
}

}  // namespace
}  // namespace ring::test
