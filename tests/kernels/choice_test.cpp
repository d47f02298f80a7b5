// Candidates chosen by measurement, on a stream whose clock advances only when candidates run.
#include "kernels/choice.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "kernels/tuning.h"

namespace ring::test {
namespace {

class FakeTime final : public EventImpl {
 public:
  explicit FakeTime(double at) : at_(at) {}
  bool done() const override { return false; }
  void synchronize() const override { count_host_wait(); }
  double host_seconds() const override { return at_; }

 private:
  double at_;
};

// A stream on which candidates take the time that the test sets.
class FakeStream final : public StreamImpl {
 public:
  FakeStream() { device = {Backend::cpu, 0}; }
  Event record() override { return {}; }
  Event record_time() override { return Event(std::make_shared<FakeTime>(clock)); }
  bool recording() const override { return records; }
  std::string device_name() const override { return model; }
  void wait(const Event&) override {}
  void synchronize() override {}
  void copy(void*, const void*, std::size_t) override {}
  void fill_zero(void*, std::size_t) override {}

  double clock = 0;
  bool records = false;
  std::string model = "Fake 1";
  std::map<std::string, double> seconds;  // per candidate; negative: it runs out of memory
  std::map<std::string, int> calls;
};

struct Job {
  std::string shape = "small";
  bool easy = true;  // candidate "a" runs only easy jobs
};
Cost cost(const Job&) { return {}; }

template <char name>
void run_fake(const Job&, const ExecContext& ctx) {
  auto& stream = static_cast<FakeStream&>(ctx.stream.impl());
  const double seconds = stream.seconds[{name}];
  if (seconds < 0) throw OutOfMemory("no memory", "None");
  stream.clock += seconds;
  ++stream.calls[{name}];
}

const Kernel<Job>::Candidate& choose_job(const Kernel<Job>& slot, const Job& args, const ExecContext& ctx) {
  return choose_measured(
      slot, args, ctx, [](const Job& j) { return j.shape; }, [](const Job& j, const ExecContext&) { return j; });
}

class Choice : public testing::Test {
 protected:
  Choice() : registered_(static_cast<std::ptrdiff_t>(kernel_registry().size())), slot("job", choose_job) {
    slot.add(Backend::cpu, {"a", run_fake<'a'>, [](const Job& j, const ExecContext&) { return j.easy; }, 20});
    slot.add(Backend::cpu, {"b", run_fake<'b'>, nullptr, 10});
    slot.add(Backend::cpu, {"c", run_fake<'c'>, nullptr, 5});
    slot.add(Backend::cpu, {"z", run_fake<'z'>, nullptr, 0});
    stream->seconds = {{"a", 3e-3}, {"b", 1e-3}, {"c", 2e-3}, {"z", 1e-6}};
    ctx.tuning = std::make_shared<Tuning>("");
  }
  void TearDown() override {
    kernel_registry().erase(kernel_registry().begin() + registered_, kernel_registry().end());
  }

  std::string chosen(const Job& job = {}) const { return std::string(slot.choose(job, ctx).name); }
  // Returns the chosen name. Expects that nothing was measured.
  std::string known(const Job& job = {}) const {
    const auto before = stream->calls;
    const std::uint64_t waits = host_wait_count();
    std::string name = chosen(job);
    EXPECT_EQ(stream->calls, before) << name << " was measured again";
    EXPECT_EQ(host_wait_count(), waits);
    return name;
  }

 private:
  const std::ptrdiff_t registered_;

 protected:
  const std::shared_ptr<FakeStream> stream = std::make_shared<FakeStream>();
  ExecContext ctx{Stream(stream)};
  Kernel<Job> slot;
};

TEST_F(Choice, IsTheFastestAndIsMeasuredOnce) {
  EXPECT_EQ(chosen(), "b");
  EXPECT_GT(stream->calls["a"], 0);
  EXPECT_GT(stream->calls["c"], 0);
  EXPECT_EQ(known(), "b");
  stream->calls.clear();
  slot({}, ctx);
  EXPECT_EQ(stream->calls, (std::map<std::string, int>{{"b", 1}}));
}

TEST_F(Choice, IsByPriorityWithoutMeasuredChoices) {
  ctx.tuning = nullptr;
  EXPECT_EQ(known(), "a");
  EXPECT_EQ(known({.easy = false}), "b");
}

TEST_F(Choice, ByRuleTakesTheFirstWithoutMeasuring) {
  ctx.tuning = std::make_shared<Tuning>(Tuning::Sources{.measures = false});
  EXPECT_EQ(known(), "a");
  EXPECT_EQ(known({.easy = false}), "b");
  EXPECT_NE(ctx.tuning->text(), "");  // a resume must repeat the choice
}

TEST_F(Choice, ByRuleKeepsWhatTheRunRecorded) {
  ctx.tuning->record("job, Fake 1, a|b|c, deterministic, small", "c");
  const std::string recorded = ctx.tuning->text();
  ctx.tuning = std::make_shared<Tuning>(Tuning::Sources{.measures = false});
  ctx.tuning->merge_record(recorded);
  EXPECT_EQ(known(), "c");
}

// The slow `supports` of a candidate is called only if the choice is unknown or names this candidate.
TEST_F(Choice, AKnownChoiceNeedsNoSlowTestOfOthers) {
  static int slow_tests = 0;
  Kernel<Job> calls("job", choose_job);
  const auto slow = [](const Job& j, const ExecContext&) { return ++slow_tests > 0 && j.easy; };
  const auto always = [](const Job&, const ExecContext&) { return true; };
  calls.add(Backend::cpu, {"a", run_fake<'a'>, slow, 20, always});
  calls.add(Backend::cpu, {"b", run_fake<'b'>, nullptr, 10});
  calls.add(Backend::cpu, {"c", run_fake<'c'>, nullptr, 5});
  EXPECT_EQ(calls.choose({}, ctx).name, "b");
  EXPECT_EQ(slow_tests, 1);
  EXPECT_EQ(calls.choose({}, ctx).name, "b");
  EXPECT_EQ(slow_tests, 1);
  stream->seconds["a"] = 1e-4;
  EXPECT_EQ(calls.choose({"large"}, ctx).name, "a");
  EXPECT_EQ(calls.choose({"large", false}, ctx).name, "b");  // "a" is the fastest, but does not support it
  EXPECT_EQ(calls.choose({"large"}, ctx).name, "a");
  EXPECT_EQ(slow_tests, 4);
  // If "a" does not support the call, the choice among the others is found without another test of "a".
  EXPECT_EQ(calls.choose({"hard", false}, ctx).name, "b");
  EXPECT_EQ(slow_tests, 5);
  EXPECT_EQ(calls.choose({"hard", false}, ctx).name, "b");
  EXPECT_EQ(slow_tests, 5);
}

TEST_F(Choice, DependsOnTheVersionOfALibrary) {
  static std::string version;
  add_choice_library("d", [] { return version; });
  Kernel<Job> calls("job", choose_job);
  calls.add(Backend::cpu, {"a", run_fake<'a'>, nullptr, 20});
  calls.add(Backend::cpu, {"d", run_fake<'d'>, nullptr, 10});
  stream->seconds["d"] = 1e-3;
  version = "lib 1";
  EXPECT_EQ(calls.choose({}, ctx).name, "d");
  stream->seconds["d"] = 1;
  EXPECT_EQ(calls.choose({}, ctx).name, "d");
  version = "lib 2";
  EXPECT_EQ(calls.choose({}, ctx).name, "a");
  EXPECT_NE(ctx.tuning->text().find("small, lib 2\": \"a\""), std::string::npos) << ctx.tuning->text();
}

TEST_F(Choice, OfASingleCandidateIsNotMeasured) {
  Kernel<Job> alone("job", choose_job);
  alone.add(Backend::cpu, {"a", run_fake<'a'>, nullptr, 20});
  alone.add(Backend::cpu, {"z", run_fake<'z'>, nullptr, 0});
  const std::string empty = ctx.tuning->text();
  EXPECT_EQ(alone.choose({}, ctx).name, "a");
  EXPECT_TRUE(stream->calls.empty());
  EXPECT_EQ(ctx.tuning->text(), empty);
}

TEST_F(Choice, WithoutACandidateIsAnError) {
  Kernel<Job> none("job", choose_job);
  none.add(Backend::cpu, {"a", run_fake<'a'>, [](const Job&, const ExecContext&) { return false; }, 20});
  EXPECT_THROW(none.choose({}, ctx), Error);
}

TEST_F(Choice, ALastResortRunsIfNothingElseDoes) {
  chosen();
  EXPECT_EQ(stream->calls["z"], 0);  // although it is the fastest
  Kernel<Job> last("job", choose_job);
  last.add(Backend::cpu, {"a", run_fake<'a'>, [](const Job&, const ExecContext&) { return false; }, 20});
  last.add(Backend::cpu, {"z", run_fake<'z'>, nullptr, 0});
  EXPECT_EQ(last.choose({}, ctx).name, "z");
}

TEST_F(Choice, ComesFromTheFile) {
  const auto path = std::filesystem::temp_directory_path() / str("ringmaster-choice-", getpid(), ".yaml");
  std::filesystem::remove(path);
  ctx.tuning = std::make_shared<Tuning>(path);
  EXPECT_EQ(chosen(), "b");
  ctx.tuning->save_if_changed();
  const std::string before = ctx.tuning->text();
  stream->seconds["c"] = 1e-6;  // a new measurement would choose c
  ctx.tuning = std::make_shared<Tuning>(path);
  EXPECT_EQ(known(), "b");
  EXPECT_EQ(ctx.tuning->text(), before);
  std::filesystem::remove(path);
  ctx.tuning = std::make_shared<Tuning>(path);
  EXPECT_EQ(chosen(), "c");
}

// Entries of the file for a different key must not be used: each change below would give a different choice.
TEST_F(Choice, DependsOnShapeDeviceAndDeterminism) {
  const auto differs = [&](const char* what, const Job& job) {
    chosen();
    stream->seconds["c"] = 1e-6;
    EXPECT_EQ(known(), "b") << what;
    EXPECT_EQ(chosen(job), "c") << what;
    EXPECT_EQ(known(job), "c") << what;
    stream->seconds["c"] = 2e-3;
    ctx.tuning = std::make_shared<Tuning>("");
  };
  differs("shape", {.shape = "large"});
  differs("candidates", {.easy = false});
  chosen();
  stream->seconds["c"] = 1e-6;
  ctx.deterministic = false;
  EXPECT_EQ(chosen(), "c");
  ctx.deterministic = true;
  EXPECT_EQ(known(), "b");
  stream->model = "Fake 2";
  EXPECT_EQ(chosen(), "c");
}

TEST_F(Choice, AWrongEntryIsMeasuredAgain) {
  chosen();
  ctx.tuning->record("job, Fake 1, a|b|c, deterministic, small", "z");
  EXPECT_EQ(chosen(), "b");
  EXPECT_EQ(known(), "b");
}

TEST_F(Choice, NoiseDoesNotDecide) {
  stream->seconds = {{"a", 1e-3}, {"b", 0.99e-3}, {"c", 0.98e-3}};
  EXPECT_EQ(chosen(), "a");
}

TEST_F(Choice, ACandidateThatRunsOutOfMemoryLoses) {
  stream->seconds["b"] = -1;
  EXPECT_EQ(chosen(), "c");
  stream->seconds = {{"a", -1}, {"b", -1}, {"c", -1}};
  EXPECT_EQ(chosen({.shape = "large"}), "a");
}

// The first call may include the loading of a kernel, which can take longer than the call itself.
TEST_F(Choice, LongCallsRunTwiceAndHopelessOnesOnce) {
  ctx.tuning = std::make_shared<Tuning>(Tuning::Sources{.seconds = 0.1});
  stream->seconds = {{"a", 2}, {"b", 1e-3}, {"c", 1}};
  EXPECT_EQ(chosen(), "b");
  EXPECT_EQ(stream->calls["a"], 2);
  EXPECT_EQ(stream->calls["c"], 1);
  EXPECT_GT(stream->calls["b"], 90);
  EXPECT_LT(stream->calls["b"], 110);
}

TEST_F(Choice, LoadingTimeDoesNotCount) {
  stream->seconds = {{"a", 1}, {"b", 1.2}, {"c", 1.4}};
  EXPECT_EQ(chosen(), "a");
  EXPECT_EQ(stream->calls["b"], 2);
  EXPECT_EQ(stream->calls["c"], 1);
}

// Recorded work cannot be timed, and must choose the same later.
TEST_F(Choice, IsByPriorityAndStaysIfWorkIsRecorded) {
  stream->records = true;
  EXPECT_EQ(known(), "a");
  stream->records = false;
  EXPECT_EQ(known(), "a");
  EXPECT_EQ(chosen({.shape = "large"}), "b");
  stream->records = true;
  EXPECT_EQ(known({.shape = "large"}), "b");
}

class Names final : public KernelObserver {
 public:
  void call(const KernelCall& c, const ExecContext&, const std::function<void()>& run) override {
    seen.emplace_back(c.candidate);
    run();
  }
  std::vector<std::string> seen;
};

TEST_F(Choice, ObserversSeeOnlyTheChosenCandidate) {
  const auto names = std::make_shared<Names>();
  ctx.observer = names;
  slot({}, ctx);
  slot({}, ctx);
  EXPECT_EQ(names->seen, (std::vector<std::string>{"b", "b"}));
}

}  // namespace
}  // namespace ring::test
