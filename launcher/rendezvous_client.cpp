#include "launcher/rendezvous_client.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/awake_clock.h"
#include "core/check.h"
#include "core/exit_code.h"
#include "core/signals.h"

namespace ring {

using Clock = AwakeClock;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kBeat{500};   // interval between heartbeats
constexpr milliseconds kTry{1'000};  // time limit for one attempt to connect
constexpr milliseconds kPause{100};  // pause between two attempts

}  // namespace

RendezvousClient::RendezvousClient(Setup setup)
    : setup_(std::move(setup)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  RING_CHECK(wake_, "eventfd: ", std::strerror(errno));
  const BlockSignals block;
  thread_ = std::thread([this] { run(); });
}

RendezvousClient::~RendezvousClient() {
  outbox_.reset();  // sends the remaining reports
  closing_ = true;
  thread_.join();
}

void RendezvousClient::run() {
  if (!connect()) return;
  try {
    std::int64_t number = 0;
    for (bool more = true; more && !closing_;) {
      store_->beat(setup_.id, "", setup_.silence, setup_.silence);
      const auto next_beat = Clock::now() + kBeat;
      while (more && !closing_ && Clock::now() < next_beat)
        if (auto text = store_->wait_for(orders_of(setup_.id) + "/" + std::to_string(number), kBeat / 2)) {
          const Order order = decode_order(*text);
          more = order.kind != Order::Kind::end;
          ++number;
          queue_order(order);
        }
    }
    store_->beat(setup_.id, "left", setup_.silence, kTry);
  } catch (const Error& e) {
    queue_end_order(str("the agent of node 0 at ", to_string(setup_.leader), " is lost (", e.what(),
                        "), without which the job cannot continue"));
  }
}

bool RendezvousClient::connect() {
  const auto deadline = Clock::now() + setup_.join_timeout;
  std::string reason;
  while (!closing_ && Clock::now() < deadline) {
    try {
      auto reports = try_store(setup_.leader, setup_.cookie, kTry);
      store_ = try_store(setup_.leader, setup_.cookie, kTry);
      const std::lock_guard lock(mutex_);
      reports_ = std::move(reports);
      local_address_ = store_->local_address();
      waiting_for_.clear();
      store_->beat(setup_.id, "", setup_.silence, kTry);
      reports_->append(kReports, encode(Report{.from = setup_.id, .offer = setup_.offer}));
      return true;
    } catch (const StoreRefused& e) {
      queue_end_order(str(e.what(), ": give every node the same secret, --rdzv-id and --rdzv-endpoint"));
      return false;
    } catch (const Error& e) {
      reason = e.what();
    }
    {
      const std::lock_guard lock(mutex_);
      waiting_for_ = str("node 0 at ", to_string(setup_.leader), ": ", reason);
    }
    std::this_thread::sleep_for(kPause);
  }
  queue_end_order(str("node 0 did not admit this node within ", static_cast<double>(setup_.join_timeout.count()) / 1000,
                      " s: ", reason));
  return false;
}

void RendezvousClient::queue_order(Order order) {
  const std::lock_guard lock(mutex_);
  orders_.push_back(std::move(order));
  const std::uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof one) != sizeof one) return;  // the descriptor is already readable
}

void RendezvousClient::queue_end_order(const std::string& why) {
  queue_order({.kind = Order::Kind::end, .text = why, .code = kExitError});
}

std::optional<Order> RendezvousClient::next_order() {
  const std::lock_guard lock(mutex_);
  if (orders_.empty()) return {};
  Order order = std::move(orders_.front());
  orders_.pop_front();
  std::uint64_t count = 0;
  if (orders_.empty() && read(wake_.get(), &count, sizeof count) < 0) return order;
  return order;
}

void RendezvousClient::report(int attempt, const NodeFailure& failure) {
  send({.from = setup_.id, .attempt = attempt, .failure = failure});
}
void RendezvousClient::report(int attempt, const NodeEnd& end) {
  send({.from = setup_.id, .attempt = attempt, .end = end});
}

void RendezvousClient::report(int attempt, const std::vector<RankState>& ranks) {
  send({.from = setup_.id, .attempt = attempt, .ranks = ranks});
}

// Does not check for errors: thread_ notices when the leader is lost.
void RendezvousClient::send(const Report& report) {
  outbox_->push([this, text = encode(report)] { reports_->append(kReports, text); });
}

std::string RendezvousClient::who_is_missing() {
  const std::lock_guard lock(mutex_);
  return waiting_for_;
}

std::string RendezvousClient::local_address() {
  const std::lock_guard lock(mutex_);
  return local_address_;
}

}  // namespace ring
