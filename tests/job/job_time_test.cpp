// Time lost by a job, from its restarts and saves.

#include "job/job_time.h"

#include <gtest/gtest.h>

namespace ring {
namespace {

constexpr double kClose = 0.5;  // seconds by which a busy machine may delay this test

TEST(JobTime, ARestartLosesTheTimeSinceTheStateThatItResumes) {
  JobTime job;
  job.begin_ms = job.since_ms = now_ms() - 100'000;
  job.on_steps_begin(0, 0, 0);
  EXPECT_EQ(job.lost(), 0) << "to start is no loss";
  job.save_seconds += 2;
  job.on_save(50, now_ms() - 32'000, 2);  // so that steps continued 30 s ago
  job.on_steps_begin(1, 50, now_ms() - 5'000);
  EXPECT_NEAR(job.restart_seconds, 30, kClose) << "not since the checkpoint was written";
  job.on_steps_begin(2, 50, now_ms() - 5'000);
  EXPECT_NEAR(job.restart_seconds, 30, kClose) << "what was counted is not counted again";
  EXPECT_NEAR(job.lost(), 32, kClose);
  EXPECT_NEAR(job.goodput(), 0.68, 0.01);
  EXPECT_EQ(job.text().find("2 restarts, 32"), 0u) << job.text();
}

// The process died after the commit, before it learned of it.
TEST(JobTime, AnUnreportedCheckpointCountsFromItsCreation) {
  JobTime job;
  job.begin_ms = job.since_ms = now_ms() - 100'000;
  job.on_save(50, now_ms() - 40'000, 0);
  job.on_steps_begin(1, 100, now_ms() - 5'000);
  EXPECT_NEAR(job.restart_seconds, 5, kClose);
}

TEST(JobTime, WithoutACheckpointAllTimeIsLost) {
  JobTime job;
  job.begin_ms = job.since_ms = now_ms() - 10'000;
  job.on_steps_begin(1, 0, 0);
  EXPECT_NEAR(job.restart_seconds, 10, kClose);
  EXPECT_NEAR(job.goodput(), 0, 0.05);
}

// The counts survive restarts, whose processes know only the job's page.
TEST(JobTime, RecoveriesAreCounted) {
  JobTime job;
  job.on_out_of_memory(2);  // of earlier jobs
  job.on_steps_begin(0, 100, 0);
  EXPECT_EQ(job.text().find("0 restarts, 0 s lost"), 0u) << job.text();
  job.on_step_done(130);
  ++job.failed_saves;
  job.on_out_of_memory(3);
  job.on_steps_begin(1, 120, 0);
  job.on_step_done(125);
  job.on_steps_begin(2, 125, 0);
  EXPECT_EQ(job.text().find("2 restarts, 1 failed save, memory ran out once, 10 steps computed again, "), 0u)
      << job.text();
  job.on_step_done(150);
  job.bad_steps = job.failed_saves = 2;
  job.on_rollback(130);
  job.on_out_of_memory(4);
  EXPECT_EQ(job.text().find("2 restarts, 2 failed saves, 2 bad steps, memory ran out 2 times, 30 steps computed again"),
            0u)
      << job.text();
}

TEST(JobTime, WithoutALauncherTheJobBeginsWithItsSteps) {
  JobTime job;
  job.on_steps_begin(0, 0, 0);
  EXPECT_EQ(job.lost(), 0);
  EXPECT_EQ(job.goodput(), 1);
}

}  // namespace
}  // namespace ring
