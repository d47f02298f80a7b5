#include "launcher/rendezvous_client.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/exit_code.h"
#include "core/log.h"
#include "core/signals.h"
#include "job/connection_refused.h"

namespace ring {

using std::chrono::milliseconds;

namespace {

constexpr milliseconds kBeat{500};         // interval between heartbeats
constexpr milliseconds kTry{1'000};        // time limit for one attempt to connect
constexpr milliseconds kPause{100};        // pause between two attempts
constexpr milliseconds kProbe{500};        // time limit for finding out whether an agent answers
constexpr milliseconds kLookAgain{1'000};  // interval at which an agent without a leader looks for a better one
constexpr int kSilentPerLook = 2;          // members without an answer for which one look for a better leader waits
// Time beyond join_timeout that an agent waits for a leader. A leader itself ends the job after join_timeout.
constexpr milliseconds kBeyondLeader{5'000};
const char *const kLeftWord = "left", *const kMovedWord = "went to a different leader";

}  // namespace

RendezvousClient::RendezvousClient(Setup setup)
    : setup_(std::move(setup)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  RING_CHECK(wake_, "eventfd: ", std::strerror(errno));
  setup_.offer.process = setup_.id;
  const BlockSignals block;
  thread_ = std::thread([this] { run(); });
}

RendezvousClient::~RendezvousClient() {
  outbox_.reset();  // sends the remaining reports
  closing_ = true;
  thread_.join();
}

void RendezvousClient::run() {
  meet();
  while (!closing_ && !over_) {
    try {
      follow();
    } catch (const Error& e) {
      on_leader_lost(e.what());
    }
    if (closing_ || over_) break;
    if (move_to_)
      move_to(*std::exchange(move_to_, {}));
    else if (!heritage_)
      meet();
    else
      find_leader();
  }
  say_goodbye(kLeftWord);
}

void RendezvousClient::meet() {
  const auto deadline = find_until_.value_or(Clock::now() + setup_.join_timeout);
  std::string reason = "it sent this node to an agent that started no attempt";
  meeting_ = true;
  while (!closing_ && Clock::now() < deadline) {
    try {
      join(setup_.leader);
      return find_until_.reset();
    } catch (const StoreRefused& e) {
      over_ = true;
      return queue_end_order(str(e.what(), ": give every node the same secret, --rdzv-id and --rdzv-endpoint"));
    } catch (const Error& e) {
      reason = e.what();
    }
    set_waiting(str("node 0 at ", to_string(setup_.leader), ": ", reason));
    std::this_thread::sleep_for(kPause);
  }
  over_ = true;
  queue_end_order(str("node 0 did not admit this node within ", static_cast<double>(setup_.join_timeout.count()) / 1000,
                      " s: ", reason,
                      ". If the job continues without this host, its agents' logs say which --rdzv-endpoint to use"));
}

void RendezvousClient::join(const Endpoint& at) {
  std::shared_ptr<Store> reports = try_store(at, setup_.cookie, kTry);
  store_ = try_store(at, setup_.cookie, kTry, std::min<Timeout>(kAnswerTime, setup_.silence));
  leader_ = store_->get(kOwner, kTry);
  leader_at_ = at;
  open_standby();
  ++session_;
  store_->beat(own_session(), "", setup_.silence, kTry);
  const std::lock_guard lock(mutex_);
  NodeOffer offer = setup_.offer;
  if (heritage_) {
    offer.heritage_key = heritage_key(*heritage_);
    if (!reports->try_get(offer.heritage_key)) reports->set(offer.heritage_key, encode(*heritage_));
  }
  if (started_) offer.attempt = started_->attempt, offer.leader = started_->leader;
  reports->append(kReports, encode(Report{.from = own_session(), .offer = offer}));
  if (started_ && ended_)
    reports->append(kReports, encode(Report{.from = own_session(), .attempt = started_->attempt, .end = ended_}));
  reports_ = std::move(reports);
  reports_from_ = own_session();
  waiting_for_.clear();
  meeting_ = false;
}

// Opens this agent's own store. The agent at the rendezvous endpoint already has one; all others listen at a free port
// of the address from which they reach the endpoint.
void RendezvousClient::open_standby() {
  if (!setup_.lead || setup_.offer.at.port != 0) return;
  const std::string host = setup_.local_addr.empty() ? store_->local_address() : setup_.local_addr;
  try {
    standby_ = start_store({host, 0}, false, setup_.cookie);
  } catch (const ListenError&) {  // only other hosts know this host by this address
    standby_ = start_store({host, 0}, true, setup_.cookie);
    standby_any_ = true;
  }
  const int port = standby_->endpoint().port;
  setup_.offer.at = {host, port};
  tell_visitors(kOwner, setup_.id);
}

// Sets a key in this agent's own store, in which agents wait that take this agent for the leader's successor.
void RendezvousClient::tell_visitors(const std::string& key, const std::string& value) {
  if (!standby_) return;
  const Endpoint own{standby_any_ ? "127.0.0.1" : setup_.offer.at.host, setup_.offer.at.port};
  try {
    connect_store(own, setup_.cookie, kTry)->set(key, value);
  } catch (const Error& e) {
    log::warn("launch: other agents may not find this one: ", e.what());
  }
}

void RendezvousClient::follow() {
  if (!store_) return;
  for (std::int64_t number = 0; !closing_ && !over_ && !move_to_;) {
    store_->beat(own_session(), "", setup_.silence, setup_.silence);
    const auto next_beat = Clock::now() + kBeat;
    while (!closing_ && !over_ && !move_to_ && Clock::now() < next_beat)
      if (auto text = store_->wait_for(orders_of(own_session()) + "/" + std::to_string(number), kBeat / 2)) {
        ++number;
        handle_order(decode_order(*text));
      }
    if (find_until_ && Clock::now() >= next_look_ && is_better_leader_known()) return;
  }
}

void RendezvousClient::handle_order(Order order) {
  if (order.kind == Order::Kind::move) return move_to_ = order.store, void();
  over_ = order.kind == Order::Kind::end;
  if (order.kind == Order::Kind::wait || order.kind == Order::Kind::start) update_heritage();
  queue_order(std::move(order));
}

void RendezvousClient::update_heritage() {
  const auto text = store_->try_get(kHeritage);
  if (!text) return;
  const Heritage h = decode_heritage(*text);
  const bool established = h.leader == leader_;  // this leader has started an attempt
  if (established || !heritage_ || h.attempt >= heritage_->attempt) heritage_ = h;
  if (!established) return;
  find_until_.reset();
  closed_leaders_.clear();
  tell_visitors(kLedFrom, to_string(leader_at_));
}

// Stops the attempt that runs, if any. Before the first attempt there is nothing to continue: the agents meet again.
void RendezvousClient::on_leader_lost(const std::string& why) {
  const std::optional<Member> lost = heritage_ ? member(leader_) : std::nullopt;
  lost_ = str("the agent of node 0", lost ? str(" (", lost->host, ")") : "", " at ", to_string(leader_at_),
              " is lost: ", why);
  const bool closed = why.find(kNoAnswer) == why.npos;
  if (closed) closed_leaders_.insert(leader_);
  store_.reset();
  if (leading_) standby_ = leading_->store();
  leading_.reset();
  ended_processes_.clear();
  silent_.clear();
  tell_visitors(kLedFrom, "");
  if (setup_.lead) return drop_orders(lost_, closed);
  over_ = true;
  queue_end_order(lost_);
}

// Drops the orders of a leader that this agent leaves, and stops the attempt that this leader started.
void RendezvousClient::drop_orders(const std::string& why, bool may_stay) {
  const std::lock_guard lock(mutex_);
  reports_.reset();
  const bool runs = started_ && !ended_;
  std::erase_if(orders_,
                [&](const Order& o) { return !runs || o.kind != Order::Kind::stop || o.attempt != started_->attempt; });
  if (runs && !std::exchange(told_to_stop_, true))
    orders_.push_back({.kind = Order::Kind::stop, .text = why, .attempt = started_->attempt, .may_stay = may_stay});
  wake();
}

void RendezvousClient::find_leader() {
  if (!find_until_) find_until_ = Clock::now() + setup_.join_timeout + kBeyondLeader;
  while (!closing_ && Clock::now() < *find_until_) {
    try {
      if (const auto to = choose_leader(*heritage_, setup_.id, make_probe())) return go_to(*to);
      set_waiting(lost_ + ", and no other agent of the job answers");
    } catch (const Error& e) {
      set_waiting(str(lost_, "; cannot join its successor: ", e.what()));
    }
    std::this_thread::sleep_for(kPause);
  }
  if (closing_) return;
  over_ = true;
  queue_end_order(str(lost_, ", and no successor started an attempt within ",
                      static_cast<double>(setup_.join_timeout.count()) / 1000,
                      " s. Run the same command on every node again"));
}

bool RendezvousClient::is_better_leader_known() {
  if (Clock::now() >= *find_until_) return true;
  const auto to = look_for_leader();
  next_look_ = Clock::now() + kLookAgain;
  if (!leading_ && (!heritage_ || (to && to->process == leader_)))
    if (const auto at = store_->try_get(kLedFrom); at && !at->empty()) move_to_ = parse_endpoint(*at);
  if (!to || to->process == leader_) return false;
  stop_leading(to->at);
  say_goodbye(kMovedWord);
  return true;
}

// Delays heartbeats and orders only shortly: sends a heartbeat before each probe, and after kSilentPerLook members that
// do not answer, leaves the others to the next calls.
std::optional<Member> RendezvousClient::look_for_leader() {
  if (!heritage_) return std::nullopt;
  int left = kSilentPerLook;
  const Probe probe = make_probe();
  const auto to = choose_leader(*heritage_, setup_.id, [&](const Member& m) {
    if (m.process == leader_) return Presence::alive;
    if (left == 0 || silent_.contains(m.process)) return Presence::unknown;
    store_->beat(own_session(), "", setup_.silence, setup_.silence);
    const Presence p = probe(m);
    if (p == Presence::unknown) silent_.insert(m.process), --left;
    return p;
  });
  if (left > 0) silent_.clear();  // all were probed: the next call begins again
  return to;
}

void RendezvousClient::go_to(const Member& to) {
  const bool leads = to.process == setup_.id;
  if (leads && !leading_) {
    if (!standby_) fail("this agent has no address of its own");
    log::warn("launch: ", lost_, "; this node (", to.host, ") takes over at ", to_string(to.at),
              ". New agents can join with --rdzv-endpoint ", to_string(to.at), ", or as before once an agent runs at ",
              to_string(setup_.leader), " again");
    leading_ = setup_.lead({.store = standby_,
                            .at = to.at,
                            .any_address = standby_any_,
                            .heritage = *heritage_,
                            .lost = lost_,
                            .closed = closed_leaders_,
                            .front = setup_.leader});
    standby_.reset();
  }
  join(leads ? leading_->own_endpoint() : to.at);
  if (leader_ != to.process) fail("a different agent answers at ", to_string(to.at));
  if (!leads) stop_leading(to.at);
  if (!leads) log::info("launch: ", lost_, "; this node goes to the agent on ", to.host, " at ", to_string(to.at));
  if (to.process == heritage_->leader) find_until_.reset();  // the leader answers again
  next_look_ = Clock::now() + kLookAgain;
}

// Joins the leader at an address that the current leader gave: its own if it had lost this agent. If no agent answers
// there, run() looks for a leader again.
void RendezvousClient::move_to(const Endpoint& to) {
  const bool to_self = to == setup_.offer.at && !standby_;  // the leader is in this process
  const bool again = to_self || to == leader_at_;
  lost_ = str("the agent at ", to_string(leader_at_), again ? " had lost this node" : " no longer leads the job");
  say_goodbye(kMovedWord);
  if (!to_self) stop_leading(to);
  drop_orders(again ? "the leader of the job had lost this node" : "this node goes to a different leader", false);
  try {
    if (!again && !standby_) setup_.offer.at = {};  // this agent now opens its own store like any other
    log::info("launch: the job is led by the agent at ", to_string(to), ": this node goes there");
    join(to_self ? leader_at_ : to);
    if (heritage_ && leader_ == heritage_->leader)
      find_until_.reset();
    else if (!find_until_)
      find_until_ = Clock::now() + setup_.join_timeout + kBeyondLeader;
  } catch (const Error& e) {
    log::warn("launch: ", e.what());
    store_.reset();
    std::this_thread::sleep_for(kPause);
  }
}

void RendezvousClient::stop_leading(const Endpoint& successor) {
  if (!leading_) return;
  leading_->redirect_agents(successor);
  standby_ = leading_->store();
  leading_.reset();
}

void RendezvousClient::say_goodbye(const char* last_word) {
  if (!store_) return;
  try {
    store_->beat(own_session(), last_word, setup_.silence, kTry);
  } catch (const Error&) {  // the leader is gone
  }
  const std::lock_guard lock(mutex_);
  reports_.reset();
  store_.reset();
}

Probe RendezvousClient::make_probe() {
  return [this](const Member& m) {
    if (ended_processes_.contains(m.process)) return Presence::ended;
    const Presence p = probe(m, setup_.cookie, kProbe);
    if (p == Presence::ended) ended_processes_.insert(m.process);
    return p;
  };
}

std::optional<Member> RendezvousClient::member(const AgentId& process) const {
  const auto at = std::ranges::find(heritage_->members, process, &Member::process);
  return at == heritage_->members.end() ? std::nullopt : std::optional(*at);
}

void RendezvousClient::set_waiting(const std::string& text) {
  const std::lock_guard lock(mutex_);
  waiting_for_ = text;
}

void RendezvousClient::queue_order(Order order) {
  const std::lock_guard lock(mutex_);
  orders_.push_back(std::move(order));
  wake();
}

void RendezvousClient::wake() const {
  const std::uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof one) != sizeof one) return;  // the descriptor is already readable
}

void RendezvousClient::queue_end_order(const std::string& why) {
  queue_order({.kind = Order::Kind::end, .text = why, .code = kExitError});
}

std::optional<Order> RendezvousClient::next_order() {
  const std::lock_guard lock(mutex_);
  std::optional<Order> order;
  if (const auto next = next_due(); next != orders_.end()) {
    order = std::move(*next);
    orders_.erase(next);
  }
  if (order && order->kind == Order::Kind::start) {
    started_ = order;
    ended_.reset();
    told_to_stop_ = false;
  }
  std::uint64_t count = 0;
  const bool none = next_due() == orders_.end();
  if (none && read(wake_.get(), &count, sizeof count) < 0) count = 0;  // the descriptor was already not readable
  return order;
}

// Returns the first order that the caller can carry out now. A new attempt waits until the workers of the last one have
// ended on this node, and so do the orders behind it, except the order that ends the job.
std::deque<Order>::iterator RendezvousClient::next_due() {
  const bool busy = started_ && !ended_;
  if (!busy || orders_.empty() || orders_.front().kind != Order::Kind::start) return orders_.begin();
  return std::ranges::find(orders_, Order::Kind::end, &Order::kind);
}

void RendezvousClient::report(int attempt, const NodeFailure& failure) {
  send({.attempt = attempt, .failure = failure});
}
void RendezvousClient::report(int attempt, const NodeEnd& end) {
  {
    const std::lock_guard lock(mutex_);
    ended_ = end;
    if (!orders_.empty()) wake();
  }
  send({.attempt = attempt, .end = end});
}

void RendezvousClient::report(int attempt, const std::vector<RankState>& ranks) {
  send({.attempt = attempt, .ranks = ranks});
}

// Ignores send errors: thread_ notices when the leader is lost, and reports the end of the attempt to the next leader.
void RendezvousClient::send(const Report& report) {
  outbox_->push([this, report] {
    std::shared_ptr<Store> store;
    Report sent = report;
    {
      const std::lock_guard lock(mutex_);
      store = reports_;
      sent.from = reports_from_;
    }
    if (store) store->append(kReports, encode(sent));
  });
}

std::string RendezvousClient::who_is_missing() {
  const std::lock_guard lock(mutex_);
  return waiting_for_;
}

}  // namespace ring
