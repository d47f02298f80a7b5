#include "launcher/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "core/counted.h"
#include "core/cpu/thread_pool.h"
#include "core/exit_code.h"
#include "core/log.h"
#include "core/regular_file.h"
#include "core/stop_signal.h"
#include "job/liveness.h"
#include "launcher/cpu_binding.h"
#include "launcher/rank_view.h"
#include "launcher/verdict.h"

namespace ring {
namespace {

using std::chrono::milliseconds;

// Waiting time after a failure:
// - if a worker only lost a peer: until the peer's death shows
// - until the other workers have ended with the same error
// - until workers that lost a peer have ended by themselves
constexpr milliseconds kBlameTime{300};
constexpr std::chrono::seconds kVerdictTime{3};  // time for the leader to receive the reports of all nodes
constexpr std::chrono::seconds kBoardInterval{1};
constexpr milliseconds kOfferInterval{5};  // interval of polling the survivors' status pages during a replacement
// Maximum time for which lines that look like a final error are held back while the worker continues.
constexpr std::chrono::seconds kMaxHeld{1};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

Agent::Agent(const LaunchOptions& options, const Order& order, const std::string& cookie, const JobTime& time,
             const StartTimes& before, const std::vector<AgentMemory>& kept, SignalSource& signals,
             RendezvousClient& client)
    : options_(options),
      order_(order),
      cookie_(cookie),
      time_(time),
      previous_start_times_(before),
      kept_(kept),
      signals_(signals),
      client_(client),
      environment_(current_environment()) {
  environment_.erase("RINGMASTER_SECRET");  // workers get a cookie derived from it, in the shared page
  bindings_ = find_bindings();
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // makes the agent the parent of orphaned grandchildren, so that it can reap them
}

std::vector<WorkerBinding> Agent::find_bindings() {
  BindingRequest q{options_.numa_binding, options_.processes, allowed_cores(), std::vector<Gpu>{}};
  const Machine machine = read_machine(options_.machine_root);
  if (options_.on_gpus) q.gpus = visible_gpus(machine.gpus, environment_);
  std::vector<WorkerBinding> places = choose_bindings(machine, q);
  if (q.gpus && q.gpus->size() >= places.size()) gpus_ = *q.gpus;
  const bool memory = memory_can_be_bound();
  for (const std::string& line : describe_bindings(places, order_.first_rank))
    if (order_.attempt == 0)
      log::info("launch: ", line, memory ? "" : "; memory is not bound, because the kernel forbids it (set_mempolicy)");
  return places;
}

// Returns the worker's share of the cores, even if several workers may use the same cores.
int Agent::threads_of(const WorkerBinding& place) const {
  if (options_.threads_per_worker > 0) return options_.threads_per_worker;
  if (place.cores.empty() || environment_.contains("RINGMASTER_THREADS"))
    return std::max(1, default_threads() / options_.processes);
  return place.threads();
}

WorkerCommand Agent::command_of(int local_rank) const {
  WorkerCommand c;
  c.program = options_.program;
  c.arguments = options_.command;
  c.arguments.insert(c.arguments.begin(), "ringmaster");
  c.environment = environment_;
  c.keep_stdout = order_.first_rank + local_rank == 0;
  const WorkerBinding& place = bindings_[static_cast<std::size_t>(local_rank)];
  c.cores = place.cores;
  c.memory_nodes = place.nodes;
  const Environment own = {{"RINGMASTER_RANK", std::to_string(order_.first_rank + local_rank)},
                           {"RINGMASTER_WORLD", std::to_string(order_.world)},
                           {"RINGMASTER_LOCAL_RANK", std::to_string(local_rank)},
                           {"RINGMASTER_LOCAL_WORLD", std::to_string(options_.processes)},
                           {"RINGMASTER_NODE_RANK", std::to_string(order_.node_rank)},
                           {"RINGMASTER_NODES", std::to_string(order_.nodes)},
                           {"RINGMASTER_RESTART_COUNT", std::to_string(order_.attempt)},
                           {"RINGMASTER_STORE", to_string(order_.store)},
                           {"RINGMASTER_THREADS", std::to_string(threads_of(place))}};
  for (const auto& [name, value] : own) c.environment[name] = value;
  const AgentMemory& kept = kept_.at(static_cast<std::size_t>(local_rank));
  c.environment["RINGMASTER_MEMORY"] = kept.fds_text();
  for (const int file : kept.files()) c.inherited.push_back(file);
  // Each worker has its own error file, like with torchrun.
  if (const std::string file = attempt_file_path(str("rank", order_.first_rank + local_rank, ".error.json"));
      !file.empty())
    c.environment["TORCHELASTIC_ERROR_FILE"] = file;
  else if (options_.processes > 1)
    c.environment.erase("TORCHELASTIC_ERROR_FILE");
  if (options_.gpu_core_dumps) add_gpu_core_dumps(order_.first_rank + local_rank, c.environment);
  if (!options_.local_addr.empty()) c.environment["RINGMASTER_ADDRESS"] = options_.local_addr;
  if (options_.comm_timeout_seconds > 0)
    c.environment["RINGMASTER_COMM_TIMEOUT"] = std::to_string(options_.comm_timeout_seconds);
  return c;
}

// Enables GPU core dumps with CUDA's variables (CUDA-GDB, "GPU core dump support"). A dump has the registers and shared
// memory of every thread, but not the GPU's memory; the process still ends with its own error. To dump a GPU that
// hangs, write anything to the pipe CUDA_COREDUMP_PIPE. Variables that are already set are not changed.
void Agent::add_gpu_core_dumps(int rank, Environment& environment) const {
  const std::string file = attempt_file_path(str("rank", rank, ".cudacore"));
  const Environment wanted = {
      {"CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "1"},
      {"CUDA_COREDUMP_FILE", file},
      {"CUDA_COREDUMP_GENERATION_FLAGS",
       "skip_nonrelocated_elf_images,skip_global_memory,skip_local_memory,skip_abort"},
      {"CUDA_ENABLE_USER_TRIGGERED_COREDUMP", "1"},
      {"CUDA_COREDUMP_PIPE", file + ".pipe"},
  };
  for (const auto& [name, value] : wanted) environment.emplace(name, value);
}

std::string Agent::attempt_file_path(const std::string& name) const {
  if (options_.log_dir.empty()) return "";
  const std::filesystem::path folder =
      std::filesystem::path(options_.log_dir) / ("attempt_" + std::to_string(order_.attempt));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("launch: cannot create '", folder.string(), "': ", error.message());
  return (folder / name).string();
}

std::string Agent::log_path_of(int rank) const { return attempt_file_path("rank" + std::to_string(rank) + ".log"); }

// Returns the console of a rank, or -1. If ranks have log files, only rank 0 also writes to the console, unless the
// options say otherwise.
int Agent::console_fd_of(int local_rank, const std::string& log) const {
  if (options_.shown && !options_.shown->has(local_rank)) return -1;
  if (log.empty() || options_.tee.has(local_rank)) return STDERR_FILENO;
  if (options_.redirects.has(local_rank)) return -1;
  return order_.first_rank + local_rank == 0 ? STDERR_FILENO : -1;
}

void Agent::start_worker(int local_rank) {
  const int rank = order_.first_rank + local_rank;
  const std::string log = log_path_of(rank);
  const int console = console_fd_of(local_rank, log);
  WorkerCommand command = command_of(local_rank);
  command.keep_stdout &= console >= 0;
  auto page = std::make_unique<SharedStatus>(cookie_, kept_.at(static_cast<std::size_t>(local_rank)).key());
  describe_attempt(**page);
  workers_.push_back(
      std::make_unique<Worker>(rank, command, std::move(page), prefix_of(rank), console, log, options_.hang));
}

std::string Agent::prefix_of(int rank) { return rank == 0 ? "" : str("[rank ", rank, "] "); }

bool Agent::any_worker_alive() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const auto& w) { return w->alive(); });
}

bool Agent::has_begun() const {
  // Only rank 0 sets `begun`, and its node may be lost. So a worker that has taken a step counts as well.
  return std::ranges::any_of(workers_, [](const auto& w) { return w->page().begun != 0 || w->page().step > 0; });
}

std::int64_t Agent::step() const {
  std::int64_t max = 0;
  for (const auto& w : workers_) max = std::max(max, w->page().step.load());
  return max;
}

// Returns the world sizes that do not fit the settings, as computed by the workers.
std::set<int> Agent::misfits() const {
  std::set<int> worlds;
  for (const auto& w : workers_)
    for (std::uint64_t unfit = w->page().unfit_nodes, i = 0; unfit != 0; unfit >>= 1, ++i)
      if (unfit & 1) worlds.insert((options_.min_nodes + static_cast<int>(i)) * options_.processes);
  return worlds;
}

JobTime Agent::job_time() const { return workers_.empty() ? time_ : workers_.front()->page().time; }

NodeEnd Agent::run() {
  from_previous_.resize(static_cast<std::size_t>(options_.processes));
  for (int local = 0; local < options_.processes; ++local) {
    auto& stays = from_previous_[static_cast<std::size_t>(local)];
    if (stays && stays->reap()) {
      log::warn("launch: rank ", stays->rank(), " ", describe(*stays->ending()), " while it waited; starting it again");
      stays.reset();
    }
    stays ? continue_with(std::move(stays), local) : start_worker(local);
  }
  while (any_worker_alive() && !is_ready_to_replace()) {
    wait_for_events();
    while (const int number = signals_.next()) handle_signal(number);
    while (const auto order = client_.next_order()) handle_order(*order);
    reap_workers();
    check_for_failure();
    check_replacement();
    refuse_offers();
    check_for_hangs();
    for (auto& w : workers_) show_or_drop_error(*w);
    enforce_deadlines();
    update_board();
  }
  for (auto& w : workers_) {
    if (w->alive()) continue;
    w->output().finish();
    show_or_drop_error(*w);
  }
  if (failed_) show_last_lines(*failed_);
  while (!any_worker_alive() && waitpid(-1, nullptr, WNOHANG) > 0) continue;  // reaps grandchildren
  failure_times_.mark_reached(StartStage::ended);
  return {.code = exit_code(),
          .stopped = stop_requested_,
          .begun = has_begun(),
          .step = step(),
          .stay = is_ready_to_replace(),
          .misfits = misfits()};
}

void Agent::wait_for_events() {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}, {client_.fd(), POLLIN, 0}};
  for (const auto& w : workers_) {
    fds.push_back({w->pidfd(), POLLIN, 0});  // poll ignores -1
    fds.push_back({w->output().fd(), POLLIN, 0});
  }
  auto until = Clock::now() + options_.monitor_interval;
  if (sigkill_time_) until = std::min(until, *sigkill_time_);
  if (blame_deadline_) until = std::min(until, *blame_deadline_);
  if (verdict_deadline_) until = std::min(until, *verdict_deadline_);
  if (sigterm_time_) until = std::min(until, *sigterm_time_);
  if (offer_deadline_) until = std::min(until, Clock::now() + kOfferInterval);
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  poll(fds.data(), fds.size(), static_cast<int>(std::max<std::int64_t>(left, 0)));
  for (auto& w : workers_) w->output().drain();
}

void Agent::handle_signal(int number) {
  if (number == SIGCHLD) return;
  if (number == SIGUSR1 || number == SIGUSR2) {
    for (auto& w : workers_) w->signal(number);
    return;
  }
  if (phase_ == Phase::replacing) end_workers(milliseconds(0));
  if (phase_ == Phase::ending) return prevent_restart(number);
  if (phase_ == Phase::stopping) {
    if (Clock::now() - stop_time_ < kSameSignalWithin) return;
    log::warn("launch: second signal, ending the workers now");
    return end_workers(milliseconds(0));
  }
  pass_on_stop_signal(number);
}

// Prevents a restart. The workers are already ending.
void Agent::prevent_restart(int number) {
  if (!std::exchange(stop_requested_, true)) log::info("launch: ", strsignal(number), ", there will be no restart");
}

void Agent::pass_on_stop_signal(int number) {
  log::info("launch: ", strsignal(number), ", waiting up to ",
            static_cast<double>(options_.stop_timeout.count()) / 1000,
            " s for the workers to end; training saves a checkpoint first");
  phase_ = Phase::stopping;
  stop_requested_ = true;
  stop_time_ = Clock::now();
  sigkill_time_ = Clock::now() + options_.stop_timeout;
  for (auto& w : workers_) w->signal(number == SIGQUIT ? SIGTERM : number);  // SIGQUIT would make workers dump core
}

// Reports this node's states if the leader asks for them. Ends this node's part of an attempt that failed on another
// node.
void Agent::handle_order(const Order& order) {
  if (order.kind == Order::Kind::report_states && order.attempt == order_.attempt)
    return client_.report(order_.attempt, rank_states());
  if (order.kind == Order::Kind::end) end_order_ = order;
  if (order.kind != Order::Kind::end && order.kind != Order::Kind::stop) return;
  if (order.attempt != order_.attempt && order.kind == Order::Kind::stop) return;
  const bool news = order.kind == Order::Kind::stop && order.text != failure_;
  if (phase_ == Phase::replacing && !order.may_stay) end_workers(milliseconds(0));
  if (news && phase_ == Phase::ending) log::error("launch: the cause: ", order.text);
  if (phase_ != Phase::running) return;
  const bool stays = order.may_stay && can_stay(nullptr);
  if (news)
    log::error("launch: ", order.text, stays ? "; trying to keep the workers" : "; ending the workers",
               order_.nodes > 1 ? " of this node" : "", stays ? " running" : "");
  if (news) write_last_operations();
  if (news) failure_ = order.text;
  record_failure_time(nullptr);
  failed_elsewhere_ = true;
  stays ? begin_replacement() : end_workers(kBlameTime);
}

void Agent::check_for_hangs() {
  if (phase_ != Phase::running || failed_) return;
  bool hangs = false;
  for (auto& w : workers_) hangs |= w->is_hanging();
  if (verdict_deadline_ && Clock::now() >= *verdict_deadline_) return end_after_hang();
  if (hangs && !verdict_deadline_) report_hang();
}

std::vector<RankState> Agent::rank_states() const {
  std::vector<RankState> all;
  for (const auto& w : workers_) {
    all.push_back(w->state());
    all.back().node = order_.node_rank;
    all.back().host = host_name();
  }
  return all;
}

// Writes the state of the job to options_.board every kBoardInterval. Readers of the board do not delay this thread.
void Agent::update_board() {
  if (!options_.board || Clock::now() < next_board_update_) return;
  next_board_update_ = Clock::now() + kBoardInterval;
  JobView v{.failure = order_.text, .attempt = order_.attempt, .nodes = order_.nodes};
  v.node = order_.node_rank;
  v.world = order_.world;
  v.time = job_time();
  for (std::size_t i = 0; i < workers_.size(); ++i)
    v.ranks.push_back(view_of(*workers_[i], i < gpus_.size() ? gpus_[i].bus : ""));
  options_.board->write(std::move(v));
}

// Sets failure_times_. `first` is the worker that failed; it is null if a worker of another node failed or if several
// workers hang. Without `first`, uses the earliest last sign of life of all workers.
void Agent::record_failure_time(const Worker* first) {
  if (!failure_times_.mark_reached(StartStage::noticed)) return;
  std::int64_t last = first ? last_progress_ns(first->page()) : failure_times_[StartStage::noticed];
  for (const auto& w : workers_)
    if (!first) last = std::min(last, last_progress_ns(w->page()));
  failure_times_[StartStage::failed] = last;
}

// The leader collects the states from all nodes and sends its verdict to all of them.
void Agent::report_hang() {
  record_failure_time(nullptr);
  verdict_deadline_ = Clock::now() + kVerdictTime;
  const std::vector<RankState> ranks = rank_states();
  client_.report(order_.attempt, NodeFailure{Blame::hung, kExitError, true, verdict(ranks, order_.world), ranks});
}

// Ends the workers if the leader does not answer: this node has lost its connection to the leader.
void Agent::end_after_hang() {
  failure_ = verdict(rank_states(), order_.world);
  log::error("launch: ", failure_, "; ending the workers of this node");
  write_last_operations();
  end_workers(kBlameTime);
}

// Writes a file with one line per worker: its state and its last operations, as JSON.
void Agent::write_last_operations() const {
  const std::string path = attempt_file_path(str("flights_node", order_.node_rank, ".jsonl"));
  if (path.empty()) return;
  try {
    check_regular("write", path, O_WRONLY | O_CREAT);
    std::ofstream file(path);  // allowed open: checked (by check_regular)
    const std::vector<RankState> all = rank_states();
    for (std::size_t i = 0; i < workers_.size(); ++i) file << flights_json(all[i], workers_[i]->page()) << "\n";
    if (!file.flush()) fail("cannot write ", path);
    log::info("launch: the last operations of the workers are in ", path);
  } catch (const Error& e) {
    log::warn("launch: ", e.what());
  }
}

void Agent::reap_workers() {
  for (auto& w : workers_)
    if (w->reap()) w->output().finish();
}

// Among the failed workers, prefers those that were killed, then those that exited, then those that only lost a peer.
Worker* Agent::first_failure() const {
  Worker* first = nullptr;
  const auto weight = [](const Worker& w) {
    return w.ending()->signal ? 2 : w.ending()->code == kExitPeerLost ? 0 : 1;
  };
  for (const auto& w : workers_)
    if (!w->alive() && !w->ending()->ok() && (!first || weight(*w) > weight(*first))) first = w.get();
  return first;
}

void Agent::check_for_failure() {
  if (phase_ == Phase::ending || phase_ == Phase::replacing || failed_) return;
  Worker* first = first_failure();
  if (!first) return;
  // After a request to stop, workers may end with any exit code, which tells why they ended. Only a crash counts as a
  // failure, because it would leave the other workers waiting.
  const Ending& ending = *first->ending();
  if (phase_ == Phase::running &&
      ending.code == kExitInterrupted) {  // a worker got a signal directly; all stop together
    phase_ = Phase::stopping;
    stop_requested_ = true;
    sigkill_time_ = Clock::now() + options_.stop_timeout;
  }
  if (phase_ == Phase::stopping &&
      (!ending.signal || ending.signal == SIGINT || ending.signal == SIGTERM || ending.signal == SIGHUP))
    return;
  if ((ending.code == kExitPeerLost || !first->output().error_text().empty()) && any_worker_alive()) {
    if (!blame_deadline_) blame_deadline_ = Clock::now() + kBlameTime;
    if (Clock::now() < *blame_deadline_) return;
  }
  if (ending.code == kExitPeerLost && !verdict_deadline_ && any_worker_stopped()) return report_hang();
  if (verdict_deadline_ && ending.code == kExitPeerLost) return;
  record_failure_time(first);
  failed_ = first;
  error_ = first->output().error_text();
  if (phase_ != Phase::running || ending.signal == 0 || !can_stay(first)) {
    report_failure(*first, "; ending the other workers");
    return end_workers(kBlameTime);
  }
  report_failure(*first, "; trying to keep the other workers running", true);
  begin_replacement();
}

bool Agent::any_worker_exiting() const {
  return std::ranges::any_of(workers_, [](const auto& w) { return w->alive() && is_exiting(w->pid()); });
}

bool Agent::any_worker_stopped() const {
  return std::ranges::any_of(workers_, [](const auto& w) { return w->alive() && is_stopped(w->pid()); });
}

// Returns the ranks that ended with the same message and exit code.
std::vector<int> Agent::ranks_with_same_error(const Worker& first) const {
  std::vector<int> ranks;
  for (const auto& w : workers_)
    if (!w->alive() && w->ending()->exit_code() == first.ending()->exit_code() && w->output().error_text() == error_)
      ranks.push_back(w->rank());
  return ranks;
}

// Returns false for failures that a restart would only repeat: a wrong command line or setting, a missing program, a
// run that another job trains.
bool Agent::is_restartable(const Worker& first) const {
  const Ending& e = *first.ending();
  if (e.signal) return true;
  const bool refused = e.code == kExitUsage || e.code == kExitTakenOver || e.code == 126 || e.code == 127;
  return !refused && (e.code != kExitError || has_begun() || first.page().stepping != 0);
}

std::string Agent::failure_text(const Worker& first, const std::vector<int>& same_error) const {
  const std::string host = order_.nodes > 1 ? " on " + host_name() : "";
  const std::int64_t step = first.page().step;
  const std::string after = str(" after ", std::round(10 * seconds()) / 10, " s",
                                step > 0 ? str(", in phase ", first.state().phase, " after step ", step) : "");
  const int code = first.ending()->exit_code();
  if (same_error.size() > 1 && same_error.size() == workers_.size())
    return str("all ", workers_.size(), " workers", host, " ended with this error and exit code ", code, after);
  if (same_error.size() > 1)
    return str("ranks ", listed(same_error), host, " ended with the same error and exit code ", code, after);
  if (code == kExitOutOfMemory && !error_.empty()) return first_line(error_).substr(std::strlen(kErrorBegin));
  const std::string node = order_.nodes > 1 ? str(", node ", order_.node_rank) : "";
  const std::string who = str("rank ", first.rank(), host, " (pid ", first.pid(), node, ") ");
  if (first.ending()->code == kExitPeerLost) return str(who, "lost another worker", after, ", named in its message");
  return who + describe(*first.ending()) + after;
}

void Agent::report_failure(Worker& first, const char* others, bool replaceable) {
  WorkerOutput& output = first.output();
  output.drop_held_lines();  // the failure is reported below, and the last lines after that
  const std::vector<int> same_error = error_.empty() ? std::vector<int>{} : ranks_with_same_error(first);
  failure_ = failure_text(first, same_error);
  const bool has_others = same_error.size() < workers_.size() && (workers_.size() > 1 || replaceable);
  log::error("launch: ", failure_, has_others ? others : "");
  const Ending& ending = *first.ending();
  const Blame blame = ending.signal ? Blame::killed : ending.code == kExitPeerLost ? Blame::lost_peer : Blame::failed;
  const bool out_of_memory = ending.exit_code() == kExitOutOfMemory;
  if (order_.nodes > 1 && !error_.empty() && !out_of_memory) failure_ += ": " + first_line(error_);
  NodeFailure sent{blame, ending.exit_code(), is_restartable(first), failure_};
  sent.misfit = first.page().misfit != 0;
  sent.replaceable = replaceable;
  client_.report(order_.attempt, sent);
  write_last_operations();
}

// Call last, so that no output of other workers follows.
void Agent::show_last_lines(const Worker& first) const {
  const WorkerOutput& output = first.output();
  if (!output.log_path().empty()) log::error("launch: its log is ", output.log_path());
  const bool shown = first.rank() == 0 || first.ending()->exit_code() == kExitOutOfMemory;
  if (shown && !error_.empty()) return;  // the console already shows its error
  log::error("launch: last lines of rank ", first.rank(), output.tail().empty() ? ": no output" : ":");
  for (const std::string& line : output.tail()) log::error("  | ", line);
}

// Returns true if the worker's message equals the failed worker's message, or says that it lost that worker.
bool Agent::is_already_reported(const Worker& ended) const {
  if (!failed_) return failed_elsewhere_ && ended.ending()->code == kExitPeerLost;
  const bool lost = ended.ending()->code == kExitPeerLost && failed_->ending()->code != kExitPeerLost;
  return lost || ended.output().error_text() == error_;
}

// Shows the message that was held back, unless it has already been reported.
void Agent::show_or_drop_error(Worker& worker) const {
  WorkerOutput& output = worker.output();
  if (!output.holds_lines()) return;
  if (!worker.alive() && is_already_reported(worker)) return output.drop_held_lines();
  const bool over = !worker.alive() && phase_ != Phase::running;
  if (over || !any_worker_alive() || Clock::now() - output.held_since() > kMaxHeld) output.write_held_lines();
}

// Gives workers time to end by themselves before SIGTERM, because they log a message when they get the signal.
void Agent::end_workers(milliseconds patience) {
  phase_ = Phase::ending;
  blame_deadline_.reset();
  offer_deadline_.reset();
  sigterm_time_ = Clock::now() + std::min(patience, options_.grace);
  sigkill_time_ = Clock::now() + options_.grace;
}

void Agent::enforce_deadlines() {
  if (sigterm_time_ && Clock::now() >= *sigterm_time_) {
    sigterm_time_.reset();
    for (auto& w : workers_) w->signal(SIGTERM);
  }
  if (!sigkill_time_ || Clock::now() < *sigkill_time_) return;
  for (auto& w : workers_)
    if (w->alive()) {
      if (phase_ == Phase::stopping) log::warn("launch: rank ", w->rank(), " did not stop in time, killing it");
      w->signal(SIGKILL);
    }
  sigkill_time_.reset();
}

int Agent::exit_code() const {
  if (verdict_deadline_ && !failed_) return kExitError;
  const Worker* first = failed_ ? failed_ : first_failure();
  return first ? first->ending()->exit_code() : 0;
}

}  // namespace ring
