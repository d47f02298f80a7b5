#include "comm/queue.h"

#include <atomic>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "comm/communicator.h"
#include "core/signals.h"

namespace ring {

class CommQueue::Done final : public EventImpl {
 public:
  bool done() const override { return done_.load(std::memory_order_acquire); }
  void synchronize() const override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done(); });
    if (error_ && peer_lost_) throw PeerLost(*error_);
    if (error_) throw Error(*error_);
  }
  void set(std::optional<std::string> error, bool peer_lost) {
    {
      const std::lock_guard lock(mutex_);
      error_ = std::move(error);
      peer_lost_ = peer_lost;
      done_.store(true, std::memory_order_release);
    }
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::atomic<bool> done_{false};
  bool peer_lost_ = false;
  std::optional<std::string> error_;  // text only: an exception object must not be shared between threads
};

CommQueue::CommQueue() {
  const BlockSignals block;  // the thread inherits the mask
  thread_ = std::thread([this] { run(); });
}

CommQueue::~CommQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Event CommQueue::push(std::function<void()> task) {
  auto done = std::make_shared<Done>();
  {
    const std::lock_guard lock(mutex_);
    items_.push_back({std::move(task), done});
  }
  wake_.notify_one();
  return Event(std::move(done));
}

void CommQueue::run() {
  for (;;) {
    Item item;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !items_.empty(); });
      if (items_.empty()) return;
      item = std::move(items_.front());
      items_.pop_front();
    }
    std::optional<std::string> error;
    bool peer_lost = false;
    try {
      item.task();
    } catch (const PeerLost& e) {
      error = e.what();
      peer_lost = true;
    } catch (const std::exception& e) {
      error = e.what();
    }
    item.task = nullptr;  // frees its tensors before `done` is set
    item.done->set(std::move(error), peer_lost);
  }
}

}  // namespace ring
