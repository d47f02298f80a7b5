// `ringmaster launch`: several workers on this machine.

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command_names.h"
#include "cli/commands.h"
#include "cli/number_option.h"
#include "comm/environment.h"
#include "comm/gloo/gloo.h"
#include "core/check.h"
#include "core/exit_code.h"
#include "core/joined.h"
#include "launcher/agent.h"

namespace ring {
namespace {

constexpr const char* kExamples = R"(Examples:
  ringmaster launch --nproc-per-node 2 -- train configs/quickstart.yaml
      two workers on this machine train together, data parallel
  ringmaster launch --nproc-per-node 4 --threads-per-worker 2 --log-dir logs -- train my.yaml optimizer.lr=1e-3
      four workers of two threads each; logs/rank0.log ... logs/rank3.log

SIGINT and SIGTERM are passed on once: the workers finish their step, checkpoint and exit; a second one ends them at
once. When a worker fails, it is named with its last lines, the others are ended, and its exit code is returned.)";

// Those in which several processes do one thing together; of any other each would do all.
bool shares_work(const std::vector<std::string>& command) {
  if (command[0] == "train") return true;
  return command[0] == "bench" && command.size() > 1 && (command[1] == "step" || command[1] == "context");
}

void check_command(const CLI::App& app, const LaunchOptions& o) {
  if (shares_work(o.command)) return;
  const bool bench = o.command[0] == "bench" && o.command.size() > 1;
  const std::string name = o.command[0] + (bench ? " " + o.command[1] : "");
  if (!find_command(app, o.command[0]))
    fail("launch: '", name,
         "' is no command of ringmaster. Write what each worker runs after --: ringmaster launch -n ", o.processes,
         " -- train config.yaml");
  fail("launch: ", name,
       " works in one process; several are for train, bench step and bench context. Run it alone: ringmaster ",
       joined(o.command, " "));
}

}  // namespace

void add_launch_command(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  auto stop_seconds = std::make_shared<int>(300);
  CLI::App* launch = app.add_subcommand("launch", "Start several workers on this machine that train together");
  launch->footer(kExamples);
  add_number(*launch, "--nproc-per-node,-n", options->processes, "Workers to start", 1, 4096)->required();
  add_number(*launch, "--threads-per-worker", options->threads_per_worker,
             "Threads of each worker (default: cores / workers)", 1, kMostThreads);
  launch->add_option("--log-dir", options->log_dir, "Write the output of each rank to DIR/rankN.log")->type_name("DIR");
  add_number(*launch, "--timeout", options->comm_timeout_seconds,
             "Seconds a rank waits for the others, to arrive and in one operation (default: 60 and 300)", 1,
             kMostSeconds);
  add_number(*launch, "--stop-timeout", *stop_seconds,
             "Seconds to checkpoint and exit after SIGINT or SIGTERM (default: 300)", 1, kMostSeconds);
  launch
      ->add_option("command", options->command,
                   "What each worker runs, after --: train, bench step or bench context, and its arguments")
      ->required()
      ->type_name("COMMAND");
  launch->callback([options, stop_seconds, &app] {
    check_command(app, *options);
    if (options->processes > 1 && !gloo_available())
      fail("launch: ", options->processes,
           " workers need Gloo, which this build lacks: install libgloo-dev, then configure and build again");
    options->stop_timeout = std::chrono::seconds(*stop_seconds);
    if (const int code = run_agent(*options)) throw ExitCode{code};
  });
}

}  // namespace ring
