// Target: agents that send any message at any time. The decisions of a job's rendezvous must stay consistent. The input
// is a script: one byte chooses the event, the second the agent, the third gives numbers. The input is also read as a
// report and as an order.

#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#include "launcher/messages.h"
#include "launcher/rendezvous.h"

namespace {

using namespace ring;

class Conversation {
 public:
  Conversation(std::uint8_t rules, std::uint8_t restarts) : rendezvous_(make_rules(rules, restarts), now_) {}

  void act(int what, int who, int number) {
    const AgentId id = std::to_string(who % 6);
    const int attempt = number % 2 ? attempt_ : number % 8 - 2;
    switch (what % 6) {
      case 0: rendezvous_.join(id, {"h", number % 7 - 1, 1 + number % 3}, now_); break;
      case 1: {
        NodeFailure f{static_cast<Blame>(number % 3), number, number % 5 != 0, "f"};
        f.replaceable = number % 4 != 0;
        rendezvous_.on_failure(id, attempt, f, now_);
        break;
      }
      case 2:
        rendezvous_.on_end(id, attempt,
                           {number % 200, number % 11 == 0, number % 3 == 0, number % 50, number % 13 != 0}, now_);
        break;
      case 3: rendezvous_.leave(id, "it left", now_, number % 2 == 0); break;
      case 4: now_ += std::chrono::seconds(number); break;
      default: break;
    }
    rendezvous_.tick(now_);
    check();
  }

 private:
  static RendezvousRules make_rules(std::uint8_t rules, std::uint8_t restarts) {
    RendezvousRules r;
    r.host = "0";
    r.max_nodes = 1 + rules % 4;
    r.min_nodes = 1 + rules / 4 % r.max_nodes;
    r.max_restarts = restarts % 5;
    return r;
  }
  // Checks that attempts only go up, and that the ranks of an attempt fit together.
  void check() {
    std::map<int, Order> places;
    for (const auto& [id, order] : rendezvous_.take_orders()) {
      if (order.kind != Order::Kind::start) continue;
      if (order.attempt < attempt_ || over_ || !places.emplace(order.node_rank, order).second) std::abort();
      attempt_ = order.attempt;
    }
    int rank = 0;
    for (const auto& [node, order] : places) {
      if (order.first_rank < rank || order.first_rank >= order.world || order.nodes != static_cast<int>(places.size()))
        std::abort();
      rank = order.first_rank + 1;
    }
    if (over_ && !rendezvous_.is_over()) std::abort();
    over_ = rendezvous_.is_over();
  }

  Rendezvous::Time now_{};
  Rendezvous rendezvous_;
  int attempt_ = 0;
  bool over_ = false;
};

template <class Read>
void read_as(Read read, const std::string& text) {
  try {
    const auto message = read(text);
    if (encode(message) != encode(read(encode(message)))) std::abort();
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  read_as(decode_report, text);
  read_as(decode_order, text);
  if (size < 2) return 0;
  Conversation conversation(data[0], data[1]);
  for (std::size_t i = 2; i + 3 <= size && i < 1500; i += 3) conversation.act(data[i], data[i + 1], data[i + 2]);
  return 0;
}
