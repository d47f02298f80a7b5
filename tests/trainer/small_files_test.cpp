// Tests the small files of a run on a failing disk. Each file system call fails in turn. Either the error names the
// file and the remedy, or the write succeeds anyway; each file has its old or its new contents, and no other file is
// left.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/failures.h"
#include "checkpoint/files.h"
#include "checkpoint/writer_token.h"
#include "core/files.h"
#include "core/io_error.h"
#include "data/output_file.h"
#include "engine/memory_record.h"
#include "job/secret.h"
#include "kernels/tuning.h"
#include "tests/checkpoint/fixture.h"
#include "tests/io_faults.h"
#include "trainer/metrics.h"

namespace ring::test {
namespace {

using Contents = std::map<std::string, std::string>;  // of files, by path relative to a folder

Contents contents_of(const fs::path& folder) {
  Contents all;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    all[entry.path().lexically_relative(folder)] = {std::istreambuf_iterator<char>(in), {}};
  }
  return all;
}

// Writes one or more files of a run: version 1, and then version 2 over it.
struct Writer {
  const char* name;
  std::function<void(const RunDirectory&, int version)> write;
};
void PrintTo(const Writer& w, std::ostream* out) { *out << w.name; }

void create_run(const RunDirectory& run, int version) {
  Config config;
  config.train.steps = version;
  run.create(config, *bytes_tokenizer(), {}, str("{\"version\": ", version, "}\n"));
}

MemoryRecord memory_record(int version) {
  MemoryRecord r;
  r.budget = r.peak = static_cast<std::uint64_t>(version);
  return r;
}

void write_failures(const RunDirectory& run, int version) {
  Failures failures(run.failures_file(), /*fresh=*/true);
  if (version == 2) failures.on_clean_end();
}

void save_choice(const RunDirectory& run, int version) {
  Tuning tuning(run.path() + "/tuning.yaml");
  tuning.record("key", std::to_string(version));
  tuning.save_if_changed();
}

// Version 1 has lines up to step 9; version 2 resumes from step 4.
void write_lines(const RunDirectory& run, int version) {
  if (version == 2) return void(truncate_metrics(run.metrics_file(), 4));
  std::ofstream out(run.metrics_file());
  for (int step = 1; step < 10; ++step) out << "{\"step\":" << step << "}\n";
}

// An attempt to write version 2 while one call fails.
struct Attempt {
  std::string at;    // the call that failed; "" if the attempt made fewer calls
  std::string said;  // messages thrown or logged
  int error = 0;
};
Attempt write_with(const Writer& w, const RunDirectory& run, int k, int error) {
  Attempt a;
  int calls = 0;
  testing::internal::CaptureStderr();
  {
    const IoWatch watch(run.path(), [&](const IoCall& call) {
      if (calls++ != k) return 0;
      a.at = call.name + " " + call.path;
      a.error = call.name == "open" || call.name == "read" ? EIO : error;  // the only error that a disk gives for these
      return a.error;
    });
    a.said = error_of([&] { w.write(run, 2); });
  }
  a.said += testing::internal::GetCapturedStderr();
  return a;
}

class SmallFiles : public testing::TestWithParam<Writer> {};

INSTANTIATE_TEST_SUITE_P(
    All, SmallFiles,
    testing::Values(Writer{"config_and_tokenizer", create_run},
                    Writer{"memory", [](const auto& run, int v) { write_memory(run, memory_record(v)); }},
                    Writer{"memory_note", [](const auto& run, int v) { write_memory_note(run, 1, memory_record(v)); }},
                    Writer{"failures", write_failures}, Writer{"tuning", save_choice}, Writer{"metrics", write_lines}),
    [](const auto& info) { return info.param.name; });

TEST_P(SmallFiles, AreOldOrNewAndErrorsNameFileAndRemedy) {
  constexpr std::array kErrors = {EIO, ENOSPC, EDQUOT, EROFS};
  const TempFolder calm;
  const RunDirectory calm_run(calm.path());
  GetParam().write(calm_run, 1);
  const Contents before = contents_of(calm.path());
  GetParam().write(calm_run, 2);
  const Contents after = contents_of(calm.path());
  ASSERT_NE(before, after);
  int said = 0;
  for (int k = 0;; ++k) {
    const TempFolder folder;
    const RunDirectory run(folder.path());
    GetParam().write(run, 1);
    const int error = kErrors[static_cast<std::size_t>(k) % kErrors.size()];
    const Attempt a = write_with(GetParam(), run, k, error);
    if (a.at.empty()) break;
    const Contents now = contents_of(folder.path());
    for (const auto& [file, text] : now) {
      ASSERT_TRUE(after.contains(file)) << a.at << ": left " << file;
      const bool old = before.contains(file) && text == before.at(file);
      EXPECT_TRUE(old || text == after.at(file)) << a.at << ": " << file << " is\n" << text;
    }
    EXPECT_GE(now.size(), before.size()) << a.at << " lost a file";
    EXPECT_TRUE(now == after || !a.said.empty()) << a.at << " failed, and nothing was said";
    if (!a.said.empty()) {
      EXPECT_TRUE(contains(a.said, io_error_text(a.error))) << a.at << ": " << a.said;
      EXPECT_TRUE(contains(a.said, run.path())) << a.at << ": " << a.said;
      ++said;
    }
    GetParam().write(run, 2);
    EXPECT_EQ(contents_of(folder.path()), after) << "after " << a.at;
  }
  EXPECT_GT(said, 3);
}

// One message reports lines that could not be written; later lines are complete, even after an incomplete one.
TEST(SmallFilesOfMetrics, LoseOnlyTheLineThatFailed) {
  const TempFolder folder;
  const std::string file = (folder.path() / "metrics.jsonl").string();
  Metrics metrics(folder.path().string());
  int writes = 0;
  testing::internal::CaptureStderr();
  {
    const IoWatch watch(file, [&](const IoCall& call) {
      if (call.name != "write") return 0;
      ++writes;
      return writes == 2 ? EDQUOT : writes == 4 ? kShort : writes == 5 ? EIO : 0;
    });
    for (int step = 1; step <= 5; ++step) metrics.record("train", step, {{"loss", 1.0}});
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(said, "cannot write " + file + ": " + io_error_text(EDQUOT))) << said;
  EXPECT_FALSE(contains(said, io_error_text(EIO))) << said;
  std::vector<std::int64_t> steps;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);)
    if (const auto json = nlohmann::json::parse(line, nullptr, false); json.is_object()) steps.push_back(json["step"]);
  for (const std::int64_t whole : {1, 3, 5}) EXPECT_EQ(std::ranges::count(steps, whole), 1) << "step " << whole;
  EXPECT_TRUE(std::ranges::is_sorted(steps));
}

// Whichever call fails, token numbers only increase, and the previous holder of the token is notified.
TEST(SmallFilesOfWriters, ATokenIsTakenOrTheErrorGivesTheReason) {
  int k = 0;
  for (;; ++k) {
    const TempFolder folder;
    const WriterToken first(folder.path());
    std::int64_t number = 0;
    Writer w{"token", [&](const RunDirectory& run, int) { number = WriterToken(run.path()).number(); }};
    const Attempt a = write_with(w, RunDirectory(folder.path()), k, EROFS);
    if (a.at.empty()) break;
    EXPECT_TRUE(number == 2 || contains(a.said, io_error_text(a.error))) << a.at << ": " << a.said;
    EXPECT_TRUE(number == 2 || contains(a.said, folder.path().string())) << a.at << ": " << a.said;
    EXPECT_GT(WriterToken(folder.path()).number(), std::max<std::int64_t>(1, number)) << a.at;
    EXPECT_THROW(first.check(), WriterSuperseded) << a.at;
  }
  EXPECT_GT(k, 5);
}

// Before a command computes for hours, the folder of its output is checked, with the same error as the file would give.
TEST(SmallFilesOfFolders, AFolderThatCannotBeWrittenGivesTheErrorOfAFile) {
  for (const int error : {EROFS, EACCES}) {
    const TempFolder folder;
    const IoWatch watch(folder.path().string(), [&](const IoCall& call) { return call.name == "access" ? error : 0; });
    const std::string said = error_of([&] { check_writable((folder.path() / "x.h5").string()); });
    EXPECT_TRUE(contains(said, "cannot write " + (folder.path() / "x.h5").string())) << said;
    EXPECT_TRUE(said.ends_with(io_error_text(error))) << said;
  }
}

// errno of flock() on file systems without locks: ENOSYS from some in user space, 524 (the kernel's ENOTSUPP) from some
// network file systems.
TEST(SmallFilesOfLocks, AFileSystemWithoutLocksIsNotTakenForAnotherProcess) {
  for (const int error : {ENOSYS, ENOLCK, EOPNOTSUPP, 524}) {
    const TempFolder folder;
    const RunDirectory run(folder.path());
    const IoWatch watch(run.path(), [&](const IoCall& call) { return call.name == "lock" ? error : 0; });
    const std::string said = error_of([&] { run.lock(); });
    EXPECT_TRUE(contains(said, "cannot lock files")) << error << ": " << said;
    EXPECT_TRUE(contains(said, "run.directory")) << error << ": " << said;
    EXPECT_FALSE(contains(said, "another process")) << error << ": " << said;
    EXPECT_FALSE(run.in_use()) << error;
  }
}

// Some file systems in user space and on networks refuse these calls with EINVAL.
TEST(SmallFilesOfFolders, FilesAreWrittenWhereFoldersCannotBeFlushedNorSpaceReserved) {
  const TempFolder folder;
  std::set<std::string> refused;
  const IoWatch watch(folder.path().string(), [&](const IoCall& call) {
    const bool refuses = call.name == "reserve" || (call.name == "sync" && fs::is_directory(call.path));
    if (refuses) refused.insert(call.name);
    return refuses ? EINVAL : 0;
  });
  const std::string text = (folder.path() / "text").string();
  write_atomically(text, [](FileHandle& file) { file.write("words", 5); });
  EXPECT_EQ(read_file(text), "words");
  File(folder.path() / "shard", File::Mode::create).reserve(1 << 20);
  sync_directory(folder.path());
  EXPECT_EQ(refused, (std::set<std::string>{"reserve", "sync"}));
}

// Models a network file system, where a signal interrupts even calls that do not wait. Only a signal gives EINTR, which
// means nothing about the file: saves, reads and locks succeed as without it.
TEST(SmallFilesOfSignals, ASignalThatInterruptsACallDoesNotFailIt) {
  const TempFolder folder;
  const RunDirectory run(folder.path());
  std::set<std::string> interrupted;
  std::string last;
  const IoWatch watch(folder.path().string(), [&](const IoCall& call) {
    const bool again = std::exchange(last, call.name) == call.name;  // EINTR at every second call at most
    if (again || call.name == "close" || call.name == "access" || call.name == "rename" || call.name == "remove" ||
        call.name == "make_directory")
      return 0;  // the system calls that a signal does not interrupt
    interrupted.insert(call.name);
    return EINTR;
  });
  const auto held = run.lock();
  EXPECT_TRUE(run.in_use());
  const std::string file = (folder.path() / "x").string();
  write_whole(file, "text");
  EXPECT_EQ(read_file(file), "text");
  sync_directory(folder.path());
  File saved(folder.path() / "saved", File::Mode::create);
  saved.reserve(1), saved.resize(2), saved.write_at(0, "ab", 2), saved.sync();
  const std::string secret = (folder.path() / "secret").string();
  make_secret(secret);
  EXPECT_EQ(read_secret(secret) + "\n", read_file(secret));
  EXPECT_EQ(WriterToken(run.path()).number(), 1);
  EXPECT_EQ(interrupted,
            (std::set<std::string>{"create", "lock", "open", "read", "reserve", "resize", "sync", "write"}));
}

// The text in the lock file is read only for messages.
TEST(SmallFilesOfLocks, TheTextOfTheLockFileDoesNotAffectTheLock) {
  const TempFolder folder;
  const RunDirectory run(folder.path());
  const auto held = run.lock();
  const std::string own = str("training this run (process ", ::getpid(), " on ");
  EXPECT_TRUE(contains(error_of([&] { run.lock(); }), own)) << error_of([&] { run.lock(); });
  for (const char* text : {"", "7", "process 7\033[2J on a"}) {
    std::ofstream(run.path() + "/lock") << text;
    const std::string said = error_of([&] { run.lock(); });
    EXPECT_TRUE(contains(said, "training this run. Wait")) << said;
  }
}

TEST(SmallFilesOfLocks, ALockIsHeldOrTheErrorGivesTheReason) {
  for (const int error : {EIO, EROFS, EDQUOT, ENOLCK})
    for (const char* at : {"create", "lock"}) {
      const TempFolder folder;
      const RunDirectory run(folder.path());
      {
        const IoWatch watch(run.path(), [&](const IoCall& call) { return call.name == at ? error : 0; });
        const std::string said = error_of([&] { run.lock(); });
        EXPECT_TRUE(contains(said, run.path() + "/lock: " + io_error_text(error))) << at << ": " << said;
      }
      const auto held = run.lock();
      EXPECT_TRUE(run.in_use()) << at;
    }
}

}  // namespace
}  // namespace ring::test
