#pragma once
// The store's values and sessions, without sockets: bytes come in, bytes go out. A client is a stranger until it has
// proved that it knows the cookie; strangers get little memory and little time.

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/awake_clock.h"
#include "job/secret.h"
#include "job/store_protocol.h"

namespace ring {

inline constexpr std::size_t kMaxStrangers = 256;                         // if there are more, the oldest is closed
inline constexpr std::size_t kMaxStrangersOfOne = kMaxStrangers / 2;      // strangers from one address
inline constexpr std::size_t kMaxStoreBytes = std::size_t{256} << 20;     // total of all keys and values
inline constexpr std::size_t kMaxUnread = 4 * store_protocol::kMaxFrame;  // unsent bytes that stop reading
inline constexpr std::chrono::seconds kHelloTime{5};      // time for a stranger to prove that it knows the cookie
inline constexpr std::chrono::milliseconds kChance{500};  // minimum time before a stranger is closed for another one

class StoreSessions {
 public:
  using Clock = AwakeClock;
  struct Session {
    std::string client;    // see client_of()
    bool trusted = false;  // has proved that it knows the cookie
    std::string number;    // nonce that the proof must cover (job/store_handshake.h)
    bool closing = false;  // close once `out` is sent
    std::string in, out;
    std::string waiting_for;                     // key of a pending get
    std::string beats_as;                        // name under which it sends heartbeats
    std::optional<Clock::duration> asks_silent;  // limit of a heartbeat that still needs its answer
    Clock::time_point deadline;                  // for the hello or the pending get
    bool full() const { return out.size() > kMaxUnread; }
  };
  using Iterator = std::list<Session>::iterator;

  // new_number: returns a new nonce at each call.
  explicit StoreSessions(std::string cookie, std::function<std::string()> new_number = random_cookie)
      : cookie_(std::move(cookie)), new_number_(std::move(new_number)) {}

  Iterator open(Clock::time_point now, std::string client = "");
  // Handles all complete requests; while the session is full, further ones stay in `in` until the next call. Throws
  // Error if the client violates the protocol: close the session then.
  void receive(Session&, std::string_view bytes, Clock::time_point now);
  void close(Iterator, Clock::time_point now);
  // Answers heartbeats. Call after everything that had arrived was received: if this process itself was stopped, the
  // others were not silent.
  void answer_beats(Clock::time_point now);
  // Answers get requests whose timeout has passed, and marks strangers that took too long as closing.
  void expire(Clock::time_point now);
  Clock::time_point next_deadline(Clock::time_point latest) const;
  // Returns the oldest stranger if it had its minimum time.
  std::optional<Iterator> stranger_to_replace(Clock::time_point now);
  // Returns the stranger to close if the newcomer's address has too many: the oldest of that address if it had its
  // minimum time, else the newcomer, which may try again.
  std::optional<Iterator> crowding_stranger(Iterator newcomer, Clock::time_point now);
  std::size_t strangers() const;

 private:
  void greet(Session&, const store_protocol::Request&);
  void handle(Session&, const store_protocol::Request&, Clock::time_point now);
  void put_value(const std::string& key, std::string value);
  void add(Session&, const store_protocol::Request&);
  void append(Session&, const store_protocol::Request&);
  void beat(Session&, const store_protocol::Request&, Clock::time_point now);
  bool has_room(const std::string& key, std::size_t value) const;

  struct Pulse {
    Clock::time_point last;
    std::string word;
  };

  std::string cookie_;
  std::function<std::string()> new_number_;
  std::list<Session> sessions_;  // in order of arrival
  std::map<std::string, std::string> values_;
  std::map<std::string, Pulse> pulses_;
  std::size_t bytes_ = 0;  // of keys, values, names and last words
};

}  // namespace ring
