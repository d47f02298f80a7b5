// Target: conversations with the store. Clients' bytes arrive in pieces, and answers are read like a client does. The
// input is a script: one byte chooses the event, the second the connection, then come the event's arguments.
// store_protocol_seeds.cpp writes the kept inputs.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "job/store_handshake.h"
#include "job/store_sessions.h"

namespace {

using namespace ring;
using namespace ring::store_protocol;

class Conversation {
 public:
  void run(const std::uint8_t* data, std::size_t size) {
    const std::uint8_t* const end = data + size;
    while (end - data >= 3 && steps_++ < 200) {
      const int what = data[0] % 8, who = data[1] % 4;
      const std::size_t count = std::min<std::size_t>(data[2], static_cast<std::size_t>(end - data - 3));
      act(what, who, {reinterpret_cast<const char*>(data + 3), count});
      data += 3 + (what < 4 ? count : 0);
    }
  }

 private:
  void act(int what, int who, std::string_view bytes) {
    if (!places_[who]) places_[who] = sessions_.open(now_);
    StoreSessions::Session& s = **places_[who];
    switch (what) {
      case 0: return hear(who, bytes);                      // raw bytes
      case 1: return hear(who, frame(std::string(bytes)));  // a message of the right length
      case 2: return greet(who, std::string(bytes));        // perhaps with the right cookie
      case 3:
        if (bytes.size() < 2) return;
        return hear(who, encode({static_cast<Op>(bytes[0]), bytes[1], std::string(bytes.substr(2, 2)),
                                 std::string(bytes.substr(std::min<std::size_t>(4, bytes.size())))}));
      case 4: now_ += std::chrono::seconds(3); return sessions_.handle_timeouts(now_);
      case 5: sessions_.close(*places_[who], now_); return places_[who].reset();
      case 6: return sessions_.answer_heartbeats(now_);
      default: return read(s);
    }
  }
  void greet(int who, const std::string& cookie) {
    hear(who, encode({Op::hello, 0, "", ""}));
    if (places_[who]) hear(who, encode({Op::hello, 0, "", store_handshake::client_says(cookie, kNumber, kNumber)}));
  }
  void hear(int who, std::string_view bytes) {
    try {
      sessions_.receive(**places_[who], bytes, now_);
    } catch (const Error&) {
      sessions_.close(*places_[who], now_);
      places_[who].reset();
    }
  }
  // Reads the answers like a client, which must understand each of them.
  static void read(StoreSessions::Session& s) {
    for (std::size_t at = 0; at < s.out.size();) {
      const auto length = take<std::uint32_t>(s.out, at);
      std::size_t inside = at;
      if (take<std::uint32_t>(s.out, inside) != kMagic || length < 5 || length > kMaxFrame) std::abort();
      at += length;
    }
    s.out.clear();
  }

  static inline const std::string kNumber = std::string(store_handshake::kNonceSize, '1');
  StoreSessions sessions_{"s", [] { return kNumber; }};
  StoreSessions::Clock::time_point now_{};
  std::optional<StoreSessions::Iterator> places_[4];
  int steps_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Conversation().run(data, size);
  try {
    take_heartbeats({reinterpret_cast<const char*>(data), size});
  } catch (const Error&) {
  }
  return 0;
}
