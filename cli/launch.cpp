// `ringmaster launch`: starts workers on this machine, or on one node of several.

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/dashboard.h"
#include "cli/http_options.h"
#include "cli/launch_options.h"
#include "cli/log_level.h"
#include "comm/gloo/gloo.h"
#include "core/check.h"
#include "core/exit_code.h"
#include "core/joined.h"
#include "job/environment.h"
#include "job/fault_plan.h"
#include "job/secret.h"
#include "launcher/supervisor.h"

namespace ring {
namespace {

constexpr const char* kExamples = R"(Examples:
  ringmaster launch --nproc-per-node 2 -- train configs/quickstart.yaml
      two workers on this machine train together, data parallel
  ringmaster launch --nproc-per-node 4 --threads-per-worker 2 --log-dir logs -- train my.yaml optimizer.lr=1e-3
      four workers with two threads each; writes logs/attempt_0/rank0.log ... rank3.log
  ringmaster launch --make-secret job.secret
  ringmaster launch --nnodes 2 --nproc-per-node auto --rdzv-endpoint 10.0.0.1:29400 --secret-file job.secret -- \
      train my.yaml
      run the same command on two machines, one of which is 10.0.0.1

When a worker fails, the launcher prints its rank and last lines, ends the others on all nodes and restarts all:
training resumes from its newest checkpoint. SIGINT and SIGTERM are passed on once: the workers finish their step,
checkpoint and exit. A second signal ends them at once. As with torchrun, every option can also be set in the
environment: --nproc-per-node by PET_NPROC_PER_NODE.)";

// Returns true for commands whose processes share the work; with other commands, each process would do all of it.
bool shares_work(const std::vector<std::string>& command) {
  if (command[0] == "train") return true;
  return command[0] == "bench" && command.size() > 1 &&
         (command[1] == "step" || command[1] == "context" || command[1] == "calibrate" || command[1] == "links");
}

void check_command(Command app, const LaunchOptions& o) {
  if (shares_work(o.command)) return;
  const bool bench = o.command[0] == "bench" && o.command.size() > 1;
  const std::string name = o.command[0] + (bench ? " " + o.command[1] : "");
  if (!app.find_command(o.command[0]))
    fail("launch: unknown command '", name, "'. Write the command of the workers after --: ringmaster launch -n ",
         o.processes, " -- train config.yaml");
  fail("launch: ", name,
       " runs in one process; only train, bench step, bench context, bench calibrate and bench links support several. "
       "Run it without launch: ringmaster ",
       joined(o.command, " "));
}

// Options as they were typed.
struct LaunchWords {
  std::string nodes, processes, endpoint, master_addr, master_port = "29500", rdzv_conf, tee, redirects, filter;
  std::string signals, secret_file, new_secret, backend, numa_binding = "auto";
  std::string faults, dashboard, token_file;
  int stop_seconds = 300;
  double monitor_seconds = 0.2;
  int hang_seconds = -1;
  bool standalone = false;
};

void pass_on_faults(const std::string& faults, std::vector<std::string>& command) {
  parse_fault_plan(faults);
  if (command[0] != "train") fail("launch: --inject works only with train, got ", command[0]);
  command.insert(command.begin() + 1, "--inject=" + faults);
}

void read_place(const LaunchWords& w, LaunchOptions& o) {
  const AgentEnvironment environment =
      w.standalone ? AgentEnvironment{} : parse_agent_environment(current_environment());
  if (!w.nodes.empty()) read_nodes(w.nodes, o);
  if (w.standalone && o.max_nodes > 1) fail("launch: --standalone allows only one node, but --nnodes is ", w.nodes);
  apply_agent_environment(environment, !w.nodes.empty(), o);
  if (o.max_nodes == 1) return;  // torchrun's users often give an endpoint even for a single node
  if (!w.endpoint.empty())
    o.endpoint = read_rdzv_endpoint(w.endpoint);
  else if (!w.master_addr.empty())
    o.endpoint = read_rdzv_endpoint(w.master_addr + ":" + w.master_port);
  reject_loopback(environment, o);
}

void read_words(const LaunchWords& w, LaunchOptions& o) {
  read_place(w, o);
  o.processes = read_processes(w.processes);
  o.numa_binding = read_numa_binding(w.numa_binding);
  o.on_gpus = std::ranges::find(o.command, "run.device=cpu") == o.command.end();
  if (!w.rdzv_conf.empty()) read_rdzv_conf(w.rdzv_conf, o);
  if (!w.tee.empty()) o.tee = read_streams("--tee", w.tee);
  if (!w.redirects.empty()) o.redirects = read_streams("--redirects", w.redirects);
  if ((!w.tee.empty() || !w.redirects.empty()) && o.log_dir.empty())
    fail("launch: --tee and --redirects write files. Give --log-dir, too");
  if (o.gpu_core_dumps && o.log_dir.empty()) fail("launch: --gpu-core-dumps writes files. Give --log-dir, too");
  if (!w.filter.empty()) o.shown = read_local_ranks(w.filter);
  if (!w.signals.empty()) o.signals = read_signals(w.signals);
  if (!w.faults.empty()) pass_on_faults(w.faults, o.command);
  o.secret = find_secret(w.secret_file);
  o.stop_timeout = std::chrono::seconds(w.stop_seconds);
  if (w.hang_seconds > 0) o.hang.fixed = std::chrono::seconds(w.hang_seconds);
  o.hang.on = w.hang_seconds != 0;
  if (o.comm_timeout_seconds > 0) o.hang.unmeasured = std::chrono::seconds(o.comm_timeout_seconds);
  o.monitor_interval = std::chrono::milliseconds(static_cast<int>(1000 * w.monitor_seconds));
}

void add_nodes(Command launch, LaunchOptions& o, LaunchWords& w) {
  launch.add_option("--nproc-per-node,-n", w.processes, "Workers on this node: a number, auto, gpu or cpu")
      .type_name("N");
  launch.add_option("--nnodes", w.nodes, "Number of nodes, all of which run this command: N, or MIN:MAX (default: 1)")
      .type_name("N");
  launch.add_number("--node-rank", o.node_rank, "Rank of this node (default: in order of arrival)", 0, 4095);
  launch
      .add_option("--rdzv-endpoint", w.endpoint, "Rendezvous of the nodes: an address of node 0 and a free port there")
      .type_name("HOST:PORT");
  launch.add_option("--rdzv-id", o.rdzv_id, "Name of the job, the same on every node").type_name("ID");
  launch.add_option("--rdzv-backend", w.backend, "Accepted for compatibility with torchrun; both values mean the same")
      .one_of({"static", "c10d"});
  launch
      .add_option("--rdzv-conf", w.rdzv_conf,
                  "seconds: join_timeout, last_call_timeout, return_timeout, keep_alive_timeout (docs/launching.md)")
      .type_name("KEY=VALUE,...");
  launch.add_option("--master-addr", w.master_addr, "Host of --rdzv-endpoint").type_name("HOST");
  launch.add_option("--master-port", w.master_port, "Port of --rdzv-endpoint (default: 29500)").type_name("PORT");
  launch.add_flag("--standalone", w.standalone, "Run one node and ignore a rendezvous given by the environment");
  launch.add_option("--local-addr", o.local_addr, "Address at which other nodes reach this one").type_name("ADDRESS");
  launch
      .add_option("--secret-file", w.secret_file,
                  "File with the secret that nodes of this job share (or RINGMASTER_SECRET)")
      .type_name("FILE");
  launch.add_option("--make-secret", w.new_secret, "Write a new secret to a file and exit").type_name("FILE");
}

void add_workers(Command launch, LaunchOptions& o, LaunchWords& w) {
  launch.add_number("--max-restarts", o.max_restarts,
                    "Restarts of all workers after failures without progress in between (default: 3)", 0, 1'000'000);
  launch.add_number("--threads-per-worker", o.threads_per_worker, "Threads of each worker (default: cores / workers)",
                    1, kMaxThreads);
  launch.add_number("--timeout", o.comm_timeout_seconds,
                    "Seconds that a rank waits for others to start and in one operation (default: 60 and 300)", 1,
                    kMaxSeconds);
  launch.add_number(
      "--hang-limit", w.hang_seconds,
      "Seconds without progress after which workers are ended; 0: never (default: 5 times the 99th percentile of "
      "recent steps, at least 10)",
      0, kMaxSeconds);
  launch.add_number("--stop-timeout,--shutdown-timeout", w.stop_seconds,
                    "Seconds to checkpoint and exit after SIGINT or SIGTERM (default: 300)", 1, kMaxSeconds);
  launch.add_number("--monitor-interval", w.monitor_seconds,
                    "Seconds between checks of the workers if the kernel does not report their end (default: 0.2)",
                    0.01, 60);
  launch.add_option("--inject", w.faults, "Inject faults to test recovery: SEED:FAULT;FAULT..., see docs/inject.md")
      .type_name("SEED:FAULTS");
  launch
      .add_option("--numa-binding", w.numa_binding,
                  "Cores and memory of each worker: auto (its GPU's NUMA node), none, node, socket, exclusive or "
                  "core-complex")
      .type_name("HOW");
  launch
      .add_option("--signals-to-handle", w.signals,
                  "Signals to pass on (default: SIGTERM,SIGINT,SIGHUP,SIGUSR1,SIGUSR2)")
      .type_name("NAMES");
}

void add_logs(Command launch, LaunchOptions& o, LaunchWords& w) {
  launch.add_option("--log-dir", o.log_dir, "Write the output of each rank to DIR/attempt_N/rankN.log")
      .type_name("DIR");
  launch.add_flag("--gpu-core-dumps", o.gpu_core_dumps,
                  "Write a core dump of a failed GPU to DIR/attempt_N/rankN.cudacore, for cuda-gdb");
  launch.add_option("--tee,-t", w.tee, "Local ranks that write to file and console: 3 (all), or 0:3,1:3,...")
      .type_name("RANKS");
  launch.add_option("--redirects,-r", w.redirects, "Local ranks that write only to their file, in the form of --tee")
      .type_name("RANKS");
  launch.add_option("--local-ranks-filter", w.filter, "Local ranks to show on the console, such as 0,1 (default: all)")
      .type_name("RANKS");
  launch
      .add_option(
          "--dashboard", w.dashboard,
          "Serve a page of the job, /metrics (Prometheus) and /healthz at http://127.0.0.1:PORT; 0: a free port")
      .type_name("[HOST:]PORT");
  launch
      .add_option("--dashboard-token-file", w.token_file,
                  "File with the token of the dashboard's clients; required if other machines can reach it")
      .type_name("FILE");
}

// Reads options from environment variables, e.g. --nproc-per-node from PET_NPROC_PER_NODE.
void name_variables(Command launch) {
  for (Option option : launch.named_options()) {
    if (option.name() == "--help" || option.name() == "--make-secret" ||
        option.name() == "--inject")  // a forgotten variable must not inject failures
      continue;
    std::string name = "PET_" + option.name().substr(2);
    std::ranges::transform(name, name.begin(),
                           [](char c) { return c == '-' ? '_' : static_cast<char>(std::toupper(c)); });
    option.envname(name);
  }
}

int launch_and_show(Command app, LaunchOptions& o, const LaunchWords& w) {
  if (w.dashboard.empty() && !w.token_file.empty()) fail("launch: --dashboard-token-file requires --dashboard PORT");
  if (w.dashboard.empty()) return launch(o);
  JobBoard board;
  o.board = &board;
  const Dashboard dashboard(http_options("--dashboard", w.dashboard, "--dashboard-token-file", w.token_file),
                            run_directory_of(app, o.command), board);
  return launch(o);
}

void run_launch(Command app, LaunchOptions& o, LaunchWords& w) {
  if (!w.new_secret.empty()) return make_secret(w.new_secret);
  const char* operators = std::getenv("PET_N_PROC_PER_NODE");  // the name that Kubeflow's operator uses
  if (w.processes.empty() && operators) w.processes = operators;
  if (w.processes.empty() && o.command.empty()) throw UsageError("--nproc-per-node and command are required");
  if (w.processes.empty()) throw UsageError("--nproc-per-node is required");
  if (o.command.empty()) throw UsageError("command is required");
  read_words(w, o);
  check_command(app, o);
  const Option level = app.find_command("launch").find_option("--log-level");
  if (level.given()) add_log_level_arguments(level.values().front(), o.command);
  if ((o.processes > 1 || o.max_nodes > 1) && !gloo_available())
    fail(
        "launch: several workers require Gloo, which this build lacks. Install libgloo-dev, then configure and build "
        "again");
  if (const int code = launch_and_show(app, o, w)) throw ExitCode{code};
}

}  // namespace

void add_launch_command(Command app) {
  auto options = std::make_shared<LaunchOptions>();
  auto words = std::make_shared<LaunchWords>();
  options->max_restarts = 3;
  const Command launch =
      app.add_subcommand("launch", "Start several workers that train together, on one machine or several");
  launch.footer(kExamples);
  add_nodes(launch, *options, *words);
  add_workers(launch, *options, *words);
  add_logs(launch, *options, *words);
  name_variables(launch);
  launch
      .add_option("command", options->command,
                  "Command of each worker, after --: train, or bench step, context, calibrate or links, with arguments")
      .type_name("COMMAND");
  launch.set_callback([options, words, app] { run_launch(app, *options, *words); });
}

}  // namespace ring
