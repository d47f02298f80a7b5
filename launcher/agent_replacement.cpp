// Replaces a lost worker while the other workers of the Agent keep running (job/replacement.h).

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "launcher/agent.h"

namespace ring {
namespace {

// Time limit for all survivors to notice the loss and leave their step. Must exceed most steps on CPUs, because a
// forward or backward pass is not interrupted.
constexpr std::chrono::seconds kStayTime{10};
// How long the agent waits to learn of a peer's death after a worker has reported that it lost this peer. The second
// value is for jobs on several nodes, where the agents of other nodes report deaths through the leader.
constexpr std::chrono::milliseconds kOfferTime{600}, kOfferTimeOverNetwork{1'500};
// How much longer the agent waits while a worker is exiting. The operating system first closes the worker's
// connections, and releases its GPU later.
constexpr std::chrono::milliseconds kExitTime{5'000};

}  // namespace

void Agent::describe_attempt(WorkerStatus& page) const {
  page.begun = order_.begun;
  page.min_nodes = options_.min_nodes;
  page.max_nodes = options_.max_nodes;
  page.replaces = options_.max_restarts > 0 && order_.world > 1;
  page.must_leave = 0;
  page.time = time_;
  page.start = previous_start_times_;
  page.start.mark_reached(StartStage::spawned);
}

void Agent::take_over(StayingWorkers workers) { from_previous_ = std::move(workers); }

void Agent::continue_with(std::unique_ptr<Worker> worker, int local_rank) {
  WorkerStatus& page = worker->page();
  const int rank = order_.first_rank + local_rank;
  const std::string store = to_string(order_.store);
  RING_CHECK(store.size() < page.store.size() && cookie_.size() < page.cookie.size(),
             "cookie or address is too long for the worker's status page: ", store);
  describe_attempt(page);
  page.cookie.fill('\0');
  page.store.fill('\0');
  std::ranges::copy(cookie_, page.cookie.begin());
  std::ranges::copy(store, page.store.begin());
  page.attempt = order_.attempt;
  page.rank = rank;
  page.world = order_.world;
  page.node_rank = order_.node_rank;
  page.nodes = order_.nodes;
  page.can_stay = 0;
  page.stay = Stay::accepted;
  worker->set_rank(rank, prefix_of(rank), console_fd_of(local_rank, worker->output().log_path()));
  workers_.push_back(std::move(worker));
}

Agent::StayingWorkers Agent::staying_workers() {
  if (!is_ready_to_replace()) return {};
  for (auto& w : workers_)
    if (w.get() == failed_) w.reset();
  failed_ = nullptr;
  return std::exchange(workers_, {});
}

bool Agent::can_stay(const Worker* lost) const {
  return order_.world > 1 && std::ranges::all_of(workers_, [&](const auto& w) {
           return w.get() == lost || (w->alive() && w->page().can_stay != 0);
         });
}

void Agent::begin_replacement() {
  phase_ = Phase::replacing;
  for (const auto& w : workers_) w->page().must_leave = 1;
  blame_deadline_.reset();
  offer_deadline_ = Clock::now() + kStayTime;
}

bool Agent::is_ready_to_replace() const {
  return phase_ == Phase::replacing && std::ranges::all_of(workers_, [&](const auto& w) {
           return w.get() == failed_ || (w->alive() && w->page().stay == Stay::offered);
         });
}

void Agent::check_replacement() {
  if (phase_ != Phase::replacing) return;
  for (const auto& w : workers_) {
    if (w.get() == failed_) continue;
    const bool late = w->alive() && w->page().stay != Stay::offered && Clock::now() >= *offer_deadline_;
    if (w->alive() && !late) continue;
    const bool writes = w->page().writing != RunPhase::nothing;
    const std::string waited = str(" within ", kStayTime.count(), " s");
    log::error("launch: rank ", w->rank(), " cannot be kept for the restart: it ",
               !late    ? describe(*w->ending())
               : writes ? "did not stop writing a checkpoint" + waited
                        : "did not leave its current step" + waited,
               "; ending the other workers");
    return end_workers(std::chrono::milliseconds(0));
  }
}

// A worker that loses its connection to a peer offers to join the next attempt (Stay::offered). Often this happens
// before the agent sees the peer die or the leader reports its death. But the peer may also be alive, such as stopped
// by SIGSTOP: the worker's offer to stay is then refused after kOfferTime or kOfferTimeOverNetwork, and the worker
// exits with an error that names the peer.
void Agent::refuse_offers() {
  if (phase_ == Phase::replacing) return;
  for (auto& w : workers_) {
    if (!w->alive() || w->page().stay != Stay::offered) continue;
    if (!offer_deadline_) offer_deadline_ = Clock::now() + (order_.nodes > 1 ? kOfferTimeOverNetwork : kOfferTime);
    const auto now = Clock::now();
    const bool late = now >= *offer_deadline_ && (now >= *offer_deadline_ + kExitTime || !any_worker_exiting());
    if (phase_ != Phase::running || late) w->page().stay = Stay::refused;
  }
}

}  // namespace ring
