#pragma once
// A HostLink between threads of one process, for tests whose ranks are threads. With Gloo, such tests would spend most
// of their time in the kernel, because Gloo polls its sockets while another thread transfers.

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/link.h"
#include "job/options.h"
#include "job/store.h"

namespace ring::test {

class LocalLink final : public HostLink {
 public:
  // Collective. The ranks find each other by the store's address and by `name`.
  LocalLink(int rank, int size, Store& store, const std::string& name, const CommOptions& options)
      : rank_(rank), options_(options), group_(find_group(str(store.server(), '/', name))) {
    std::unique_lock lock(group_->mutex);
    ++group_->members;
    group_->changed.notify_all();
    if (!group_->changed.wait_for(lock, options.connect_timeout, [&] { return group_->members == size; }))
      fail("rank ", rank, ": the other ranks of ", name, " did not come");
  }
  ~LocalLink() override {
    const std::lock_guard lock(group_->mutex);
    leave();
  }

  void post_send(int to, std::uint64_t tag, const void* data, std::size_t bytes) override {
    post(to, {rank_, to, tag}, {nullptr, data, bytes}, group_->sends, group_->receives);
  }
  void post_recv(int from, std::uint64_t tag, void* data, std::size_t bytes) override {
    post(from, {from, rank_, tag}, {data, nullptr, bytes}, group_->receives, group_->sends);
  }

  void wait_all(Deadline deadline) override {
    std::unique_lock lock(group_->mutex);
    for (const auto& [peer, transfer] : posted_) {
      while (!transfer->done) {
        if (!aborted_.empty()) give_up(aborted_);
        if (group_->left.contains(peer))
          give_up(str("the connection to rank ", options_.rank_of_run(peer), " is lost: that rank left the group"));
        if (AwakeClock::now() >= deadline)
          give_up(str("no answer from rank ", options_.rank_of_run(peer), ": stuck, or in a different operation"));
        group_->changed.wait_for(lock, std::chrono::milliseconds(100));
      }
    }
    posted_.clear();
  }

  void abort(const std::string& reason) override {
    const std::lock_guard lock(group_->mutex);
    if (aborted_.empty()) aborted_ = reason;
    group_->left.insert(rank_);
    group_->changed.notify_all();
  }

 private:
  using Key = std::tuple<int, int, std::uint64_t>;  // sender, receiver, tag
  struct Transfer {
    void* to;
    const void* from;
    std::size_t bytes;
    bool done = false;
  };
  using Transfers = std::map<Key, std::shared_ptr<Transfer>>;
  struct Group {
    std::mutex mutex;
    std::condition_variable changed;
    int members = 0;
    Transfers sends, receives;  // transfers that still wait for their counterpart
    std::set<int> left;         // ranks whose link was aborted or destroyed
  };

  static std::shared_ptr<Group> find_group(const std::string& key) {
    static std::mutex mutex;
    static std::map<std::string, std::weak_ptr<Group>> groups;
    const std::lock_guard lock(mutex);
    std::shared_ptr<Group> group = groups[key].lock();
    if (!group) groups[key] = group = std::make_shared<Group>();
    return group;
  }

  void post(int peer, const Key& key, const Transfer& transfer, Transfers& own, Transfers& others) {
    if (transfer.bytes == 0) return;
    const std::lock_guard lock(group_->mutex);
    if (!aborted_.empty()) give_up(aborted_);
    const auto mine = std::make_shared<Transfer>(transfer);
    posted_.emplace_back(peer, mine);
    const auto it = others.find(key);
    if (it == others.end()) {
      own.emplace(key, mine);
      return;
    }
    const std::shared_ptr<Transfer> theirs = it->second;
    others.erase(it);
    RING_CHECK(theirs->bytes == mine->bytes, "rank ", std::get<0>(key), " sends and rank ", std::get<1>(key),
               " receives messages of ", theirs->bytes, " and ", mine->bytes, " bytes");
    std::memcpy(mine->to ? mine->to : theirs->to, mine->to ? theirs->from : mine->from, mine->bytes);
    mine->done = theirs->done = true;
    group_->changed.notify_all();
  }

  // Leaves the group, after which no rank accesses this rank's memory.
  void leave() {
    std::erase_if(group_->sends, [&](const auto& entry) { return std::get<0>(entry.first) == rank_; });
    std::erase_if(group_->receives, [&](const auto& entry) { return std::get<1>(entry.first) == rank_; });
    group_->left.insert(rank_);
    group_->changed.notify_all();
  }
  [[noreturn]] void give_up(const std::string& reason) {
    leave();
    throw PeerLost(reason);
  }

  int rank_;
  CommOptions options_;
  std::shared_ptr<Group> group_;
  std::string aborted_;
  std::vector<std::pair<int, std::shared_ptr<Transfer>>> posted_;
};

// Returns `options` with links between threads.
inline CommOptions between_threads(CommOptions options = {}) {
  options.make_link = [](int rank, int size, Store& store, const std::string& name, const CommOptions& o) {
    return std::make_unique<LocalLink>(rank, size, store, name, o);
  };
  return options;
}

}  // namespace ring::test
