// Runs that cannot fit are refused with the bytes of each kind and the limit.
#include "engine/memory_check.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "checkpoint/memory_tier.h"
#include "core/check.h"
#include "core/devices.h"
#include "engine/dry_step.h"
#include "job/agent_memory.h"
#include "model/decoder.h"
#include "optim/outer_optimizer.h"
#include "parallel/plan.h"
#include "tests/trainer/tiny.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kGiB = std::uint64_t{1} << 30;

MemoryNeed need_of(std::uint64_t bytes_of_each_kind, int processes) {
  StateMemory own{
      .weights = bytes_of_each_kind, .gradients = bytes_of_each_kind, .optimizer_states = 2 * bytes_of_each_kind};
  return {own, own.total() * static_cast<std::uint64_t>(processes), processes};
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

TEST(MemoryCheck, AnExactFitPassesAndAByteMoreDoesNot) {
  const std::vector<MemoryBound> bounds = {{"the machine", 8 * kGiB, 3 * kGiB, kGiB}};
  EXPECT_EQ(shortage_message(need_of(kGiB, 1), bounds), "");
  MemoryNeed more = need_of(kGiB, 1);
  more.own.weights += 1, more.here += 1;
  expect_parts(shortage_message(more, bounds),
               {"weights 1.00 GiB, gradients 1.00 GiB, optimizer states 2.00 GiB, in total 4.00 GiB",
                "3.00 GiB of 8.00 GiB and 1.00 GiB of swap (the machine)"});
  EXPECT_EQ(shortage_message(more, {}), "");  // no limit is known
}

TEST(MemoryCheck, TheCopyForCheckpointsCounts) {
  MemoryNeed need = need_of(kGiB, 1);
  need.own.snapshot = 3 * kGiB, need.here += 3 * kGiB;
  EXPECT_EQ(need.own.total(), 7 * kGiB);
  expect_parts(shortage_message(need, {{"the machine", 8 * kGiB, 6 * kGiB, 0}}),
               {"optimizer states 2.00 GiB, copies for checkpoints 3.00 GiB, in total 7.00 GiB"});
}

TEST(MemoryCheck, ProcessesShareTheMachineAndNotTheirOwnLimits) {
  const MemoryBound machine{"the machine", 8 * kGiB, 6 * kGiB, 0}, own{"ulimit", 5 * kGiB, 5 * kGiB, 0, true};
  EXPECT_EQ(shortage_message(need_of(kGiB, 1), {machine, own}), "");
  expect_parts(shortage_message(need_of(kGiB, 2), {machine, own}), {"8.00 GiB in the 2 processes", "(the machine)"});
  const std::string limited =
      shortage_message(need_of(3 * kGiB / 2, 1), {{"the machine", 80 * kGiB, 60 * kGiB, 0}, own});
  expect_parts(limited, {"in total 6.00 GiB", "5.00 GiB of 5.00 GiB (ulimit)"});
}

// No GPU is known here. The host memory of its states is compared with the memory of this machine.
TEST(MemoryCheck, StatesOnTheHostShareItsMemory) {
  Config c = test::tiny_config();
  c.checkpoint.mode = SaveMode::blocking;
  c.run.device = DeviceChoice::cuda;
  c.train.precision = PrecisionChoice::bf16;
  const double machine = static_cast<double>(tightest_bound(memory_bounds()).total);
  c.model.width = 128 * static_cast<std::int64_t>(std::sqrt(machine / 5) / 128);  // an MLP with more elements than fit
  c.model.mlp_width = 4 * c.model.width;
  c.model.layers = 1;
  const auto mesh = mesh_of_one();
  const auto problem = [&](StateOffload offload) -> std::string {
    c.optimizer.offload = offload;
    try {
      check_memory(c, *mesh, nullptr);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  if (!backend_available(Backend::cuda)) {
    EXPECT_EQ(problem(StateOffload::none), "");
  }
  expect_parts(problem(StateOffload::states), {"cannot fit into memory: optimizer states", "parallel.zero"});
  expect_parts(problem(StateOffload::all), {"cannot fit into memory: master copies", "optimizer states"});
  expect_parts(problem(StateOffload::weights), {"cannot fit into memory: weights", "master copies"});
  if (backend_available(Backend::cuda)) return;
  c.train.linears = "fp8_blocks";
  c.optimizer.groups = {{.match = {"*.mlp.*.weight"}, .frozen = true}};
  expect_parts(problem(StateOffload::none),
               {"cannot fit into memory: exact values of frozen FP8 weights ", "in total"});
}

TEST(MemoryCheck, CountsAveragesAndWatchedSteps) {
  Config c = test::tiny_config();
  const double machine = static_cast<double>(tightest_bound(memory_bounds()).total);
  c.model.width = 128 * static_cast<std::int64_t>(std::sqrt(machine / 5) / 128);
  c.model.layers = 1;
  c.train.ema = 0.999;
  c.train.diagnostics_interval = 10;
  try {
    check_memory(c, *mesh_of_one(), nullptr);
    ADD_FAILURE() << "it fits";
  } catch (const Error& e) {
    expect_parts(e.what(), {"average of the weights ", "copies for train.diagnostics_interval "});
  }
}

TEST(MemoryCheck, CountsTheOuterOptimizer) {
  Config c = test::tiny_config();
  c.parallel.local_steps = 2;
  const auto mesh = mesh_of_one();
  Decoder model(c.model.resolved());
  model.parameters().lay_out();
  const OwnedShard owned = own_everything(model.parameters());
  const auto elements = static_cast<std::uint64_t>(model.parameters().num_elements());
  const std::uint64_t most_pieces = 4 * model.parameters().declared().size();
  const std::uint64_t padded = elements + kParamAlign * most_pieces;
  for (const std::int64_t bits : {32, 8, 4}) {
    c.parallel.outer_bits = bits;
    const auto memory = OuterOptimizer::host_memory(c.parallel, model, owned, mesh->group(kDataAxes), false);
    const std::uint64_t states = bits == 32 ? 8 : 12;  // bytes of theta, momentum and residual of a weight
    EXPECT_GE(memory.states, states * elements);
    EXPECT_LE(memory.states, states * padded);
    const std::uint64_t message = elements * static_cast<std::uint64_t>(bits) / 8;
    EXPECT_GE(memory.buffers, 8 * elements + message);
    EXPECT_LE(memory.buffers, 8 * padded + message + elements / 128 + 128 * most_pieces);
    // On a CPU, a step's memory includes the outer optimizer.
    const ActivationPlan plan = ActivationPlan::uniform(c.model.layers, Recompute::none, false);
    Config plain = c;
    plain.parallel.local_steps = 0;
    const DryStep step = dry_step(c, 1, plan), without = dry_step(plain, 1, plan);
    EXPECT_EQ(step.peak() - without.peak(), memory.states + memory.buffers);
    EXPECT_EQ(step.host_outer, 0u);
    // A plan covers one of three islands, but counts the messages of all three.
    ParallelConfig three = c.parallel;
    three.islands = 3;
    const auto with_messages = OuterOptimizer::host_memory(three, model, owned, mesh->group(kDataAxes), false);
    EXPECT_EQ(dry_step(c, {1, 0, 3}, plan).peak() - without.peak(), with_messages.states + with_messages.buffers);
  }
  const double machine = static_cast<double>(tightest_bound(memory_bounds()).total);
  c.model.width = 128 * static_cast<std::int64_t>(std::sqrt(machine / 5) / 128);
  c.model.layers = 1;
  try {
    check_memory(c, *mesh, nullptr);
    ADD_FAILURE() << "it fits";
  } catch (const Error& e) {
    expect_parts(e.what(), {"outer optimizer of parallel.local_steps "});
  }
}

// A small cgroup, like that of a container, and a model of some megabytes.
TEST(MemoryCheck, ASmallCgroupIsTooSmallForAModel) {
  const std::string root = (fs::temp_directory_path() / str("ringmaster-group-", getpid())).string();
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  };
  write("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 67108864 kB\nSwapFree: 0 kB\n");
  write("/proc/self/cgroup", "0::/pod\n");
  write("/proc/self/mountinfo", "31 20 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  write("/sys/fs/cgroup/pod/memory.max", str(48 * kMiB));
  write("/sys/fs/cgroup/pod/memory.current", str(16 * kMiB));
  ModelConfig config = test::tiny_config().model;
  const auto problem = [&] {
    Decoder model(config);
    const StateMemory own =
        state_memory(model, 0, 1, 0, {}, [](const OwnedShard& o) { return 8 * static_cast<std::uint64_t>(o.size); });
    return shortage_message({own, own.total(), 1}, memory_bounds(root));
  };
  EXPECT_EQ(problem(), "");
  config.width = 512;
  config.layers = 8;
  config.mlp_width = 2048;
  expect_parts(problem(), {"cannot fit into memory", "32.0 MiB of 48.0 MiB (/sys/fs/cgroup/pod/memory.max)"});
  fs::remove_all(root);
}

// Checks run in a child process. Its address space may grow by `states` times the training state.
class MemoryCheckDeathTest : public testing::Test {
 protected:
  MemoryCheckDeathTest() {
    config_ = test::tiny_config();
    config_.model.width = 512;
    config_.model.mlp_width = 2048;
    config_.model.layers = 8;
    config_.run.device = DeviceChoice::cpu;
  }
  [[noreturn]] void check_with(double states, const Saving& expected) const {
    Decoder model(config_.model);
    const double state = static_cast<double>(state_memory(model, 0, 1, 0, {}, [](const OwnedShard& o) {
                                               return static_cast<std::uint64_t>(o.size);
                                             }).total());
    long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto most = static_cast<rlim_t>(static_cast<double>(pages * sysconf(_SC_PAGESIZE)) + states * state);
    const rlimit limit{most, most};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    const AgentMemory kept;
    const MemoryTier tier(kept.files(), "this", kept.key());
    const Saving s = check_memory(config_, *mesh_of_one(), &tier);
    _exit(s.mode == expected.mode && s.keeps == expected.keeps ? 0 : 1);
  }
  Config config_;
};

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers take terabytes of address space
// The copy for checkpoints takes three quarters of the state, and the launcher's snapshot as much again.
TEST_F(MemoryCheckDeathTest, FewerCopiesAreTakenWithAWarning) {
  const auto ended = testing::ExitedWithCode(0);
  config_.checkpoint.mode = SaveMode::async;
  EXPECT_EXIT(
      check_with(1.35, {SaveMode::blocking, false}), ended,
      "checkpoint.mode: .*too little memory .*: weights .*, copies for checkpoints .*, in total .*address space");
  EXPECT_EXIT(check_with(4, {SaveMode::async, false}), ended, "^$");
  config_.checkpoint.memory_interval = 10;
  EXPECT_EXIT(check_with(2.1, {SaveMode::async, false}), ended,
              "checkpoint.memory_interval: .*too little memory .*: weights .*address space");
  EXPECT_EXIT(check_with(4, {SaveMode::async, true}), ended, "^$");
}
#endif

}  // namespace
}  // namespace ring
