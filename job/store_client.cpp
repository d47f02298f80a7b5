#include <charconv>
#include <mutex>
#include <thread>

#include "core/awake_clock.h"
#include "job/store.h"
#include "job/store_handshake.h"
#include "job/store_protocol.h"

namespace ring {

using namespace store_protocol;
using Clock = AwakeClock;

namespace {

constexpr std::size_t kMinReply = sizeof kMagic + sizeof(Status);
constexpr std::chrono::milliseconds kRetryInterval{50};

class TcpStore final : public Store {
 public:
  TcpStore(const Endpoint& server, const std::string& cookie, SocketDeadline deadline, Timeout answer_time)
      : server_(server), cookie_(cookie), answer_time_(answer_time), fd_(connect_to(server, deadline)) {
    // The handshake has a limit of its own, so that connect_store() tries again if a server does not answer.
    greet(std::min<SocketDeadline>(deadline, Clock::now() + kAnswerTime));
    local_address_ = local_endpoint(fd_).host;
  }

  void set(const std::string& key, const std::string& value) override {
    RING_CHECK(value.size() <= kMaxStoreValue, "store: value of '", key, "' has ", value.size(), " bytes, but at most ",
               kMaxStoreValue, " are allowed");
    if (call({Op::set, 0, checked(key), value}, Clock::now() + answer_time_).status != Status::ok)
      fail("store at ", to_string(server_), ": has no room for '", key, "'");
  }
  std::optional<std::string> wait_for(const std::string& key, Timeout timeout) override {
    Reply r = call({Op::get, timeout.count(), checked(key), ""}, Clock::now() + timeout + answer_time_);
    if (r.status != Status::ok) return std::nullopt;
    return std::move(r.value);
  }
  std::int64_t add(const std::string& key, std::int64_t delta) override {
    const auto sum = number(call({Op::add, delta, checked(key), ""}, Clock::now() + answer_time_));
    if (!sum) fail("store at ", to_string(server_), ": cannot add ", delta, " to '", key, "'");
    return *sum;
  }
  std::int64_t append(const std::string& list, const std::string& value) override {
    const auto place = number(call({Op::append, 0, checked(list), value}, Clock::now() + answer_time_));
    if (!place) fail("store at ", to_string(server_), ": has no room in the list '", list, "'");
    return *place;
  }
  std::string local_address() const override { return local_address_; }
  std::vector<Heartbeat> beat(const std::string& name, const std::string& last_word, Timeout silent,
                              Timeout timeout) override {
    return take_heartbeats(call({Op::beat, silent.count(), checked(name), last_word}, Clock::now() + timeout).value);
  }
  std::unique_ptr<Store> another_connection(Timeout timeout) const override {
    return connect_store(server_, cookie_, timeout, answer_time_);
  }
  std::string server() const override { return to_string(server_); }

 private:
  struct Reply {
    Status status;
    std::string value;
  };

  // Both sides prove that they know the cookie.
  void greet(SocketDeadline deadline) {
    const std::string server_nonce = call({Op::hello, 0, "", ""}, deadline).value;
    const std::string client_nonce = store_handshake::random_nonce();
    const std::string proof = store_handshake::client_says(cookie_, server_nonce, client_nonce);
    const Reply r = call({Op::hello, 0, "", proof}, deadline);
    if (r.status != Status::ok ||
        !same_secret(r.value, store_handshake::proof(cookie_, "server", server_nonce, client_nonce)))
      throw StoreRefused(str("the store at ", to_string(server_),
                             " belongs to a different job, or has a different secret (its cookie differs)"));
  }
  static std::optional<std::int64_t> number(const Reply& r) {
    std::int64_t n = 0;
    const auto [end, error] = std::from_chars(r.value.data(), r.value.data() + r.value.size(), n);
    if (r.status != Status::ok || error != std::errc{} || end != r.value.data() + r.value.size()) return {};
    return n;
  }
  static const std::string& checked(const std::string& key) {
    RING_CHECK(!key.empty() && key.size() <= kMaxKey, "store: a key has 1 to ", kMaxKey, " bytes, got ", key.size());
    return key;
  }

  Reply call(const Request& request, SocketDeadline deadline) {
    const std::lock_guard lock(mutex_);
    try {
      if (!fd_) fail("the connection was lost");
      send_all(fd_, encode(request), deadline);
      std::size_t at = 0;
      const auto length = take<std::uint32_t>(recv_exactly(fd_, 4, deadline), at);
      if (length < kMinReply || length > kMaxFrame) fail("it does not speak the store's protocol");
      const std::string payload = recv_exactly(fd_, length, deadline);
      at = 0;
      if (take<std::uint32_t>(payload, at) != kMagic) fail("it does not speak the store's protocol");
      const auto status = take<Status>(payload, at);
      return {status, payload.substr(at)};
    } catch (const Error& e) {
      fd_.reset();  // a late answer must not be read as the answer to the next request
      fail("store at ", to_string(server_), ": ", e.what());
    }
  }

  Endpoint server_;
  std::string cookie_;
  Timeout answer_time_;
  std::mutex mutex_;
  Fd fd_;
  std::string local_address_;
};

}  // namespace

std::string Store::get(const std::string& key, Timeout timeout) {
  std::optional<std::string> value = wait_for(key, std::max(timeout, Timeout(1)));  // 0 would not wait at all
  if (!value)
    fail("store at ", server(), ": nobody set '", key, "' within ", static_cast<double>(timeout.count()) / 1000, " s");
  return std::move(*value);
}

std::unique_ptr<Store> try_store(const Endpoint& server, const std::string& cookie, Timeout timeout,
                                 Timeout answer_time) {
  return std::make_unique<TcpStore>(server, cookie, Clock::now() + timeout, answer_time);
}

std::unique_ptr<Store> connect_store(const Endpoint& server, const std::string& cookie, Timeout timeout,
                                     Timeout answer_time) {
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    try {
      return std::make_unique<TcpStore>(server, cookie, deadline, answer_time);
    } catch (const StoreRefused&) {
      throw;
    } catch (const Error& e) {
      if (Clock::now() + kRetryInterval >= deadline)
        fail(e.what(), " (tried for ", static_cast<double>(timeout.count()) / 1000, " s)");
    }
    std::this_thread::sleep_for(kRetryInterval);
  }
}

}  // namespace ring
