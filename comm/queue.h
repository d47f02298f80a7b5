#pragma once
// The communication thread of a process: runs tasks one after the other, in the order of push().

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
  ~CommQueue();  // runs all queued tasks; if peers may be gone, first abort the communicators
  CommQueue(const CommQueue&) = delete;
  CommQueue& operator=(const CommQueue&) = delete;

  // Returns an event that completes when the task has ended. Waiting for it rethrows the task's exception.
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
  std::thread thread_;  // last member: started after all others exist
};

}  // namespace ring
