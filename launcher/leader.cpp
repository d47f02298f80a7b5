#include "launcher/leader.h"

#include <cerrno>

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

}  // namespace

Leader::Leader(Job job, RendezvousRules rules, const Endpoint& at, bool any_address, milliseconds max_silence)
    : job_(std::move(job)),
      host_(rules.host),
      at_(at),
      any_(any_address),
      silence_(max_silence),
      rendezvous_(std::move(rules), Clock::now()),
      agents_(start_store(at.port, job_.agents_cookie())),
      port_(agents_->endpoint().port) {
  store_ = connect_store(own_endpoint(), job_.agents_cookie(), kOwnStore);
  const BlockSignals block;
  thread_ = std::thread([this] { run(); });
}

Leader::~Leader() {
  closing_ = true;
  thread_.join();
}

// Opens a store. If any_ is set, it listens on all IPv6 and IPv4 addresses that the host has.
std::unique_ptr<StoreServer> Leader::start_store(int port, const std::string& cookie) const {
  if (!any_) return std::make_unique<StoreServer>(Endpoint{at_.host, port}, cookie);
  try {
    return std::make_unique<StoreServer>(Endpoint{"::", port}, cookie);
  } catch (const ListenError& e) {
    if (e.code == EADDRINUSE) throw;
    return std::make_unique<StoreServer>(Endpoint{"0.0.0.0", port}, cookie);
  }
}

Endpoint Leader::own_endpoint() const { return {any_ ? "127.0.0.1" : at_.host, port_}; }

void Leader::run() {
  try {
    Clock::time_point end{};
    while (!(closing_ && (!rendezvous_.is_over() || all_agents_left() || Clock::now() > end))) {
      receive_reports();
      check_for_lost_agents();
      rendezvous_.tick(Clock::now());
      send_orders();
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
  const Report r = decode_report(text);
  const auto now = Clock::now();
  known_.insert(r.from);
  if (r.offer) rendezvous_.join(r.from, *r.offer, now);
  if (r.failure) rendezvous_.on_failure(r.from, r.attempt, *r.failure, now);
  if (r.ranks) rendezvous_.on_states(r.from, r.attempt, *r.ranks, now);
  if (r.end) rendezvous_.on_end(r.from, r.attempt, *r.end, now);
}

void Leader::check_for_lost_agents() {
  for (const Heartbeat& h : store_->beat(host_ + " leads", "", silence_, kOwnStore)) {
    if (!known_.contains(h.name) || !gone_.insert(h.name).second) continue;
    const std::string why = h.last_word == kConnectionClosed ? "its connection closed"
                            : h.last_word.empty()            ? str("no sign of life for ", h.age.count() / 1000, " s")
                                                             : "it " + h.last_word;
    rendezvous_.leave(h.name, why, Clock::now());
    store_->append(
        orders_of(h.name),
        encode(Order{.kind = Order::Kind::end, .text = "the leader gave up on this agent: " + why, .code = 1}));
  }
}

void Leader::send_orders() {
  for (auto& [agent, order] : rendezvous_.take_orders()) {
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
  workers_ = start_store(0, job_.workers_cookie(host_, attempt));
}

bool Leader::all_agents_left() const {
  for (const AgentId& id : known_)
    if (!gone_.contains(id)) return false;
  return true;
}

}  // namespace ring
