// The faults that --inject accepts and refuses.

#include "job/fault_plan.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "core/check.h"
#include "job/inject.h"

namespace ring {
namespace {

Fault parse_one_fault(const std::string& text) {
  const FaultPlan plan = parse_fault_plan(text);
  EXPECT_EQ(plan.faults.size(), 1u) << text;
  return plan.faults.at(0);
}

TEST(FaultPlan, SaysRankAndTime) {
  const FaultPlan plan = parse_fault_plan(
      "7:kill@rank=1,step=250,phase=backward;slow@rank=0+2,factor=1.5;io@rank=0,call=fsync,error=EIO,nth=3;"
      "kill@rank=any,mean=1m;stop@agent=1,after=500ms");
  EXPECT_EQ(plan.seed, 7u);
  ASSERT_EQ(plan.faults.size(), 5u);
  const Fault& first = plan.faults[0];
  EXPECT_EQ(first.kind, FaultKind::kill);
  EXPECT_EQ(first.whom.listed, std::vector<int>{1});
  EXPECT_EQ(first.step, 250);
  EXPECT_EQ(first.phase, RunPhase::backward);
  EXPECT_EQ(first.attempt, 0);
  EXPECT_EQ(first.text, "kill@rank=1,step=250,phase=backward");
  EXPECT_EQ(plan.faults[1].whom.listed, (std::vector<int>{0, 2}));
  EXPECT_EQ(plan.faults[1].factor, 1.5);
  EXPECT_EQ(plan.faults[2].call, IoCall::fsync);
  EXPECT_EQ(plan.faults[2].error, EIO);
  EXPECT_EQ(plan.faults[2].nth, 3);
  EXPECT_TRUE(plan.faults[3].whom.drawn());
  EXPECT_EQ(plan.faults[3].mean, 60);
  EXPECT_EQ(plan.faults[3].attempt, std::nullopt) << "a chance of every attempt";
  EXPECT_TRUE(plan.faults[4].whom.agents);
  EXPECT_EQ(plan.faults[4].after, 0.5);
}

TEST(FaultPlan, OmittedKeysGetDefaults) {
  EXPECT_TRUE(parse_one_fault("1:kill").whom.drawn());
  EXPECT_EQ(parse_one_fault("1:kill").attempt, 0);
  EXPECT_EQ(parse_one_fault("1:kill@probability=0.5").attempt, std::nullopt);
  EXPECT_EQ(parse_one_fault("1:kill@probability=0.5,attempt=2").attempt, 2);
  EXPECT_EQ(parse_one_fault("1:kill@attempt=2,probability=0.5").attempt, 2);
  EXPECT_EQ(parse_one_fault("1:kill@step=3,attempt=each").attempt, std::nullopt);
  EXPECT_TRUE(parse_one_fault("1:io@rank=all,call=write,error=short").whom.all);
}

TEST(FaultPlan, NamesThePlaceAndTheKnownWords) {
  const auto error = [](const std::string& text) {
    try {
      parse_fault_plan(text);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return "nothing is wrong with " + text;
  };
  const auto expect = [&](const std::string& text, const std::string& message) {
    EXPECT_NE(error(text).find(message), std::string::npos) << error(text);
  };
  expect("7:kil", "character 3: 'kil'");
  expect("7:kil", "kill, stop, slow, corrupt, io, memory, device");
  expect("7:kill@rank=1;slow@phase=forwards,factor=2", "character 26: 'forwards'");
  expect("7:kill@rank=1;slow@phase=forwards,factor=2", "load, data, ");
  expect("7:kill@factor=2", "character 8: 'factor'");
  expect("7:kill@factor=2", "rank step phase ");
  expect("7:kill@rank=x", "character 13: 'x' is not a rank");
  expect("7:kill@after=5", "'5' is not a time");
  expect("7:kill@step=0", "'0' is not a whole number");
  expect("7:kill@step", "'step' has no value");
  expect("7:kill@step=1,step=2", "is given twice");
  expect("7:io@error=EFOO", "'EFOO' is not");
  expect("7:io@error=EFOO", "EIO, ENOSPC, EDQUOT, EROFS, short");
  expect("7:io@call=fsync,error=short", "requires call=write or call=read");
  expect("7:io@call=fsync", "needs either error or wait");
  expect("7:slow", "needs either factor or wait");
  expect("7:slow@factor=nan", "'nan' is not a number");
  expect("7:kill@mean=5s,step=3", "remove step, phase and probability");
  expect("7:kill@rank=1,agent=1", "write two faults");
  expect("7:device@after=5s", "'after' is not a key");
  expect("7:device@after=5s", "rank step phase attempt probability");
  expect("7:device@phase=commit", "which no device does");
  expect("kill@rank=1", "'kill@rank=1' is not a seed");
  expect("7", "write SEED:FAULT;FAULT...");
  expect("7:", "'' is not a known kind");
}

// Clocks of faults that wait, here for an hour, end with the process. The test fails if it hangs.
TEST(FaultPlan, ClocksCanBeStopped) {
  Injector injector(parse_fault_plan("7:kill@after=1h;stop@mean=10h"), {});
  injector.stop_clocks();
}

}  // namespace
}  // namespace ring
