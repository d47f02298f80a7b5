// Steps continue while a save is written. All ranks learn at once that it ended or failed.
#include "checkpoint/saver.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>

#include "checkpoint/reader.h"
#include "comm/gloo/gloo.h"
#include "comm/host.h"
#include "job/worker_status.h"
#include "tests/comm/mesh_ranks.h"
#include "tests/io_faults.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

// A gate that blocks callers of pass() until it is opened.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void await_somebody() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int waiting_ = 0;
};

// A slow disk: every sync in `folder` waits at the gate.
class SlowDisk : public Gate {
 public:
  explicit SlowDisk(const std::string& folder)
      : watch_(folder, [this](const IoCall& c) { return c.name == "sync" ? (pass(), 0) : 0; }) {}

 private:
  IoWatch watch_;
};

// One rank's part of a run: its half of a tensor, which every step changes.
struct Part {
  Tensor rows;
  std::int64_t step = 0;
  State state;
  Part(int rank, int world) : rows(Tensor::zeros({1000, 3}, DType::f32, Stream::cpu(1))) {
    state.add({"rows", {1000 * world, 3}, {1000 * rank, 0}, rows});
    state.add("step", &step);
  }
  void take_step() {
    ++step;
    for (std::int64_t i = 0; i < rows.numel(); ++i) rows.data<float>()[i] = static_cast<float>(step);
  }
};

class Savers : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  static std::unique_ptr<Mesh> alone() { return Mesh::join(WorkerEnvironment{}, {}, {.axes = {{"dp", 1}}}); }
  Saver make(const CheckpointConfig& config, Mesh& mesh, double patience = 60) {
    const SaverParts parts{.saving = saving_of(config), .patience_seconds = patience};
    return Saver(config, checkpoints(), mesh, parts, [this](const SaveOutcome& o) {
      const std::lock_guard lock(mutex_);
      outcomes_.push_back(o);
    });
  }
  static void begin(Saver& saver, const Part& part) {
    saver.begin_save(part.state, Stream::cpu(1), part.step, "{}", {100, 0});
  }
  std::string checkpoints() const { return (folder_ / "checkpoints").string(); }
  // Expects that every number in the checkpoint of a step is that step.
  void expect_of_its_step(std::int64_t step, int ranks = 1) {
    for (int rank = 0; rank < ranks; ++rank) {
      Part loaded(rank, ranks);
      load_state(fs::path(checkpoints()) / checkpoint_name(step), loaded.state, Stream::cpu(1));
      EXPECT_EQ(loaded.step, step);
      for (std::int64_t i = 0; i < loaded.rows.numel(); ++i)
        ASSERT_EQ(loaded.rows.data<float>()[i], static_cast<float>(step));
    }
  }
  static std::string error_of(const std::function<void()>& act) {
    try {
      act();
    } catch (const SaveFailed& e) {
      return e.what();
    }
    return "";
  }

  fs::path folder_ = fs::temp_directory_path() / str("ringmaster-saver-", getpid());
  std::mutex mutex_;
  std::vector<SaveOutcome> outcomes_;
};

TEST_F(Savers, StepsContinueWhileADiskIsSlow) {
  const auto mesh = alone();
  SlowDisk disk(checkpoints());
  Saver saver = make({}, *mesh);
  Part part(0, 1);
  part.take_step();
  begin(saver, part);  // would never return if it waited for the disk
  disk.await_somebody();
  for (int i = 0; i < 50; ++i) part.take_step();
  EXPECT_TRUE(saver.is_writing());
  EXPECT_EQ(saver.saved_step(), -1);
  EXPECT_TRUE(list_checkpoints(checkpoints()).empty());
  disk.open();
  saver.end_save(part.step);
  EXPECT_FALSE(saver.is_writing());
  EXPECT_EQ(saver.saved_step(), 1);
  expect_of_its_step(1);
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_TRUE(outcomes_[0].saved());
  EXPECT_EQ(outcomes_[0].bytes, part.state.bytes());
  EXPECT_GE(outcomes_[0].seconds, outcomes_[0].stall_seconds);
}

TEST_F(Savers, ASaveWaitsForTheOneBefore) {
  const auto mesh = alone();
  SlowDisk disk(checkpoints());
  Saver saver = make({}, *mesh);
  Part part(0, 1);
  part.take_step();
  begin(saver, part);
  disk.await_somebody();
  part.take_step();
  std::atomic<bool> opened = false;
  std::thread opener([&, signs = own_status().phases.load()] {  // `phases` grows with each look at the save before
    while (own_status().phases < signs + 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    opened = true;
    disk.open();
  });
  begin(saver, part);
  EXPECT_TRUE(opened);
  opener.join();
  saver.end_last_save(part.step);
  ASSERT_EQ(outcomes_.size(), 2u);
  EXPECT_LT(outcomes_[0].waited_seconds, outcomes_[1].waited_seconds);
  EXPECT_GE(outcomes_[1].stall_seconds, outcomes_[1].waited_seconds);
  for (const std::int64_t step : {1, 2}) expect_of_its_step(step);
}

// The saver does not wait for ever, and begins no other save before the first one has ended.
TEST_F(Savers, StepsContinueWhileADiskHangs) {
  const auto mesh = alone();
  SlowDisk disk(checkpoints());
  Saver saver = make({}, *mesh, 2);
  Part part(0, 1);
  part.take_step();
  begin(saver, part);
  disk.await_somebody();
  const std::int64_t signs = own_status().phases;
  part.take_step();
  begin(saver, part);
  EXPECT_GT(own_status().phases, signs) << "who watches would think that the steps hang";
  begin(saver, part);
  EXPECT_TRUE(saver.is_writing());
  ASSERT_EQ(outcomes_.size(), 2u);
  EXPECT_EQ(outcomes_[0].step, 2);
  EXPECT_EQ(outcomes_[0].error.find("the save of step 1 has not ended"), 0u) << outcomes_[0].error;
  EXPECT_NE(outcomes_[0].error.find("it waits for rank 0 ("), std::string::npos) << outcomes_[0].error;
  EXPECT_LT(outcomes_[1].stall_seconds, outcomes_[0].stall_seconds) << "patience is over";
  EXPECT_EQ(saver.failures(), 2);
  disk.open();
  saver.end_save(part.step);
  EXPECT_EQ(saver.saved_step(), 1);
  EXPECT_EQ(saver.failures(), 0);
  begin(saver, part);
  saver.end_last_save(part.step);
  for (const std::int64_t step : {1, 2}) expect_of_its_step(step);
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(Savers, BothModesWriteTheSameFiles) {
  const auto mesh = alone();
  std::map<std::string, std::string> files[2];
  for (const SaveMode mode : {SaveMode::async, SaveMode::blocking}) {
    CheckpointConfig config;
    config.mode = mode;
    Saver saver = make(config, *mesh);
    Part part(0, 1);
    for (int i = 0; i < 3; ++i) part.take_step();
    begin(saver, part);
    EXPECT_EQ(saver.saved_step(), mode == SaveMode::blocking ? 3 : -1);
    part.take_step();
    saver.end_last_save(part.step);
    for (const auto& entry : fs::directory_iterator(fs::path(checkpoints()) / checkpoint_name(3)))
      files[mode == SaveMode::async][entry.path().filename().string()] = text_of(entry.path());
    fs::remove_all(checkpoints());
  }
  EXPECT_EQ(files[0].size(), 2u);
  EXPECT_EQ(files[0], files[1]);
}

TEST_F(Savers, AFailedSaveIsRetriedLaterAndLater) {
  const auto mesh = alone();
  for (const SaveMode mode : {SaveMode::async, SaveMode::blocking}) {
    CheckpointConfig config;
    config.mode = mode;
    Saver saver = make(config, *mesh);
    Part part(0, 1);
    std::vector<std::int64_t> tried;
    {
      const IoWatch full(checkpoints(), [](const IoCall& c) { return c.name == "write" ? ENOSPC : 0; });
      part.take_step();
      begin(saver, part);
      saver.end_save(part.step);
      tried.push_back(part.step);
      while (part.step < 40) {
        part.take_step();
        if (!saver.retry_due(part.step)) continue;
        begin(saver, part);
        saver.end_save(part.step);
        tried.push_back(part.step);
      }
    }
    EXPECT_EQ(tried, (std::vector<std::int64_t>{1, 2, 4, 8, 16, 32}));
    EXPECT_EQ(saver.failures(), 6);
    EXPECT_EQ(saver.saved_step(), -1);
    EXPECT_TRUE(fs::is_empty(checkpoints()));
    EXPECT_NE(outcomes_.back().error.find("No space left on device"), std::string::npos) << outcomes_.back().error;
    begin(saver, part);
    saver.end_last_save(part.step);
    EXPECT_EQ(saver.failures(), 0);
    EXPECT_FALSE(saver.retry_due(1000));
    expect_of_its_step(40);
    fs::remove_all(checkpoints());
  }
}

TEST_F(Savers, ASaveBeingRetriedIsNotDue) {
  const auto mesh = alone();
  Gate gate;
  std::atomic<bool> fails = true;
  const IoWatch watch(checkpoints(), [&](const IoCall& c) {
    if (c.name == "sync" && !fails) gate.pass();
    return c.name == "sync" && fails ? EIO : 0;
  });
  Saver saver = make({}, *mesh);
  Part part(0, 1);
  part.take_step();
  begin(saver, part);
  saver.end_save(part.step);
  part.take_step();
  EXPECT_TRUE(saver.retry_due(2));
  fails = false;
  begin(saver, part);
  gate.await_somebody();
  EXPECT_FALSE(saver.retry_due(1000)) << "steps would wait for it";
  gate.open();
  saver.end_last_save(part.step);
  expect_of_its_step(2);
}

TEST_F(Savers, AFailureEndsTheRunIfToldToAndAtTheEnd) {
  const auto mesh = alone();
  for (const SaveMode mode : {SaveMode::async, SaveMode::blocking}) {
    CheckpointConfig config;
    config.mode = mode;
    const IoWatch broken(checkpoints(), [](const IoCall& c) { return c.name == "rename" ? EIO : 0; });
    Saver goes_on = make(config, *mesh);
    const Part part(0, 1);
    begin(goes_on, part);
    EXPECT_NE(error_of([&] { goes_on.end_last_save(0); }).find("Input/output error"), std::string::npos);
    config.on_error = AfterSaveError::stop;
    Saver stops = make(config, *mesh);
    EXPECT_NE(error_of([&] {
                begin(stops, part);
                stops.end_save(0);
              }).find("cannot rename"),
              std::string::npos);
  }
}

std::string on_ranks(int world, const std::function<void(Mesh&)>& rank) {
  return test::run_mesh({.axes = {{"dp", world}}}, rank);
}

class DistSavers : public Savers {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
    Savers::SetUp();
  }
};

// While rank 1's disk is slow, the ranks exchange messages like steps do.
TEST_F(DistSavers, StepsExchangeMessagesDuringASave) {
  Gate gate;
  const IoWatch watch(checkpoints(), [&](const IoCall& c) {
    return c.name == "sync" && c.path.find("shard-00001") != std::string::npos ? (gate.pass(), 0) : 0;
  });
  EXPECT_EQ(on_ranks(2,
                     [&](Mesh& mesh) {
                       Saver saver = make({}, mesh);
                       Part part(mesh.rank(), 2);
                       part.take_step();
                       begin(saver, part);
                       gate.await_somebody();
                       for (int i = 0; i < 20; ++i) {
                         part.take_step();
                         const double sum = sum_host(mesh.host(), 1);
                         RING_CHECK(sum == 2 && saver.is_writing(), "sum ", sum);
                       }
                       mesh.host().barrier().synchronize();
                       gate.open();
                       saver.end_last_save(part.step);
                       RING_CHECK(saver.saved_step() == 1, "saved ", saver.saved_step());
                     }),
            "");
  expect_of_its_step(1, 2);
}

TEST_F(DistSavers, TheRankWhoseDiskHangsIsNamed) {
  Gate gate;
  const IoWatch watch(checkpoints(), [&](const IoCall& c) {
    return c.name == "sync" && c.path.find("shard-00001") != std::string::npos ? (gate.pass(), 0) : 0;
  });
  EXPECT_EQ(on_ranks(2,
                     [&](Mesh& mesh) {
                       Saver saver = make({}, mesh, 0.2);
                       Part part(mesh.rank(), 2);
                       part.take_step();
                       begin(saver, part);
                       part.take_step();
                       begin(saver, part);
                       RING_CHECK(saver.failures() == 1 && saver.is_writing(), "it was waited for");
                       mesh.host().barrier().synchronize();
                       gate.open();
                       saver.end_last_save(part.step);
                       RING_CHECK(saver.saved_step() == 1, "saved ", saver.saved_step());
                     }),
            "");
  ASSERT_EQ(outcomes_.size(), 4u);
  EXPECT_NE(outcomes_[0].error.find("it waits for rank 1 ("), std::string::npos) << outcomes_[0].error;
  expect_of_its_step(1, 2);
}

TEST_F(DistSavers, AFailureOfOneRankIsReportedOnAllAndAllContinue) {
  for (const SaveMode mode : {SaveMode::async, SaveMode::blocking}) {
    std::atomic<bool> full = true;
    const IoWatch watch(checkpoints(), [&](const IoCall& c) {
      return full && c.name == "write" && c.path.find("shard-00001") != std::string::npos ? ENOSPC : 0;
    });
    EXPECT_EQ(on_ranks(2,
                       [&](Mesh& mesh) {
                         CheckpointConfig config;
                         config.mode = mode;
                         Saver saver = make(config, mesh);
                         Part part(mesh.rank(), 2);
                         part.take_step();
                         begin(saver, part);
                         saver.end_save(part.step);
                         RING_CHECK(saver.failures() == 1 && saver.retry_due(2) && !saver.retry_due(1), "failed");
                         mesh.host().barrier().synchronize();
                         full = false;
                         mesh.host().barrier().synchronize();
                         part.take_step();
                         begin(saver, part);
                         saver.end_last_save(part.step);
                         RING_CHECK(saver.saved_step() == 2, "saved ", saver.saved_step());
                       }),
              "");
    EXPECT_EQ(outcomes_.size(), 4u);
    EXPECT_NE(outcomes_.front().error.find("rank 1: cannot write"), std::string::npos) << outcomes_.front().error;
    expect_of_its_step(2, 2);
    EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints()), fs::directory_iterator()), 1);
    fs::remove_all(checkpoints());
    outcomes_.clear();
  }
}

}  // namespace
}  // namespace ring::test
