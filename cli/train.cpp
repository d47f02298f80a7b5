#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bench/preflight.h"
#include "bench/step.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/settings.h"
#include "core/exit_code.h"
#include "core/joined.h"
#include "core/log.h"
#include "core/standard_streams.h"
#include "core/stop_signal.h"
#include "engine/compression_choice.h"
#include "engine/devices.h"
#include "engine/layout_choice.h"
#include "engine/origin.h"
#include "engine/run_directory.h"
#include "evaluate/session.h"
#include "inspect/profiler.h"
#include "job/inject.h"
#include "job/replacement.h"
#include "job/worker_status.h"
#include "kernels/observers.h"
#include "trainer/kept_state.h"
#include "trainer/nodes.h"
#include "trainer/train.h"

namespace ring {
namespace {

struct TrainingArguments {
  std::string config;
  std::vector<std::string> overrides;
  bool fresh = false, fit = false, allow_changes = false, preflight = false, nvtx = false;
  std::string faults;
  int profile = 0;  // number of steps to profile
};

// Profiles steps for --profile: prints a table and writes a trace into the run's directory.
class ProfiledSteps final : public StepWatcher {
 public:
  ProfiledSteps(int steps, std::shared_ptr<KernelObserver> also, std::string trace_file)
      : profiler_(steps, std::move(also)), trace_file_(std::move(trace_file)) {}
  void before_launch(Trainer& trainer) override { profiler_.before_launch(trainer); }
  bool after_launch(Trainer& trainer) override { return profiler_.after_launch(trainer); }
  std::string report(const ExecContext& ctx) override {
    const Profile profile = profiler_.read_profile();
    if (profile.steps.empty()) {
      log::warn("--profile: the run ended within the ", Profiler::kWarmup,
                " steps before the profile. Start a run with more train.steps");
      return "";
    }
    write_trace(profile, trace_file_);
    return str(profile_table(profile, try_measure_ceilings(ctx, 1.0)), "\ntrace: ", trace_file_);
  }

 private:
  Profiler profiler_;
  std::string trace_file_;
};

// Tells the launcher which node counts do not fit the settings, so that it does not try them. Rank 0 also warns.
void report_unfit_nodes(const Config& c, const WorkerEnvironment& env) {
  const std::int64_t min = own_status().min_nodes, max = own_status().max_nodes;
  if (min == max || env.world != env.nodes * env.local_world) return;
  std::vector<std::string> fit;
  std::uint64_t fits = 0;
  for (const std::int64_t nodes : fitting_node_counts(c, min, max, env.local_world)) {
    fit.push_back(str(nodes));
    if (nodes - min < 64) fits |= std::uint64_t{1} << (nodes - min);
  }
  const std::int64_t counts = max - min + 1;
  if (fit.empty() || std::ssize(fit) == counts) return;
  own_status().unfit_nodes = ~fits & (counts < 64 ? (std::uint64_t{1} << counts) - 1 : ~std::uint64_t{0});
  if (env.rank == 0 && env.restarts == 0)
    log::warn("--nnodes ", min, ":", max, ": the settings fit only these numbers of nodes: ", joined(fit, ", "),
              ". With any other number, the job leaves nodes unused, or waits for more nodes to join");
}

// Trains until the run ends. Throws PeerLost if a peer is lost; `kept` may then receive a copy of the state. On entry,
// `kept` holds such a copy if the previous attempt ended this way.
void train_once(const TrainingArguments& a, StopSignal& signal, KeptState& kept) {
  own_status().start.mark_process_start();
  const WorkerEnvironment env = parse_environment(current_environment());
  const bool goes_on =
      env.restarts > 0 && own_status().begun != 0;  // a restart must not delete what the job has trained
  TrainOptions options{
      .fresh = a.fresh && !goes_on, .fit = a.fit, .allow_changes = a.allow_changes, .restarts = env.restarts};
  options.kept = &kept;
  if (a.nvtx) options.observer = make_range_observer();  // comes first, because it fails if ranges are not available
  const bool leads = env.rank == 0;
  Config config = settings_to_train(a.config, a.overrides, leads);
  report_unfit_nodes(config, env);
  if (leads && config.parallel.islands == 0) log::info("parallel.islands: 0 is ", env.nodes, ", one island per node");
  resolve_islands(config.parallel, env.nodes);
  own_status().start.mark_reached(StartStage::running);
  std::optional<Injection> injection;
  if (!a.faults.empty()) injection.emplace(a.faults, env);
  const std::unique_ptr<Mesh> mesh = join_mesh(config, {{"--fresh", a.fresh ? "given" : "not given"},
                                                        {"--fit", a.fit ? "given" : "not given"},
                                                        {"--allow-changes", a.allow_changes ? "given" : "not given"},
                                                        {"--inject", a.faults.empty() ? "not given" : a.faults},
                                                        {"--preflight", a.preflight ? "given" : "not given"}});
  choose_layout(config, *mesh, options.fresh);
  choose_compression(config, *mesh, options.fresh);
  check_nodes(config.run.path(), env.nodes, *mesh);
  if (a.preflight) run_preflight(make_exec_context_before_run(config, *mesh), *mesh);
  std::optional<ProfiledSteps> profiled;
  if (a.profile > 0)
    options.watcher = &profiled.emplace(a.profile, options.observer, RunDirectory(config.run.path()).profile_file());
  const TrainEnd end = train(config, options, *mesh, signal);
  if (const Injector* faults = injector.load()) faults->warn_of_idle();
  if (mesh->rank() == 0) {
    const std::string dir = config.run.path();
    std::ostream& say = progress_output();  // the run has been saved, so a closed console is not an error
    if (end == TrainEnd::interrupted) say << "stopped early; to resume: " << start_command(env, "train " + dir) << "\n";
    if (end == TrainEnd::out_of_time)
      say << "train.minutes have passed; to resume: " << start_command(env, "train " + dir + " train.minutes=...")
          << "\n";
    const bool chats = std::filesystem::exists(RunDirectory(dir).chat_template_file());
    say << (chats ? "to chat: ringmaster generate " + dir + " --chat"
                  : "to sample: ringmaster generate " + dir + " --prompt \"...\"")
        << std::endl;
  }
  if (end == TrainEnd::interrupted) throw ExitCode{kExitInterrupted};
}

// If another worker dies, this process may survive: it trains again once the launcher has replaced the dead worker.
void run_train(const TrainingArguments& a) {
  const bool leads = parse_environment(current_environment()).rank == 0;
  StopSignal signal(leads);  // blocks signals, so it must be created before any thread
  for (KeptState kept;;) try {
      return train_once(a, signal, kept);
    } catch (const PeerLost&) {
      if (!kept.holds() || !wait_for_replacement([&] { return signal.requested(); })) throw;
    }
}

}  // namespace

void add_train_command(Command app) {
  const Command cmd = app.add_subcommand("train", "Train a model, or resume a stopped run");
  TrainingArguments& a = cmd.runs(run_train);
  cmd.add_option("config", a.config, "Settings file, or the directory of a run to resume").required();
  cmd.add_option("overrides", a.overrides, "Settings to change, such as section.key=value");
  cmd.add_flag("--fresh", a.fresh, "Delete the run's checkpoints and settings and start over");
  cmd.add_flag("--fit", a.fit, "Set train.micro_batch to the fastest size that is predicted to fit into memory");
  cmd.add_flag("--allow-changes", a.allow_changes, "Resume even if settings differ from those of the run");
  cmd.add_flag("--preflight", a.preflight,
               "Test each device and link before the first step; fail if one is faulty or slow");
  cmd.add_number("--profile", a.profile,
                 "Profile this many steps by kernel: prints a table, writes profile.json into the run's directory", 1,
                 100'000);
  cmd.add_flag("--nvtx", a.nvtx, "Emit ranges for Nsight Systems, which slow the steps down");
  cmd.add_option("--inject", a.faults, "Inject faults to test recovery: SEED:FAULT;FAULT..., see docs/inject.md")
      .type_name("SEED:FAULTS");
  cmd.footer(
      "A run that has a checkpoint is resumed. On SIGINT, SIGTERM, SIGHUP and SIGUSR1 the run finishes the step,\n"
      "saves, and ends with exit code 75; the same command then resumes it. Settings: docs/configuration.md, or\n"
      "`ringmaster config docs`.\n"
      "Example: ringmaster train configs/nanogpt_cpu.yaml data.path=shakespeare.h5 train.steps=500");
}

}  // namespace ring
