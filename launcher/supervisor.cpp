#include "launcher/supervisor.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "core/counted.h"
#include "core/exit_code.h"
#include "core/log.h"
#include "job/liveness.h"

namespace ring {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kSayAgain{10};
constexpr milliseconds kLook{200};
constexpr milliseconds kLoopbackJoin{30'000};  // agents on this host join soon, and agents on other hosts cannot join

bool over_loopback(const LaunchOptions& o) { return o.max_nodes > 1 && is_loopback(o.endpoint->host); }

// Returns true if the endpoint's address belongs to this host.
bool is_here(const Endpoint& at) {
  try {
    listen_on({at.host, 0});
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

Supervisor::Supervisor(const LaunchOptions& options)
    : options_(options),
      signals_(options.signals),
      job_{options.rdzv_id, options.secret.empty() ? random_secret() : options.secret},
      id_(host_name() + "-" + random_cookie()),
      leader_(start_leader()),
      client_(client_setup()),
      kept_(static_cast<std::size_t>(options.processes)) {
  time_.begin_ms = time_.since_ms = now_ms();
}

RendezvousRules Supervisor::rules() const {
  RendezvousRules r;
  r.host = id_;
  r.min_nodes = options_.min_nodes;
  r.max_nodes = options_.max_nodes;
  r.max_restarts = options_.max_restarts;
  r.join_timeout = over_loopback(options_) ? std::min(options_.join_timeout, kLoopbackJoin) : options_.join_timeout;
  r.last_call = options_.last_call;
  r.return_timeout = options_.return_timeout;
  if (over_loopback(options_))
    r.advice = str(". ", options_.endpoint->host,
                   " is a loopback address, which other machines cannot reach: give --rdzv-endpoint the address at "
                   "which they reach node 0");
  return r;
}

// The agent that has the endpoint's address is node 0. A name may resolve to a different address on other hosts, or to
// an address that this host does not have (a Kubernetes service): then the leader listens on all addresses, which is
// safe because of the secret.
std::unique_ptr<Leader> Supervisor::start_leader() const {
  if (options_.max_nodes == 1)
    return std::make_unique<Leader>(job_, rules(), Endpoint{"127.0.0.1", 0}, false, options_.silence);
  if (options_.node_rank > 0) return nullptr;
  const Endpoint& at = *options_.endpoint;
  const bool here = is_here(at);
  if (!here && options_.node_rank != 0) return nullptr;
  const bool any = !here || (!is_numeric(at.host) && !is_loopback(at.host));
  try {
    return std::make_unique<Leader>(job_, rules(), at, any, options_.silence);
  } catch (const ListenError& e) {
    if (e.code == EADDRINUSE && options_.node_rank < 0) return nullptr;  // another agent on this host is the leader
    fail("launch: --rdzv-endpoint: ", e.what(),
         e.code == EADDRINUSE ? "; give a different port, the same on every node" : "");
  }
}

// Tries again, since another program may have used the endpoint's port before.
void Supervisor::start_leader_if_absent() {
  if (!leader_ && client_.is_meeting() && !client_.who_is_missing().empty()) leader_ = start_leader();
}

RendezvousClient::Setup Supervisor::client_setup() const {
  RendezvousClient::Setup s;
  s.id = id_;
  s.leader = leader_ ? leader_->own_endpoint() : *options_.endpoint;
  s.cookie = job_.agents_cookie();
  s.offer = {host_name(), options_.node_rank, options_.processes};
  if (leader_ && options_.endpoint) s.offer.at = *options_.endpoint;
  s.local_addr = options_.local_addr;
  if (options_.max_nodes > 1)
    s.lead = [this](const Leader::Succession& succession) {
      return std::make_unique<Leader>(job_, rules(), succession, options_.silence);
    };
  s.join_timeout = options_.join_timeout;
  s.silence = options_.silence;
  return s;
}

int Supervisor::run() {
  for (;;) {
    std::optional<Order> order = wait_for_order();
    if (!order) return kExitInterrupted;
    if (order->kind == Order::Kind::start) order = run_attempt(*order);
    if (order && order->kind == Order::Kind::end) return report_end(*order);
  }
}

std::optional<Order> Supervisor::wait_for_order() {
  logged_text_.clear();
  for (;;) {
    while (const auto order = client_.next_order()) {
      if (order->kind == Order::Kind::start || order->kind == Order::Kind::end) return order;
      if (order->kind != Order::Kind::wait) continue;
      waiting_for_ = order->text;
      if (!order->may_stay) staying_.clear();  // kills the survivors, because an attempt has begun without them
    }
    if (is_stop_requested()) return {};
    start_leader_if_absent();
    log_waiting();
    show_waiting_on_board();
    pollfd fds[] = {{signals_.fd(), POLLIN, 0}, {client_.fd(), POLLIN, 0}};
    poll(fds, 2, static_cast<int>(kLook.count()));
  }
}

bool Supervisor::is_stop_requested() {
  while (const int number = signals_.next())
    if (number != SIGCHLD && number != SIGUSR2) {
      log::info("launch: told to stop while waiting: ", waiting_for_.empty() ? "for other nodes" : waiting_for_);
      return true;
    }
  return false;
}

// Logs what the agent waits for, whenever that changes and every ten seconds.
void Supervisor::log_waiting() {
  if (const std::string line = client_.who_is_missing(); !line.empty()) waiting_for_ = line;
  if (waiting_for_.empty() || (waiting_for_ == logged_text_ && Clock::now() < logged_at_ + kSayAgain)) return;
  log::info("launch: waiting: ", waiting_for_);
  logged_text_ = waiting_for_;
  logged_at_ = Clock::now();
}

void Supervisor::show_waiting_on_board() const {
  if (options_.board)
    options_.board->write({.waits_for = waiting_for_.empty() ? "the next attempt" : waiting_for_,
                           .failure = failure_,
                           .attempt = restarts_,
                           .nodes = options_.max_nodes,
                           .node = node_,
                           .world = world_,
                           .time = time_});
}

std::string Supervisor::replacement_text(const Order& start) const {
  const auto lost = std::find(staying_.begin(), staying_.end(), nullptr);
  const std::int64_t stay = std::ranges::count_if(staying_, [](const auto& w) { return w != nullptr; });
  const std::string who = str(counted(stay, "worker"), start.nodes > 1 ? " of this node" : "",
                              stay == 1 ? " keeps running" : " keep running");
  if (lost == staying_.end()) return who;
  return str("replacing rank ", start.first_rank + (lost - staying_.begin()), stay > 0 ? "; " + who : "");
}

std::string Supervisor::restarts_text() const {
  const auto times = [](int n) { return n == 1 ? std::string("once") : str(n, " times"); };
  const std::string replaced = str("lost workers were replaced ", times(replacements_));
  if (replacements_ == restarts_) return replaced;
  return str("the workers were restarted ", times(restarts_ - replacements_),
             replacements_ > 0 ? ", and " + replaced : "");
}

void Supervisor::log_attempt_start(const Order& start) const {
  if (start.attempt > 0) {
    if (start.text != failure_) log::error("launch: ", start.text);
    const std::string how = !staying_.empty() ? replacement_text(start)
                            : world_          ? "starting all workers again"
                                              : "starting the workers of this node";
    log::warn("launch: ", how, " (restart ", start.attempt, " of this job)");
  }
  if (start.may_stay && world_ && *world_ != start.world)
    log::warn("launch: the job continues with ", counted(start.world, "worker"), " instead of ", *world_,
              ". Sums are rounded in a different order, so losses agree closely, but not bit for bit");
  if (start.nodes > 1)
    log::info("launch: node ", start.node_rank, " of ", start.nodes, " on ", host_name(), ": ranks ", start.first_rank,
              " to ", start.first_rank + options_.processes - 1, " of ", start.world, "; the ranks meet at ",
              to_string(start.store));
}

std::optional<Order> Supervisor::run_attempt(const Order& start) {
  if (!start.may_stay) staying_.clear();  // kills the survivors
  replacements_ = start.replacements;
  log_attempt_start(start);
  waiting_for_.clear();
  failure_.clear();
  restarts_ = start.attempt;
  node_ = start.node_rank;
  world_ = start.world;
  const std::string cookie = job_.workers_cookie(start.leader, start.attempt);
  Agent agent(options_, start, cookie, time_, failure_times_, kept_, signals_, client_);
  agent.take_over(std::exchange(staying_, {}));
  const NodeEnd end = agent.run();
  time_ = agent.job_time();
  failure_times_ = agent.failure_times();
  failure_ = agent.failure();
  staying_ = agent.staying_workers();
  client_.report(start.attempt, end);
  return agent.end();
}

int Supervisor::report_end(const Order& end) {
  staying_.clear();  // kills survivors that waited for a new attempt
  if (end.code != 0 && !end.text.empty() && end.text != failure_) log::error("launch: ", end.text);
  if (!end.verdict.empty()) log::error("launch: no restart: ", end.verdict);
  if (node_ == 0 && restarts_ > 0) log::info("launch: ", restarts_text(), ", which cost ", time_.restart_seconds, " s");
  return end.code;
}

namespace {

void check_nodes(const LaunchOptions& o) {
  if (o.min_nodes < 1 || o.max_nodes < o.min_nodes)
    fail("launch: --nnodes is ", o.min_nodes, ":", o.max_nodes, "; give N, or MIN:MAX with 1 <= MIN <= MAX");
  if (o.node_rank >= o.max_nodes)
    fail("launch: --node-rank is ", o.node_rank, ", but there are ", counted(o.max_nodes, "node"), ": use 0 to ",
         o.max_nodes - 1);
  if (o.max_nodes == 1) return;
  if (!o.endpoint)
    fail("launch: ", o.max_nodes,
         " nodes need an address to meet at: give every node the same --rdzv-endpoint HOST:PORT, an address of node 0 "
         "and a free port there");
  if (o.secret.empty())
    fail("launch: ", o.max_nodes, " nodes need a secret, so that nobody else joins the job: ", kMakeSecret);
}

void check_options(const LaunchOptions& o) {
  if (o.processes < 1) fail("launch: --nproc-per-node is ", o.processes, "; it must be at least 1");
  if (o.threads_per_worker < 0)
    fail("launch: --threads-per-worker is ", o.threads_per_worker, "; it must be at least 1");
  if (o.command.empty()) fail("launch: no command to start; write it after --, such as: -- train config.yaml");
  if (!o.secret.empty()) checked_secret(o.secret, "launch");
  check_nodes(o);
  if (o.log_dir.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(o.log_dir, error);
  if (error) fail("launch: cannot create --log-dir '", o.log_dir, "': ", error.message());
}

}  // namespace

int launch(const LaunchOptions& options) {
  check_options(options);
  return Supervisor(options).run();
}

}  // namespace ring
