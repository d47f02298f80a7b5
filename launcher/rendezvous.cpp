#include "launcher/rendezvous.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/counted.h"
#include "core/exit_code.h"
#include "core/joined.h"
#include "launcher/verdict.h"

namespace ring {

Rendezvous::Rendezvous(RendezvousRules rules, Time now)
    : rules_(std::move(rules)), budget_(rules_.max_restarts), since_(now), last_arrival_(now) {}

Rendezvous::Rendezvous(RendezvousRules rules, const Heritage& h, const std::string& lost,
                       const std::set<AgentId>& closed, Time now)
    : Rendezvous(std::move(rules), now) {
  closed_processes_ = closed;
  succeeds_ = true;
  phase_ = Phase::stopping;
  failures_.push_back({.blame = Blame::killed, .code = kExitError, .text = lost});
  failures_.back().replaceable = closed.contains(h.leader);
  adopt(h);
}

void Rendezvous::adopt(const Heritage& h) {
  attempt_ = started_attempt_ = h.attempt;
  newest_attempt_ = std::max(newest_attempt_, h.attempt);
  started_by_ = h.leader;
  nodes_ = std::min(static_cast<std::size_t>(std::max(h.nodes, 0)), h.members.size());
  members_.assign(h.members.begin(), h.members.begin() + static_cast<std::ptrdiff_t>(nodes_));
  budget_ = RestartBudget(rules_.max_restarts, h.budget);
  begun_ = begun_ || h.begun;
  replacements_ = h.replacements;
  misfits_.insert(h.misfits.begin(), h.misfits.end());
  survivors_stay_ = false;
  for (Agent& a : agents_) {
    place_in_attempt(a);
    if (!a.taking_part) a.end.reset();
  }
}

Heritage Rendezvous::heritage() const {
  Heritage h{.attempt = started_attempt_, .leader = started_by_, .members = members_};
  h.nodes = static_cast<int>(members_.size());
  for (const Agent& a : agents_)
    if (std::ranges::find(members_, a.offer.process, &Member::process) == members_.end())
      h.members.push_back({a.offer.process, a.offer.host, a.offer.at});
  h.begun = begun_;
  h.budget = budget_.counts();
  h.misfits = misfits_;
  h.replacements = replacements_;
  return h;
}

Rendezvous::Agent* Rendezvous::find(const AgentId& id) {
  const auto at = std::ranges::find(agents_, id, &Agent::id);
  return at == agents_.end() ? nullptr : &*at;
}

const Rendezvous::Agent* Rendezvous::find_process(const AgentId& process) const {
  const auto at = std::ranges::find(agents_, process, [](const Agent& a) { return a.offer.process; });
  return at == agents_.end() ? nullptr : &*at;
}

std::vector<AgentId> Rendezvous::agents() const {
  std::vector<AgentId> ids;
  for (const Agent& a : agents_) ids.push_back(a.id);
  return ids;
}

std::vector<std::pair<AgentId, Order>> Rendezvous::take_orders() { return std::exchange(orders_, {}); }

void Rendezvous::queue_order(const Agent& a, Order order) {
  order.attempt = attempt_;
  orders_.emplace_back(a.id, std::move(order));
}

void Rendezvous::join(const AgentId& id, const NodeOffer& offer, Time now) {
  if (find(id)) return;
  const AgentId process = offer.process.empty() ? id : offer.process;
  if (const Agent* earlier = find_process(process)) leave(AgentId(earlier->id), "it joined again", now);
  agents_.push_back({id, offer});
  Agent& agent = agents_.back();
  agent.offer.process = process;
  const auto refuse = [&](const std::string& why) {
    queue_order(agent, {.kind = Order::Kind::end, .text = why, .code = kExitError});
    agents_.pop_back();
  };
  if (end_) return orders_.emplace_back(id, *end_), void();
  if (offer.node_rank >= rules_.max_nodes)
    return refuse(str("--node-rank ", offer.node_rank, " does not exist among ", counted(rules_.max_nodes, "node")));
  if (offer.node_rank == 0 && process != rules_.host) {
    if (started_attempt_ < 0)
      return refuse("node rank 0 must be the host of --rdzv-endpoint, which is a different host");
    agent.offer.node_rank = -1;  // a successor has taken node rank 0
  }
  ended_processes_.erase(process);
  closed_processes_.erase(process);
  if (offer.heritage) newest_attempt_ = std::max(newest_attempt_, offer.heritage->attempt);
  place_in_attempt(agent);
  if (succeeds_ && offer.heritage && offer.heritage->attempt > started_attempt_) adopt(*offer.heritage);
  last_arrival_ = now;
  tick(now);
  if (phase_ != Phase::joining) notify_spare_agents();
}

void Rendezvous::place_in_attempt(Agent& a) const {
  const auto at = std::ranges::find(members_, a.offer.process, &Member::process);
  const auto rank = static_cast<int>(at - members_.begin());
  const bool keeps_rank = at != members_.end() && rank > 0 && rank < rules_.max_nodes;
  a.node_rank = a.offer.process == rules_.host ? 0 : keeps_rank ? rank : -1;
  if (phase_ != Phase::joining) a.taking_part = ran_last_attempt(a);
}

bool Rendezvous::ran_last_attempt(const Agent& a) const {
  return a.offer.attempt == started_attempt_ && a.offer.leader == started_by_ &&
         std::ranges::find(members_, a.offer.process, &Member::process) != members_.end();
}

void Rendezvous::on_failure(const AgentId& id, int attempt, const NodeFailure& failure, Time now) {
  const Agent* agent = find(id);
  if (!agent || !agent->taking_part || attempt != attempt_ || phase_ == Phase::joining) return;
  if (failures_.empty()) cause_deadline_ = now + rules_.blame_time;
  failures_.push_back(failure);
  failures_.back().replaceable &= !std::exchange(worker_failed_, true);
  if (failure.blame == Blame::hung && phase_ == Phase::running) {
    request_states();
    return on_states(id, attempt, failure.ranks, now);
  }
  tick(now);
}

void Rendezvous::request_states() {
  if (std::ranges::any_of(agents_, &Agent::reported_states)) return;
  for (const Agent& a : agents_)
    if (a.taking_part && !a.end) queue_order(a, {.kind = Order::Kind::report_states});
}

void Rendezvous::on_states(const AgentId& id, int attempt, const std::vector<RankState>& ranks, Time now) {
  Agent* agent = find(id);
  if (!agent || !agent->taking_part || attempt != attempt_ || agent->reported_states) return;
  agent->reported_states = true;
  ranks_.insert(ranks_.end(), ranks.begin(), ranks.end());
  tick(now);
}

void Rendezvous::on_end(const AgentId& id, int attempt, const NodeEnd& end, Time now) {
  Agent* agent = find(id);
  if (!agent || agent->end) return;
  misfits_.insert(end.misfits.begin(), end.misfits.end());
  // A node of the last attempt may reach a successor after all other nodes have ended.
  if (phase_ == Phase::joining && attempt == started_attempt_ && ran_last_attempt(*agent)) {
    agent->end = end;
    survivors_stay_ &= end.stay;
    return;
  }
  if (!agent->taking_part || attempt != attempt_) return;
  agent->end = end;
  step_ = std::max(step_, end.step);
  begun_ = begun_ || end.begun;
  if (end.stopped) stopped_ = end.code;
  tick(now);
}

void Rendezvous::leave(const AgentId& id, const std::string& why, Time now, bool closed) {
  const Agent* agent = find(id);
  if (!agent) return;
  if (closed) closed_processes_.insert(agent->offer.process);
  if (agent->taking_part && !agent->end && phase_ != Phase::joining) {
    if (failures_.empty()) cause_deadline_ = now + rules_.blame_time;
    failures_.push_back(
        {.blame = Blame::killed,
         .code = kExitError,
         .text = str("the agent of node ", agent->node_rank, " (", agent->offer.host, ") is lost: ", why),
         .replaceable = closed});
  }
  std::erase_if(agents_, [&](const Agent& a) { return a.id == id; });
  tick(now);
}

void Rendezvous::on_process_ended(const AgentId& process, Time now) {
  if (find_process(process) || !closed_processes_.contains(process)) return;
  ended_processes_.insert(process);
  tick(now);
}

std::vector<Member> Rendezvous::absent_members() const {
  std::vector<Member> absent;
  for (const Member& m : members_)
    if (!find_process(m.process) && !ended_processes_.contains(m.process)) absent.push_back(m);
  return absent;
}

std::vector<Member> Rendezvous::members_to_probe() const {
  if (!is_joining() || has_quorum()) return {};
  std::vector<Member> absent = absent_members();
  std::erase_if(absent, [&](const Member& m) { return !closed_processes_.contains(m.process); });
  return absent;
}

bool Rendezvous::has_quorum() const {
  const auto absent = static_cast<std::ptrdiff_t>(absent_members().size());
  const auto counts = [&](const Agent& a) {
    const bool was_node = std::ranges::find(members_, a.offer.process, &Member::process) != members_.end();
    return was_node || (succeeds_ && !a.offer.heritage);
  };
  const auto present = std::ranges::count_if(agents_, counts);
  return absent == 0 || present > absent || (present == absent && !succeeds_);
}

std::string Rendezvous::quorum_text() const {
  if (has_quorum()) return "";
  std::vector<std::string> hosts;
  for (const Member& m : absent_members()) hosts.push_back(m.host);
  const Agent* host = find_process(rules_.host);
  const std::string remedy = succeeds_ ? str("start an agent on a different host with --rdzv-endpoint ",
                                             host ? to_string(host->offer.at) : std::string("HOST:PORT of this agent"))
                                       : "end this agent and run the command again on all nodes";
  return str("; ", joined(hosts, ", "), hosts.size() == 1 ? " does" : " do",
             " not answer, and may still run the job. If the job no longer runs there, ", remedy);
}

void Rendezvous::tick(Time now) {
  if (end_ || (succeeds_ && !find_process(rules_.host))) return;
  if (phase_ == Phase::joining) return try_start(now);
  if (phase_ == Phase::running && !failures_.empty() && is_cause_known(now)) stop_all(cause().text);
  if (all_ended()) restart_or_finish(now);
}

// Assigns node ranks: 0 to the host (the agent that leads), then the ranks that agents already have or request, then
// the free ranks to the other agents in order of arrival. After the first attempt, an agent whose rank is taken also
// gets a free rank, because ranks shift when nodes are lost.
std::vector<Rendezvous::Agent*> Rendezvous::seats() {
  std::vector<Agent*> seats(static_cast<std::size_t>(rules_.max_nodes), nullptr), unseated;
  for (Agent& a : agents_) {
    const int wish = a.node_rank >= 0 ? a.node_rank : a.offer.node_rank;
    if (wish >= 0 && !seats[static_cast<std::size_t>(wish)])
      seats[static_cast<std::size_t>(wish)] = &a;
    else if (wish < 0 || started_attempt_ >= 0)
      unseated.push_back(&a);
  }
  for (Agent* a : unseated) {
    const auto hole = std::find(seats.begin() + 1, seats.end(), nullptr);
    if (hole != seats.end()) *hole = a;
  }
  return seats;
}

std::string Rendezvous::missing_text(const std::vector<Agent*>& seats) const {
  std::vector<std::string> holes, here;
  for (std::size_t r = 0; r < seats.size(); ++r) {
    if (seats[r])
      here.push_back(str(seats[r]->offer.host, " as node ", r));
    else
      holes.push_back(std::to_string(r));
  }
  const std::string of = rules_.min_nodes == rules_.max_nodes ? "" : str(" (at least ", rules_.min_nodes, ")");
  return str(here.size(), " of ", rules_.max_nodes, " nodes", of, here.size() == 1 ? " is here (" : " are here (",
             joined(here, ", "), "); node ", joined(holes, ", "), holes.size() == 1 ? " is missing" : " are missing");
}

bool Rendezvous::has_enough_nodes(std::size_t seated, Time now) const {
  if (seated == static_cast<std::size_t>(rules_.max_nodes)) return true;
  if (seated < static_cast<std::size_t>(rules_.min_nodes)) return false;
  if (attempt_ == 0) return now >= last_arrival_ + rules_.last_call && now >= since_ + rules_.last_call;
  return seated >= nodes_ || now >= since_ + rules_.return_timeout;
}

void Rendezvous::try_start(Time now) {
  std::vector<Agent*> all = seats();
  std::vector<Agent*> seated = all;
  std::erase(seated, nullptr);
  if (all[0] && has_quorum() && has_enough_nodes(seated.size(), now))
    if (const std::vector<Agent*> some = fewer_that_fit(seated); !some.empty()) return start_attempt(some);
  const std::string who =
      missing_text(all) + (fits_settings(seated) ? "" : ", without which the settings do not fit") + quorum_text();
  if (now >= since_ + rules_.join_timeout)
    return end_job(kExitError,
                   str(previous_failure_.empty() ? "" : previous_failure_ + "; ", "not all nodes joined within ",
                       static_cast<double>(rules_.join_timeout.count()) / 1000, " s: ", who, rules_.advice));
  notify_waiting_agents(who + rules_.advice);
}

bool Rendezvous::fits_settings(const std::vector<Agent*>& seated) const {
  int world = 0;
  for (const Agent* a : seated) world += a->offer.workers;
  return !misfits_.contains(world);
}

// Drops the last nodes until the settings fit the number of ranks. Dropped nodes stay as spares. Returns an empty list
// if no number of nodes fits.
std::vector<Rendezvous::Agent*> Rendezvous::fewer_that_fit(std::vector<Agent*> seated) const {
  while (!fits_settings(seated) && seated.size() > static_cast<std::size_t>(rules_.min_nodes)) seated.pop_back();
  return fits_settings(seated) ? seated : std::vector<Agent*>{};
}

void Rendezvous::notify_waiting_agents(const std::string& text) {
  for (Agent& a : agents_) {
    if (a.taking_part || a.last_notice == text) continue;
    a.last_notice = text;
    Order order{.kind = Order::Kind::wait, .text = text, .may_stay = phase_ == Phase::joining};
    if (started_attempt_ >= 0) order.heritage = heritage();
    queue_order(a, std::move(order));
  }
}

void Rendezvous::start_attempt(const std::vector<Agent*>& seated) {
  for (Agent& a : agents_) {
    a.taking_part = a.reported_states = false;
    a.last_notice.clear();  // so that spare agents get the new state of the job, too
  }
  Order order{
      .kind = Order::Kind::start, .text = previous_failure_, .begun = begun_, .nodes = static_cast<int>(seated.size())};
  order.world = 0;
  nodes_ = seated.size();
  survivors_stay_ &= newest_attempt_ == started_attempt_;  // otherwise survivors may have an older state
  attempt_ = std::max(attempt_, newest_attempt_ + 1);      // a node that joined meanwhile may know a newer attempt
  started_attempt_ = newest_attempt_ = attempt_;
  started_by_ = rules_.host;
  succeeds_ = false;
  members_.clear();
  ended_processes_.clear();
  closed_processes_.clear();
  for (const Agent* a : seated) {
    order.world += a->offer.workers;
    members_.push_back({a->offer.process, a->offer.host, a->offer.at});
  }
  const auto stays = [&](const Agent* a) { return survivors_stay_ && a->end && a->end->stay; };
  replacements_ += std::ranges::any_of(seated, stays);
  order.replacements = replacements_;
  order.heritage = heritage();
  for (Agent* a : seated) {
    a->taking_part = true;
    a->node_rank = order.node_rank;
    order.may_stay = stays(a);
    queue_order(*a, order);
    ++order.node_rank;
    order.first_rank += a->offer.workers;
  }
  for (Agent& a : agents_) a.end.reset();
  phase_ = Phase::running;
  world_ = order.first_rank;
  failures_.clear();
  worker_failed_ = survivors_stay_ = false;
  ranks_.clear();
  stopped_.reset();
  step_ = 0;
  notify_spare_agents();
}

void Rendezvous::notify_spare_agents() {
  const auto nodes = std::ranges::count_if(agents_, &Agent::taking_part);
  if (!end_)
    notify_waiting_agents(str("the job runs with ", nodes, " of ", counted(rules_.max_nodes, "node"),
                              "; this one waits to ",
                              nodes < rules_.max_nodes ? "join after the next failure" : "replace a lost node"));
}

NodeFailure& Rendezvous::cause() {
  return *std::ranges::max_element(failures_,
                                   [](const NodeFailure& a, const NodeFailure& b) { return a.blame < b.blame; });
}

// Returns true once the cause is clear. If ranks only lost a peer, another rank may still report the root cause; if
// ranks hang, the verdict needs the states of all nodes.
bool Rendezvous::is_cause_known(Time now) {
  NodeFailure& why = cause();
  const bool late = now >= cause_deadline_ || all_ended();
  if (why.blame == Blame::lost_peer) return late;
  if (why.blame != Blame::hung) return true;
  if (!late && !have_all_states()) return false;
  std::ranges::sort(ranks_, {}, &RankState::rank);
  if (!ranks_.empty()) why.text = verdict(ranks_, world_);
  return true;
}

bool Rendezvous::have_all_states() const {
  return std::ranges::all_of(agents_, [](const Agent& a) { return !a.taking_part || a.end || a.reported_states; });
}

bool Rendezvous::all_ended() const {
  return std::ranges::all_of(agents_, [](const Agent& a) { return !a.taking_part || a.end; });
}

void Rendezvous::stop_all(const std::string& why) {
  phase_ = Phase::stopping;
  for (const Agent& a : agents_)
    if (a.taking_part && !a.end) queue_order(a, {.kind = Order::Kind::stop, .text = why, .may_stay = may_stay()});
}

bool Rendezvous::may_stay() const { return std::ranges::all_of(failures_, &NodeFailure::replaceable); }

void Rendezvous::restart_or_finish(Time now) {
  // All nodes keep their survivors, or none does.
  survivors_stay_ = may_stay() && std::ranges::all_of(
                                      agents_, [](const Agent& a) { return !a.taking_part || (a.end && a.end->stay); });
  for (Agent& a : agents_) a.taking_part = false;
  if (stopped_) return end_job(*stopped_, "");
  if (failures_.empty()) return end_job(0, "");
  const NodeFailure& why = cause();
  const bool again = why.misfit ? rules_.max_restarts > 0 && different_size_may_fit() : why.restartable;
  if (!again) return end_job(why.code, why.text);
  const std::string no_more = why.misfit ? "" : budget_.request_restart(step_, why.code == kExitOutOfMemory);
  if (!no_more.empty()) return end_job(why.code, why.text, rules_.max_restarts > 0 ? no_more : "");
  previous_failure_ = why.text;
  ++attempt_;
  phase_ = Phase::joining;
  since_ = last_arrival_ = now;
  try_start(now);
}

// Returns true if the settings may fit another number of ranks: with fewer of the present nodes, or with more nodes
// once others join.
bool Rendezvous::different_size_may_fit() {
  misfits_.insert(world_);
  std::vector<Agent*> all = seats();
  const bool full = std::erase(all, nullptr) == 0;
  return !full || !fewer_that_fit(all).empty();
}

void Rendezvous::end_job(int exit_code, const std::string& why, const std::string& verdict) {
  end_ = Order{.kind = Order::Kind::end, .text = why, .verdict = verdict, .attempt = attempt_, .code = exit_code};
  for (const Agent& a : agents_) queue_order(a, *end_);
}

}  // namespace ring
