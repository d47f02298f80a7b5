#pragma once
// What the store knows, and the conversations about it, without sockets: bytes come in, bytes go out. Whoever speaks is
// a stranger until it has shown that it knows the cookie; strangers get little room and little time.

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

inline constexpr std::size_t kMaxStrangers = 256;                         // the oldest has to make way for a newcomer
inline constexpr std::size_t kMaxStrangersOfOne = kMaxStrangers / 2;      // from one address
inline constexpr std::size_t kMaxStoreBytes = std::size_t{256} << 20;     // of all keys and values together
inline constexpr std::size_t kMaxUnread = 4 * store_protocol::kMaxFrame;  // answers that wait; then nothing is read
inline constexpr std::chrono::seconds kHelloTime{5};      // until a stranger has shown that it knows the cookie
inline constexpr std::chrono::milliseconds kChance{500};  // for a stranger, before it makes way for another

class StoreSessions {
 public:
  using Clock = AwakeClock;
  struct Session {
    std::string client;    // see client_of()
    bool trusted = false;  // has shown that it knows the cookie
    std::string number;    // that it has to prove it with (job/store_handshake.h)
    bool closing = false;  // once `out` is sent
    std::string in, out;
    std::string waiting_for;                     // key of an open get
    std::string beats_as;                        // whose heartbeat it brings
    std::optional<Clock::duration> asks_silent;  // a heartbeat to be answered with those silent for so long
    Clock::time_point deadline;                  // of the hello or of the open get
    bool full() const { return out.size() > kMaxUnread; }
  };
  using Iterator = std::list<Session>::iterator;

  // new_number: gives another one each time.
  explicit StoreSessions(std::string cookie, std::function<std::string()> new_number = random_cookie)
      : cookie_(std::move(cookie)), new_number_(std::move(new_number)) {}

  Iterator open(Clock::time_point now, std::string client = "");
  // All requests that are complete; those that come while the session is full wait in `in` for the next call.
  // Error: what this one says is not the protocol; close it.
  void receive(Session&, std::string_view bytes, Clock::time_point now);
  void close(Iterator, Clock::time_point now);
  // To be called after everything that had arrived was received: when this process itself was held up, nobody else was
  // silent.
  void answer_beats(Clock::time_point now);
  void expire(Clock::time_point now);  // answers gets whose time is over, and marks strangers that took too long
  Clock::time_point next_deadline(Clock::time_point latest) const;
  // Returns the oldest stranger if it had its chance.
  std::optional<Iterator> stranger_to_replace(Clock::time_point now);
  // Returns the stranger to close if the newcomer's address has too many: the oldest of that address if it had its
  // chance, else the newcomer, which may come again.
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
  std::list<Session> sessions_;  // in the order of their coming
  std::map<std::string, std::string> values_;
  std::map<std::string, Pulse> pulses_;
  std::size_t bytes_ = 0;  // of keys, values, names and words
};

}  // namespace ring
