#include "comm/gloo/gloo.h"

#ifdef RING_WITH_GLOO

#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/host_communicator.h"
#include "comm/link.h"
#include "core/awake_clock.h"
#include "core/signals.h"
#include "job/wait_time.h"

namespace ring {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{100};
constexpr milliseconds kNoLimit = std::chrono::hours(24 * 365);
constexpr std::uint64_t kUnusedTag = ~std::uint64_t{0};

double seconds(milliseconds t) { return std::round(static_cast<double>(t.count()) / 10) / 100; }

// Adapts our Store to Gloo, with a key prefix per group.
class StoreAdapter final : public gloo::rendezvous::Store {
 public:
  StoreAdapter(ring::Store& store, std::string prefix, milliseconds timeout)
      : store_(store), prefix_(std::move(prefix)), timeout_(timeout) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(prefix_ + key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get(prefix_ + key, timeout_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    for (const std::string& key : keys) store_.get(prefix_ + key, timeout);
  }

 private:
  ring::Store& store_;
  std::string prefix_;
  milliseconds timeout_;
};

class GlooLink final : public HostLink {
 public:
  using Device = std::shared_ptr<gloo::transport::Device>;
  static Device open_device(const std::string& address) {
    const BlockSignals block;  // also for Gloo's own thread, which CreateDevice() starts
    gloo::transport::tcp::attr attributes;
    attributes.hostname = address;
    return gloo::transport::tcp::CreateDevice(attributes);
  }

  GlooLink(Device device, int rank, int size, ring::Store& store, const std::string& name, const CommOptions& options)
      : options_(options) {
    const BlockSignals block;
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->setTimeout(options.connect_timeout);
    StoreAdapter adapter(store, name + "/", options.connect_timeout);
    context->connectFullMesh(adapter, device);
    context_ = std::move(context);
    for (int r = 0; r < size; ++r) {
      never_.push_back(r == rank ? nullptr : context_->createUnboundBuffer(&nothing_, sizeof nothing_));
      if (r != rank) never_.back()->recv(r, kUnusedTag, 0, 0);
    }
    meet(size, store, name, options.connect_timeout);
    looking_ = std::thread([this] { wake_waiting(); });
  }
  ~GlooLink() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    stopping_.notify_one();
    if (looking_.joinable()) looking_.join();
  }

  void post_send(int to, std::uint64_t tag, const void* data, std::size_t bytes) override {
    post({to, true, nullptr}, const_cast<void*>(data), bytes, tag);
  }
  void post_recv(int from, std::uint64_t tag, void* data, std::size_t bytes) override {
    post({from, false, nullptr}, data, bytes, tag);
  }
  void wait_all(Deadline deadline) override;
  void abort(const std::string& reason) override;

 private:
  struct Transfer {
    int peer;
    bool send;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  };

  int rank_of_run(int peer) const { return options_.rank_of_run(peer); }
  static void meet(int size, ring::Store& store, const std::string& name, milliseconds timeout);
  void post(Transfer t, void* data, std::size_t bytes, std::uint64_t tag);
  void wait(Transfer& t, Deadline deadline, milliseconds total);
  void wake_waiting();
  std::string why_ended(int peer);
  [[noreturn]] void lost(int peer, const std::string& why);
  void check_aborted();

  CommOptions options_;
  std::shared_ptr<gloo::Context> context_;
  std::byte nothing_{};
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> never_;  // one receive per peer that never completes
  std::vector<Transfer> posted_;  // changed only under mutex_, because abort() reads it
  std::mutex mutex_;
  std::optional<std::string> aborted_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::thread looking_;
};

// Waits until all ranks are connected: otherwise a rank that finishes early would look lost to the last one.
void GlooLink::meet(int size, ring::Store& store, const std::string& name, milliseconds timeout) {
  if (store.add(name + "/connected", 1) == size) store.set(name + "/all_connected", "yes");
  store.get(name + "/all_connected", timeout);
}

void GlooLink::check_aborted() {
  const std::lock_guard lock(mutex_);
  if (aborted_) throw PeerLost(*aborted_);
}

void GlooLink::lost(int peer, const std::string& why) {
  check_aborted();
  throw PeerLost(str("the connection to rank ", rank_of_run(peer), " is lost (see its log for the cause): ", why));
}

void GlooLink::post(Transfer t, void* data, std::size_t bytes, std::uint64_t tag) {
  if (bytes == 0) return;
  t.buffer = context_->createUnboundBuffer(data, bytes);
  auto* buffer = t.buffer.get();
  const int peer = t.peer;
  const bool send = t.send;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw PeerLost(*aborted_);
    posted_.push_back(std::move(t));
  }
  try {
    send ? buffer->send(peer, tag, 0, bytes) : buffer->recv(peer, tag, 0, bytes);
  } catch (const gloo::Exception& e) {
    lost(peer, e.what());
  }
}

// Wakes all waiting transfers every kLook. When a connection ends, Gloo fails the transfers that have not begun, but
// not a half-done one, so waiters must check the connection themselves.
void GlooLink::wake_waiting() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kLook, [this] { return stop_; }))
    for (Transfer& t : posted_) t.send ? t.buffer->abortWaitSend() : t.buffer->abortWaitRecv();
}

// Returns why the connection to a peer ended; "" if it did not. The pending receive in never_ gets Gloo's error, and is
// polled without waiting for a message.
std::string GlooLink::why_ended(int peer) {
  gloo::transport::UnboundBuffer& never = *never_[static_cast<std::size_t>(peer)];
  try {
    never.abortWaitRecv();
    never.waitRecv(nullptr, kLook);
    return "";
  } catch (const gloo::Exception& e) {
    return e.what();
  }
}

// Waits without Gloo's own timeout, which would count the time for which this process was stopped. wake_waiting()
// interrupts each wait, and then this function checks the deadline.
void GlooLink::wait(Transfer& t, Deadline deadline, milliseconds total) {
  for (std::string ended;;) {
    // After the connection has ended, looks only for a message that arrived before.
    const milliseconds limit = ended.empty() ? kNoLimit : milliseconds(1);
    try {
      if (t.send ? t.buffer->waitSend(nullptr, limit) : t.buffer->waitRecv(nullptr, limit)) return;
    } catch (const gloo::Exception& e) {
      lost(t.peer, ended.empty() ? e.what() : ended);
    }
    check_aborted();
    if (AwakeClock::now() >= deadline)
      throw PeerLost(str("no answer from rank ", rank_of_run(t.peer), " within ", seconds(total),
                         " s: it is stopped, stuck, or in a different operation"));
    ended = why_ended(t.peer);
  }
}

void GlooLink::wait_all(Deadline deadline) {
  const auto total = std::chrono::ceil<milliseconds>(deadline - AwakeClock::now());
  const bool receives = std::ranges::any_of(posted_, [](const Transfer& t) { return !t.send; });
  // Only this thread changes the list, so reading it needs no lock. Receives come first, because they detect a lost
  // peer.
  try {
    for (Transfer& t : posted_)
      if (!t.send) wait(t, deadline, total);
    const auto received = WaitClock::now();
    for (Transfer& t : posted_)
      if (t.send) wait(t, deadline, total);
    if (receives) sending_ns += std::chrono::nanoseconds(WaitClock::now() - received).count();
  } catch (...) {
    context_->closeConnections();  // ends every transfer, so that the tensors may be freed
    throw;
  }
  const std::lock_guard lock(mutex_);
  posted_.clear();
}

void GlooLink::abort(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = reason;
    for (Transfer& t : posted_) t.send ? t.buffer->abortWaitSend() : t.buffer->abortWaitRecv();
  }
  context_->closeConnections();
}

}  // namespace

bool gloo_available() { return true; }

std::unique_ptr<HostLink> make_gloo_link(int rank, int size, Store& store, const std::string& name,
                                         const CommOptions& options) {
  const std::string who = str("rank ", options.rank_of_run(rank), " of ", size, " did not connect to the other ranks");
  const auto begin = AwakeClock::now();
  GlooLink::Device device;
  try {
    device = GlooLink::open_device(options.address.empty() ? store.local_address() : options.address);
  } catch (const std::exception& e) {
    fail(who, ": ", e.what());
  }
  try {
    return std::make_unique<GlooLink>(std::move(device), rank, size, store, name, options);
  } catch (const std::exception& e) {
    if (AwakeClock::now() - begin >= options.connect_timeout)
      fail(who, " within ", seconds(options.connect_timeout), " s: ", e.what());
    throw PeerLost(str(who, ": ", e.what()));  // a rank ended, or a foreign connection interfered
  }
}

std::unique_ptr<Communicator> make_gloo_communicator(int rank, int size, std::shared_ptr<Store> store,
                                                     const std::string& name, std::shared_ptr<CommQueue> queue,
                                                     const CommOptions& options) {
  RING_CHECK(store && queue, "gloo: needs a store and a queue");
  std::unique_ptr<HostLink> link = options.make_link ? options.make_link(rank, size, *store, name, options)
                                                     : make_gloo_link(rank, size, *store, name, options);
  return make_host_communicator("gloo", rank, size, std::move(link), std::move(queue), options);
}

}  // namespace ring

#else

namespace ring {

bool gloo_available() { return false; }

std::unique_ptr<HostLink> make_gloo_link(int, int size, Store&, const std::string&, const CommOptions&) {
  fail("a run of ", size,
       " processes needs Gloo, which this build lacks: install libgloo-dev, then configure and build again");
}

std::unique_ptr<Communicator> make_gloo_communicator(int rank, int size, std::shared_ptr<Store> store,
                                                     const std::string& name, std::shared_ptr<CommQueue>,
                                                     const CommOptions& options) {
  make_gloo_link(rank, size, *store, name, options);
  return nullptr;
}

}  // namespace ring

#endif
