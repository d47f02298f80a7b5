#pragma once
// Messages between agents and the leader, as text. Decoding throws Error if the text is not a valid message.

#include <optional>
#include <string>

#include "launcher/rendezvous.h"

namespace ring {

// An agent's message: exactly one of the optionals is set.
struct Report {
  AgentId from;
  int attempt = 0;
  std::optional<NodeOffer> offer;
  std::optional<NodeFailure> failure;
  std::optional<NodeEnd> end;
  std::optional<std::vector<RankState>> ranks = {};  // answer to Order::Kind::report_states
  std::optional<Endpoint> moved = {};                // address of the job's leader; `attempt`: its newest attempt
};

std::string encode(const Report&);
Report decode_report(const std::string& text);
std::string encode(const Order&);
Order decode_order(const std::string& text);

std::string encode(const Heritage&);
Heritage decode_heritage(const std::string& text);

// Key in the leader's store for the state of the job. The leader sets it before it sends orders.
inline const std::string kHeritage = "heritage";
// Key for the state of the job that an agent brings when it joins a successor. Agents with equal states share a key.
inline std::string heritage_key(const Heritage& h) {
  return "heritage of " + h.leader + ", attempt " + std::to_string(h.attempt);
}
// Keys of the message lists in the leader's store.
inline const std::string kReports = "reports";  // reports from all agents
inline std::string orders_of(const AgentId& agent) { return "orders of " + agent; }

}  // namespace ring
