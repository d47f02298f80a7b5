#pragma once
// The store's values and sessions, without sockets: bytes come in, and bytes go out. A client is a stranger until it
// has proved that it knows the cookie; strangers get little memory and little time.

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/awake_clock.h"
#include "job/store_handshake.h"
#include "job/store_protocol.h"

namespace ring {

inline constexpr std::size_t kMaxStrangers = 256;  // if there are more, the oldest one is closed
inline constexpr std::size_t kMaxStrangersPerAddress = kMaxStrangers / 2;
inline constexpr std::size_t kMaxStoreBytes = std::size_t{256} << 20;  // maximum size of all keys and values together
// Maximum unsent bytes of a session. A session with more is full and is not read from.
inline constexpr std::size_t kMaxUnsent = 4 * store_protocol::kMaxFrame;
inline constexpr std::chrono::seconds kHelloTime{5};  // time for a stranger to prove that it knows the cookie
// Minimum time before a stranger is closed to make way for another.
inline constexpr std::chrono::milliseconds kMinStrangerTime{500};

class StoreSessions {
 public:
  using Clock = AwakeClock;
  struct Session {
    std::string client;    // address of the client (client_of() in job/socket.h)
    bool trusted = false;  // true once the client has proved that it knows the cookie
    std::string nonce;     // the server's nonce, which must be covered by the proof (job/store_handshake.h)
    bool closing = false;  // true if the session is closed once `out` is sent
    std::string in, out;
    std::string waiting_for;                       // key of the pending get request
    std::string beats_as;                          // name under which it sends heartbeats
    std::optional<Clock::duration> silence_limit;  // silence limit of a heartbeat that has not been answered yet
    Clock::time_point deadline;                    // deadline for the hello or for the pending get
    bool full() const { return out.size() > kMaxUnsent; }
  };
  using Iterator = std::list<Session>::iterator;

  // new_nonce: returns a new nonce in each call.
  explicit StoreSessions(std::string cookie, std::function<std::string()> new_nonce = store_handshake::random_nonce)
      : cookie_(std::move(cookie)), new_nonce_(std::move(new_nonce)) {}

  Iterator open(Clock::time_point now, std::string client = "");
  // Handles all complete requests. While the session is full (kMaxUnsent), further requests stay in `in` until the next
  // call. Throws Error if the client violates the protocol: then close the session.
  void receive(Session&, std::string_view bytes, Clock::time_point now);
  void close(Iterator, Clock::time_point now);
  // Answers heartbeats. Call after receiving everything that has arrived: if this process was stopped, heartbeats that
  // arrived meanwhile are still unread, and their senders would wrongly count as silent.
  void answer_heartbeats(Clock::time_point now);
  // Answers get requests whose timeout has passed, and sets `closing` for strangers that took too long.
  void handle_timeouts(Clock::time_point now);
  Clock::time_point next_deadline(Clock::time_point latest) const;
  // Returns the oldest stranger if it has had its minimum time.
  std::optional<Iterator> stranger_to_replace(Clock::time_point now);
  // Returns the stranger to close if the newcomer's address has too many strangers: the oldest one from that address if
  // it has had its minimum time, else the newcomer, which may try again.
  std::optional<Iterator> crowding_stranger(Iterator newcomer, Clock::time_point now);
  std::size_t num_strangers() const;

 private:
  void greet(Session&, const store_protocol::Request&);
  void handle(Session&, const store_protocol::Request&, Clock::time_point now);
  void put_value(const std::string& key, std::string value);
  void add(Session&, const store_protocol::Request&);
  void append(Session&, const store_protocol::Request&);
  void beat(Session&, const store_protocol::Request&, Clock::time_point now);
  bool has_room(const std::string& key, std::size_t value_bytes) const;

  struct Pulse {
    Clock::time_point last;
    std::string last_word;  // last message of a sender that has ended; empty while it is alive
  };

  std::string cookie_;
  std::function<std::string()> new_nonce_;
  std::list<Session> sessions_;  // in order of arrival
  std::map<std::string, std::string> values_;
  std::map<std::string, Pulse> pulses_;
  std::size_t bytes_ = 0;  // size of keys, values, names and last words
};

}  // namespace ring
