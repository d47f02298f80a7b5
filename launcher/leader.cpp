#include "launcher/leader.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/awake_clock.h"
#include "core/check.h"
#include "core/log.h"
#include "core/signals.h"
#include "launcher/messages.h"

namespace ring {

using Clock = AwakeClock;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kTick{50};
constexpr milliseconds kOwnStore{10'000};
constexpr std::chrono::seconds kFarewell{5};
constexpr milliseconds kScoutPause{100}, kScoutTime{1'000};  // pause between two rounds; time for one connection
constexpr milliseconds kAnnounce{500};                       // interval between two calls of announce_at()

}  // namespace

std::unique_ptr<StoreServer> start_store(const Endpoint& at, bool any_address, const std::string& cookie) {
  if (!any_address) return std::make_unique<StoreServer>(at, cookie);
  try {
    return std::make_unique<StoreServer>(Endpoint{"::", at.port}, cookie);
  } catch (const ListenError& e) {
    if (e.code == EADDRINUSE) throw;
    return std::make_unique<StoreServer>(Endpoint{"0.0.0.0", at.port}, cookie);
  }
}

Leader::Leader(Job job, RendezvousRules rules, const Endpoint& at, bool any_address, milliseconds max_silence)
    : Leader(job, std::move(rules), std::nullopt, start_store(at, any_address, job.agents_cookie()), at, any_address,
             max_silence) {}

Leader::Leader(Job job, RendezvousRules rules, const Succession& s, milliseconds max_silence)
    : Leader(std::move(job), std::move(rules), s, s.store, s.at, s.any_address, max_silence) {}

Leader::Leader(Job job, RendezvousRules rules, std::optional<Succession> succession,
               std::shared_ptr<StoreServer> agents, const Endpoint& at, bool any_address, milliseconds max_silence)
    : job_(std::move(job)),
      host_(rules.host),
      at_(at),
      any_(any_address),
      silence_(max_silence),
      succession_(std::move(succession)),
      rendezvous_(succession_
                      ? Rendezvous(rules, succession_->heritage, succession_->lost, succession_->closed, Clock::now())
                      : Rendezvous(rules, Clock::now())),
      agents_(std::move(agents)),
      port_(agents_->endpoint().port) {
  store_ = connect_store(own_endpoint(), job_.agents_cookie(), kOwnStore);
  store_->set(kOwner, host_);
  store_->set(kLedFrom, "");
  if (succession_) succession_->store.reset();  // so that agents_ is the only owner, and its reset() closes connections
  const BlockSignals block;
  thread_ = std::thread([this] { run(); });
  if (rules.max_nodes > 1) scout_ = std::jthread([this](const std::stop_token& stop) { run_scout(stop); });
}

Leader::~Leader() {
  closing_ = true;
  thread_.join();
  try {
    if (agents_) send_redirects();  // if redirect_agents() was called after the thread's last turn
  } catch (const Error&) {          // the store and all connections of agents are gone
  }
}

Endpoint Leader::own_endpoint() const { return {any_ ? "127.0.0.1" : at_.host, port_}; }

void Leader::run() {
  try {
    Clock::time_point end{};
    while (!(closing_ && (!rendezvous_.is_over() || all_agents_left() || Clock::now() > end))) {
      check_for_lost_agents();
      receive_reports();
      exchange_with_scout();
      if (!send_redirects()) {
        rendezvous_.tick(Clock::now());
        send_orders();
      }
      if (!rendezvous_.is_over() || !closing_) end = Clock::now() + kFarewell;
    }
  } catch (const Error& e) {
    log::error("launch: the rendezvous failed: ", e.what());
    agents_.reset();  // closes the connections, so that all agents end
  }
}

void Leader::receive_reports() {
  auto wait = rendezvous_.is_over() ? kTick / 10 : kTick;
  while (auto text = store_->wait_for(kReports + "/" + std::to_string(heard_), wait)) {
    ++heard_;
    wait = milliseconds(0);
    try {
      handle_report(*text);
    } catch (const Error& e) {
      log::warn("launch: ", e.what());
    }
  }
}

void Leader::handle_report(const std::string& text) {
  Report r = decode_report(text);
  const auto now = Clock::now();
  if (r.moved) return on_moved(*r.moved, r.attempt);
  if (closed_.contains(r.from)) return;  // it joined before this agent became the leader, and has left
  known_.insert(r.from);
  if (r.offer) {
    const std::string& key = r.offer->heritage_key;
    if (const auto known = key.empty() ? std::nullopt : store_->try_get(key))
      r.offer->heritage = decode_heritage(*known);
    rendezvous_.join(r.from, *r.offer, now);
  }
  if (r.failure) rendezvous_.on_failure(r.from, r.attempt, *r.failure, now);
  if (r.ranks) rendezvous_.on_states(r.from, r.attempt, *r.ranks, now);
  if (r.end) rendezvous_.on_end(r.from, r.attempt, *r.end, now);
}

void Leader::check_for_lost_agents() {
  for (const Heartbeat& h : store_->beat(host_ + " leads", "", silence_, kOwnStore)) {
    if (!h.last_word.empty()) closed_.insert(h.name);
    if (!known_.contains(h.name) || !gone_.insert(h.name).second) continue;
    const std::string why = h.last_word == kConnectionClosed ? "its connection closed"
                            : h.last_word.empty()            ? str("no sign of life for ", h.age.count() / 1000, " s")
                                                             : "it " + h.last_word;
    rendezvous_.leave(h.name, why, Clock::now(), h.last_word == kConnectionClosed);
    // If the agent still receives this order, it joins again.
    store_->append(orders_of(h.name), encode(Order{.kind = Order::Kind::move, .store = {at_.host, port_}}));
  }
}

void Leader::send_orders() {
  for (auto& [agent, order] : rendezvous_.take_orders()) {
    if (order.heritage && order.heritage != published_) {
      published_ = order.heritage;
      store_->set(kHeritage, encode(*published_));
    }
    if (order.kind == Order::Kind::start) {
      open_store(order.attempt);
      order.store = {at_.host, workers_->endpoint().port};
      order.leader = host_;
    }
    store_->append(orders_of(agent), encode(order));
  }
}

// Uses a new store, port and cookie, so that workers of an earlier attempt cannot connect.
void Leader::open_store(int attempt) {
  if (open_for_ == attempt) return;
  open_for_ = attempt;
  workers_.reset();
  workers_ = start_store({at_.host, 0}, any_, job_.workers_cookie(host_, attempt));
}

void Leader::redirect_agents(const Endpoint& to) {
  const std::lock_guard lock(mutex_);
  moved_ = to;
}

// Redirects the agents to a leader that knows a newer attempt, unless an attempt runs here. If this leader already
// redirects, a later successor replaces the address.
void Leader::on_moved(const Endpoint& to, int attempt) {
  const std::lock_guard lock(mutex_);
  const bool newer =
      moved_ ? attempt >= moved_attempt_ : rendezvous_.is_joining() && attempt > rendezvous_.heritage().attempt;
  if (!newer) return;
  moved_ = to;
  moved_attempt_ = attempt;
}

bool Leader::send_redirects() {
  const std::lock_guard lock(mutex_);
  if (!moved_) return false;
  store_->set(kLedFrom, to_string(*moved_));
  for (const AgentId& id : known_)
    if (!gone_.contains(id) && redirected_.insert(id).second)
      store_->append(orders_of(id), encode(Order{.kind = Order::Kind::move, .store = *moved_}));
  return true;
}

void Leader::exchange_with_scout() {
  const std::lock_guard lock(mutex_);
  for (const AgentId& process : std::exchange(ended_, {})) rendezvous_.on_process_ended(process, Clock::now());
  to_probe_ = rendezvous_.members_to_probe();
  if (!succession_) return;
  const Heritage now = rendezvous_.heritage();
  attempt_ = now.attempt;
  started_ = now.leader == host_;
  fronts_ = {succession_->front};
  for (const Member& m : succession_->heritage.members)
    if (std::ranges::find(now.members, m.process, &Member::process) == now.members.end()) fronts_.push_back(m.at);
}

void Leader::run_scout(const std::stop_token& stop) {
  Clock::time_point next{};
  while (!stop.stop_requested()) {
    std::unique_lock lock(mutex_);
    scout_wake_.wait_for(lock, stop, kScoutPause, [] { return false; });
    const std::vector<Member> absent = to_probe_;
    const int attempt = attempt_;
    const bool started = started_;
    const std::vector<Endpoint> fronts = fronts_;
    lock.unlock();
    for (const Member& m : absent) {
      if (stop.stop_requested()) return;
      if (probe(m, job_.agents_cookie(), kScoutTime) != Presence::ended) continue;
      const std::lock_guard again(mutex_);
      ended_.push_back(m.process);
    }
    if (!succession_ || Clock::now() < next) continue;
    for (const Endpoint& at : fronts) {
      if (stop.stop_requested()) return;
      announce_at(at, attempt, started);
    }
    next = Clock::now() + kAnnounce;
  }
}

// Tells the agent at `front` that this agent leads. Agents of the last attempt are told only once this leader has
// started an attempt: until then, they return to their previous leader if it answers again. An agent at the rendezvous
// endpoint that already redirects is always told, since it redirects new agents to a leader that is lost.
void Leader::announce_at(const Endpoint& front, int attempt, bool started) {
  try {
    const auto store = try_store(front, job_.agents_cookie(), kScoutTime, kScoutTime);
    const auto owner = store->try_get(kOwner);
    const bool is_member = owner && std::ranges::find(succession_->heritage.members, *owner, &Member::process) !=
                                        succession_->heritage.members.end();
    const std::string led_from = store->try_get(kLedFrom).value_or("");
    const bool redirects = front == succession_->front && !led_from.empty();
    if (!owner || (is_member && !started && !redirects) || led_from == to_string(at_)) return;
    store->append(kReports, encode(Report{.from = host_, .attempt = attempt, .moved = at_}));
  } catch (const Error&) {  // no agent listens there
  }
}

bool Leader::all_agents_left() const {
  for (const AgentId& id : known_)
    if (!gone_.contains(id)) return false;
  return true;
}

}  // namespace ring
