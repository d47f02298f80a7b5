#include <CLI/CLI.hpp>

#include "core/fields.h"
#include "core/standard_streams.h"
#include "kernels/observers.h"
#include "trainer/commands/commands.h"
#include "trainer/commands/number_option.h"
#include "trainer/origin.h"
#include "trainer/run_directory.h"
#include "trainer/session.h"
#include "trainer/stop_signal.h"
#include "trainer/train.h"

namespace ring {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  TrainOptions options;
};

// CONFIG is a settings file, or a run to go on with.
Config load(const Arguments& a, bool speaks) {
  Config config;
  if (const RunDirectory run(a.config); run.exists()) {
    config = settings_to_go_on(run, speaks);
    config.run.directory = run.path();
    override_config(config, a.overrides);
  } else {
    load_config(config, a.config, a.overrides);
  }
  return config;
}

void run(const Arguments& a) {
  if (a.options.nvtx) make_range_observer();  // where there are none, nothing has happened yet
  const WorkerEnvironment env = parse_environment(current_environment());
  const bool leads = env.rank == 0;
  const Config config = load(a, leads);
  StopSignal signal(leads);  // first: it must be there before any thread
  const std::unique_ptr<Mesh> mesh =
      join_mesh(config, {{"--fresh", a.options.fresh ? "given" : "not given"},
                         {"--allow-changes", a.options.allow_changes ? "given" : "not given"}});
  const TrainEnd end = train(config, a.options, *mesh, signal);
  if (mesh->rank() == 0) {
    const std::string dir = config.run.path();
    std::ostream& say = progress_output();  // the run has saved: a closed console takes nothing from it
    if (end == TrainEnd::interrupted) say << "stopped early; to go on: " << start_command(env, "train " + dir) << "\n";
    if (end == TrainEnd::out_of_time)
      say << "the time is over; to go on: " << start_command(env, "train " + dir + " train.minutes=...") << "\n";
    say << "to sample: ringmaster generate " << dir << " --prompt \"...\"" << std::endl;
  }
  if (end == TrainEnd::interrupted) throw ExitCode{kExitInterrupted};
}

}  // namespace

void add_train_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("train", "Train a model, or go on with a run that was stopped");
  auto a = std::make_shared<Arguments>();
  cmd->add_option("config", a->config, "Settings file, or the directory of a run to go on with")->required();
  cmd->add_option("overrides", a->overrides, "Settings to change, as section.key=value");
  cmd->add_flag("--fresh", a->options.fresh, "Delete the run's checkpoints and settings and start over");
  cmd->add_flag("--allow-changes", a->options.allow_changes, "Resume although settings differ from those of the run");
  add_number(*cmd, "--profile", a->options.profile,
             "Watch so many steps kernel by kernel: a table, and profile.json in the run's directory", 1, 100'000);
  cmd->add_flag("--nvtx", a->options.nvtx, "Ranges for Nsight Systems; steps are slower with them");
  cmd->footer(
      "A run that has a checkpoint is resumed. SIGINT and SIGTERM finish the step, save, and end with exit code 75;\n"
      "the same command then goes on. Settings: docs/configuration.md, or `ringmaster config docs`.\n"
      "Example: ringmaster train configs/nanogpt_cpu.yaml data.path=shakespeare.h5 train.steps=500");
  cmd->callback([a] { run(*a); });
}

}  // namespace ring
