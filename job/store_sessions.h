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
#include "job/secret.h"
#include "job/store_protocol.h"

namespace ring {

inline constexpr std::size_t kMaxStrangers = 256;                      // if there are more, the oldest one is closed
inline constexpr std::size_t kMaxStrangersOfOne = kMaxStrangers / 2;   // maximum number of strangers from one address
inline constexpr std::size_t kMaxStoreBytes = std::size_t{256} << 20;  // maximum size of all keys and values together
// If more bytes are unsent, the session is not read from.
inline constexpr std::size_t kMaxUnread = 4 * store_protocol::kMaxFrame;
inline constexpr std::chrono::seconds kHelloTime{5};  // time for a stranger to prove that it knows the cookie
// Minimum time before a stranger is closed to make way for another.
inline constexpr std::chrono::milliseconds kChance{500};

class StoreSessions {
 public:
  using Clock = AwakeClock;
  struct Session {
    std::string client;    // see client_of()
    bool trusted = false;  // true once the client has proved that it knows the cookie
    std::string number;    // nonce that must be covered by the proof (job/store_handshake.h)
    bool closing = false;  // true if the session is closed once `out` is sent
    std::string in, out;
    std::string waiting_for;                     // key of the pending get request
    std::string beats_as;                        // name under which it sends heartbeats
    std::optional<Clock::duration> asks_silent;  // silence limit of a heartbeat that has not been answered yet
    Clock::time_point deadline;                  // deadline for the hello or for the pending get
    bool full() const { return out.size() > kMaxUnread; }
  };
  using Iterator = std::list<Session>::iterator;

  // new_number: returns a new nonce in each call.
  explicit StoreSessions(std::string cookie, std::function<std::string()> new_number = random_cookie)
      : cookie_(std::move(cookie)), new_number_(std::move(new_number)) {}

  Iterator open(Clock::time_point now, std::string client = "");
  // Handles all complete requests. While the session is full, further requests stay in `in` until the next call. Throws
  // Error if the client violates the protocol: then close the session.
  void receive(Session&, std::string_view bytes, Clock::time_point now);
  void close(Iterator, Clock::time_point now);
  // Answers heartbeats. Call after receiving everything that had arrived: if this process itself was stopped, the other
  // processes were not really silent.
  void answer_beats(Clock::time_point now);
  // Answers get requests whose timeout has passed, and sets `closing` for strangers that took too long.
  void expire(Clock::time_point now);
  Clock::time_point next_deadline(Clock::time_point latest) const;
  // Returns the oldest stranger if it has had its minimum time.
  std::optional<Iterator> stranger_to_replace(Clock::time_point now);
  // Returns the stranger to close if the newcomer's address has too many strangers: the oldest one from that address if
  // it has had its minimum time, else the newcomer, which may try again.
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
  std::size_t bytes_ = 0;  // size of keys, values, names and last words
};

}  // namespace ring
