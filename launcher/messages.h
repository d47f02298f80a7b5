#pragma once
// What agents and the leader say to each other, as text. Error: it is none of these.

#include <optional>
#include <string>

#include "launcher/rendezvous.h"

namespace ring {

// What an agent says: exactly one of the four.
struct Report {
  AgentId from;
  int attempt = 0;
  std::optional<NodeOffer> offer;
  std::optional<NodeFailure> failure;
  std::optional<NodeEnd> end;
  std::optional<std::vector<RankState>> ranks = {};  // as ordered to look
};

std::string encode(const Report&);
Report decode_report(const std::string&);
std::string encode(const Order&);
Order decode_order(const std::string&);

// Where they are in the store.
inline const std::string kReports = "reports";  // a list
inline std::string orders_of(const AgentId& agent) { return "orders of " + agent; }

}  // namespace ring
