// Writers that are killed, run out of space, or keep few checkpoints: one whole checkpoint always exists.

#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <random>

#include "core/log.h"
#include "tests/checkpoint/fixture.h"

namespace ring::test {
namespace {

constexpr std::int64_t kElements = 60'000;

// A state whose every element is the step, so that a mixture of two steps shows.
struct Uniform {
  std::vector<Tensor> tensors;
  std::int64_t step = 0;
  State state;
  explicit Uniform(std::int32_t value) : step(value) {
    for (const char* name : {"model.a", "model.b", "optimizer.a", "optimizer.b"}) {
      tensors.push_back(Tensor::zeros({kElements}, DType::i32, stream()));
      std::fill_n(tensors.back().data<std::int32_t>(), kElements, value);
      state.add(name, tensors.back());
    }
    state.add("step", &step);
  }
  bool all_equal(std::int64_t value) const {
    for (const Tensor& t : tensors)
      for (std::int64_t i = 0; i < kElements; ++i)
        if (t.data<std::int32_t>()[i] != value) return false;
    return step == value;
  }
};

void write_uniform(const fs::path& folder, std::int32_t step, const Retention& keep) {
  const Uniform u(step);
  write_checkpoint(folder, step, u.state.snapshot(stream()), "{}", keep);
}

[[noreturn]] void write_forever(const fs::path& folder, std::int32_t from) {
  log::set_level(log::Level::error);
  try {
    remove_stale_entries(folder);
    for (std::int32_t step = from;; ++step) write_uniform(folder, step, {1, 0});
  } catch (...) {
    ::_exit(3);
  }
}

TEST(Crash, AKilledWriterAlwaysLeavesOneWholeCheckpoint) {
  const TempFolder folder;
  const auto start = std::chrono::steady_clock::now();
  write_uniform(folder.path(), 1, {1, 0});
  const auto one_write = std::chrono::steady_clock::now() - start;
  const auto longest = std::clamp<std::int64_t>(one_write / std::chrono::microseconds(1) * 5 / 2, 10'000, 400'000);
  std::mt19937 random(12345);
  std::int64_t last = 1, advanced = 0, unfinished = 0;
  for (int kill = 0; kill < 30; ++kill) {
    const pid_t child = ::fork();
    if (child == 0) write_forever(folder.path(), static_cast<std::int32_t>(last + 1));
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<std::int64_t>(random()) % longest));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";

    const auto found = find_newest_verified(folder.path());
    ASSERT_TRUE(found);
    EXPECT_GE(found->manifest.step, last);
    EXPECT_EQ(found->path, list_checkpoints(folder.path()).back().path) << "a committed checkpoint did not verify";
    Uniform loaded(0);
    load_state(found->path, loaded.state, stream());
    EXPECT_TRUE(loaded.all_equal(found->manifest.step)) << "step " << found->manifest.step;
    advanced += found->manifest.step > last;
    for (const auto& entry : fs::directory_iterator(folder.path()))
      unfinished += contains(entry.path().filename().string(), ".tmp-");
    last = found->manifest.step;
  }
  EXPECT_GT(advanced, 0);    // the children did commit,
  EXPECT_GT(unfinished, 0);  // and some were killed before a commit
}

// Writes step 2 in a child process, in which files may not grow beyond `limit` bytes and the signal for that is
// ignored, as on a full disk. Returns the error; "" if there was none.
std::string write_with_limit(const fs::path& folder, rlim_t limit) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit cap{limit, limit};
    ::setrlimit(RLIMIT_FSIZE, &cap);
    const std::string error = error_of([&] { write_uniform(folder, 2, {1, 0}); });
    const bool sent = ::write(ends[1], error.data(), error.size()) >= 0;
    std::exit(sent ? 0 : 1);  // runs libhdf5's own clean-up, too
  }
  ::close(ends[1]);
  std::string error;
  char block[512];
  for (ssize_t n; (n = ::read(ends[0], block, sizeof block)) > 0;) error.append(block, static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  return error;
}

TEST(Crash, AFileThatCannotGrowLeavesThePreviousCheckpoint) {
  const TempFolder folder;
  write_uniform(folder.path(), 1, {1, 0});
  const rlim_t shard = fs::file_size(folder.path() / checkpoint_name(1) / "shard-00000.h5");
  for (rlim_t limit :
       {rlim_t{0}, rlim_t{1}, rlim_t{700}, rlim_t{4096}, shard / 2, shard - 3000, shard - 1, shard, shard + 1000}) {
    const std::string error = write_with_limit(folder.path(), limit);
    EXPECT_TRUE(contains(error, "shard-00000.h5")) << limit << ": " << error;
    const auto found = find_newest_verified(folder.path());
    ASSERT_TRUE(found && found->manifest.step == 1) << limit;
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
  }
  EXPECT_EQ(write_with_limit(folder.path(), shard + 65536), "");
  EXPECT_EQ(find_newest_verified(folder.path())->manifest.step, 2);
}

TEST(Retention, KeepsTheLastAndEveryNth) {
  const TempFolder folder;
  for (int step = 10; step <= 70; step += 10) write_small(folder.path(), step, {2, 30});
  EXPECT_EQ(steps(folder.path()), (std::vector<std::int64_t>{30, 60, 70}));
  write_small(folder.path(), 80, {1, 0});
  EXPECT_EQ(steps(folder.path()), (std::vector<std::int64_t>{80}));
}

TEST(Retention, ADamagedNewerCheckpointNeverReplacesAVerifiedOne) {
  const TempFolder folder;
  write_small(folder.path(), 10, {1, 0});
  const fs::path newer = write_small(folder.path(), 20, {2, 0});
  fs::remove(newer / "shard-00000.h5");
  ASSERT_EQ(find_newest_verified(folder.path())->manifest.step, 10);
  write_small(folder.path(), 15, {1, 0});
  EXPECT_EQ(steps(folder.path()), (std::vector<std::int64_t>{15, 20}));
  EXPECT_EQ(find_newest_verified(folder.path())->manifest.step, 15);
  write_small(folder.path(), 20, {1, 0});  // replaces the damaged checkpoint
  EXPECT_EQ(steps(folder.path()), (std::vector<std::int64_t>{20}));
  EXPECT_EQ(find_newest_verified(folder.path())->manifest.step, 20);
}

TEST(Retention, ADamagedOlderCheckpointDoesNotCount) {
  const TempFolder folder;
  for (const int step : {10, 18}) write_small(folder.path(), step, {2, 0});
  write_small(folder.path(), 20, {.keep_last = 2, .damaged = {18}});
  EXPECT_EQ(steps(folder.path()), (std::vector<std::int64_t>{10, 18, 20}));
  write_small(folder.path(), 18, {.keep_last = 2, .damaged = {18}});  // whole once it is written again
  EXPECT_EQ(steps(folder.path()), (std::vector<std::int64_t>{10, 18, 20}));
}

// The damaged checkpoint must go: it would take the space of the next attempts.
TEST(Retention, AFailedReadBackRemovesOnlyTheNewCheckpoint) {
  const TempFolder folder;
  write_small(folder.path(), 10);
  const SmallState s(20);
  // Between the commit and the read-back of two ranks, a byte of the new shard changes, as on a bad disk.
  const auto errors = run_ranks(2, [&](const WriterGroup& group) {
    WriterGroup mine = group;
    int calls = 0;
    mine.all_gather = [&](const std::string& own) {
      auto all = group.all_gather(own);
      if (group.rank == 0 && ++calls == 3) {
        const fs::path shard = folder.path() / checkpoint_name(20) / "shard-00000.h5";
        std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
        const auto at = static_cast<std::streamoff>(fs::file_size(shard)) - 1;
        const int old = (file.seekg(at), file.get());
        file.seekp(at).put(static_cast<char>(old ^ 1));
      }
      return all;
    };
    write_checkpoint(folder.path(), 20, s.state.snapshot(stream()), "{}", {1, 0}, mine);
  });
  for (const std::string& e : errors) EXPECT_TRUE(contains(e, "shard-00000.h5")) << e;
  EXPECT_EQ(steps(folder.path()), (std::vector<std::int64_t>{10}));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
  EXPECT_EQ(find_newest_verified(folder.path())->manifest.step, 10);
}

}  // namespace
}  // namespace ring::test
