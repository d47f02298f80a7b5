#include "job/liveness.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/awake_clock.h"
#include "core/check.h"
#include "core/signals.h"

namespace ring {
namespace {

using std::chrono::milliseconds;
using Clock = AwakeClock;

constexpr milliseconds kPeriod{500}, kUrgentPeriod{20}, kConnectTime{60'000};
const std::string kLeft = "left", kFailed = "failed";

double seconds(milliseconds t) { return static_cast<double>(t.count() / 100) / 10; }

// Returns why a rank is lost, if one is. Ranks that died are reported before ranks that failed and left because of
// them; among ranks of the same kind, the one that has been silent for longest is reported first.
std::optional<std::string> find_lost(std::vector<Heartbeat> others, const std::string& own) {
  const auto rank_of = [](const Heartbeat& h) { return h.last_word == kFailed ? 1 : h.last_word == kLeft ? 2 : 0; };
  std::erase_if(others, [&](const Heartbeat& h) { return h.name == own || h.last_word == kLeft; });
  if (others.empty()) return std::nullopt;
  const Heartbeat& h = *std::min_element(others.begin(), others.end(), [&](const Heartbeat& a, const Heartbeat& b) {
    return rank_of(a) != rank_of(b) ? rank_of(a) < rank_of(b) : a.age > b.age;
  });
  if (h.last_word == kFailed) return h.name + " failed and left the run (see its log for the cause)";
  if (h.last_word == kConnectionClosed) return h.name + " died: its connection to the store closed without a goodbye";
  return str(h.name, " gave no sign of life for ", seconds(h.age), " s: it is stopped, killed or cut off");
}

}  // namespace

class Liveness::Impl {
 public:
  Impl(const Store& store, const Setup& setup, OnLost on_lost)
      : name_(str("rank ", setup.rank, " on ", host_name())),
        setup_(setup),
        limit_(setup.limit),
        on_lost_(std::move(on_lost)),
        store_(store.another_connection(std::min(setup.store_limit, kConnectTime))) {
    store_->beat(name_, "", limit_, setup_.store_limit);  // makes this rank visible to the other ranks
    const BlockSignals block;
    thread_ = std::thread([this] { watch(); });
  }

  void leave(bool failed) {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(stop_, true)) return;
    }
    wake_.notify_all();
    thread_.join();
    try {
      say_goodbye(failed);
    } catch (const Error&) {
      // the store is gone, so no rank can receive the goodbye
    }
  }

  std::string lost_rank_text() {
    std::unique_lock lock(mutex_);
    asked_ = true;
    wake_.notify_all();
    wake_.wait_for(lock, 2 * kPeriod, [this] { return stop_ || !verdict_.empty(); });
    asked_ = false;
    return verdict_;
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!stop_ && !store_lost_) {
      lock.unlock();
      const std::optional<std::string> lost = look();
      const bool news = lost && verdict_.empty();  // only this thread sets verdict_
      lock.lock();
      if (news) verdict_ = *lost;
      wake_.notify_all();
      if (news) {  // on_lost_ may take long; callers of who_is_lost() do not wait for it
        lock.unlock();
        on_lost_(*lost);
        lock.lock();
      }
      if (asked_) wake_.wait_for(lock, kUrgentPeriod, [this] { return stop_; });
      if (!asked_) wake_.wait_for(lock, std::min(kPeriod, limit_ / 4), [this] { return stop_ || asked_; });
    }
  }

  std::optional<std::string> look() {  // returns why a rank or the store is lost; called only on the background thread
    try {
      std::vector<Heartbeat> others = store_->beat(name_, "", limit_, setup_.store_limit);
      // If this process was stopped, silent ranks may have been stopped at the same time.
      if (AwakeClock::since_gap() < limit_)
        std::erase_if(others, [](const Heartbeat& h) { return h.last_word.empty(); });
      // If a rank has left, it may have hosted the store: then the loss of the store is expected.
      if (std::any_of(others.begin(), others.end(), [](const Heartbeat& h) { return h.last_word == kLeft; }))
        some_left_ = true;
      return find_lost(std::move(others), name_);
    } catch (const Error& e) {
      store_lost_ = true;
      if (some_left_) return std::nullopt;
      return str(e.what(), "; ", setup_.server, ", which serves it, is dead, stopped or cut off");
    }
  }

  void say_goodbye(bool failed) {
    if (store_lost_) return;
    auto all = store_->beat(name_, failed ? kFailed : kLeft, milliseconds(-1), setup_.store_limit);
    const auto deadline = Clock::now() + 2 * kPeriod;
    const auto alive = [](const Heartbeat& h) { return h.last_word.empty(); };
    while (setup_.hosts_store && !failed && Clock::now() < deadline && std::any_of(all.begin(), all.end(), alive)) {
      std::this_thread::sleep_for(milliseconds(5));
      all = store_->beat(name_, kLeft, milliseconds(-1), setup_.store_limit);
    }
  }

  std::string name_;
  Setup setup_;
  milliseconds limit_;
  OnLost on_lost_;
  std::unique_ptr<Store> store_;  // connection used only by this thread
  bool some_left_ = false, store_lost_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false, asked_ = false;
  std::string verdict_;
  std::thread thread_;
};

Liveness::Liveness(const Store& store, const Setup& setup, OnLost on_lost)
    : impl_(std::make_unique<Impl>(store, setup, std::move(on_lost))) {}

Liveness::~Liveness() { say_goodbye(); }
void Liveness::say_goodbye() { impl_->leave(std::uncaught_exceptions() > 0); }
std::string Liveness::lost_rank_text() { return impl_->lost_rank_text(); }

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown host";
}

std::string host_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  return host_name() + "/" + boot;
}

}  // namespace ring
