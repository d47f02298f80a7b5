#pragma once
// The one communication thread of a process: tasks run one after the other, in the order in which they were pushed.

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "core/stream.h"

namespace ring {

class CommQueue {
 public:
  CommQueue();
  ~CommQueue();  // runs what is queued; abort the communicators first when their peers may be gone
  CommQueue(const CommQueue&) = delete;
  CommQueue& operator=(const CommQueue&) = delete;

  // The event is done when the task has run; waiting for it rethrows what the task threw.
  Event push(std::function<void()> task);

 private:
  class Done;
  struct Item {
    std::function<void()> task;
    std::shared_ptr<Done> done;
  };
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Item> items_;
  bool stop_ = false;
  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace ring
