#pragma once
// How a job survives the loss of its leader, the agent that serves the rendezvous. Every agent listens at an address of
// its own, from its start to its end. The leader sends each agent the state of the job and the list of all agents with
// their addresses. If the leader is lost, the agents gather at the first agent of the list that they can reach, and
// this agent leads the job if Rendezvous::has_quorum() allows it.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "job/socket.h"
#include "launcher/restart_budget.h"

namespace ring {

using AgentId = std::string;

// An agent's process, and the address at which it listens.
struct Member {
  AgentId process;  // a new id each time an agent starts
  std::string host;
  Endpoint at;
  bool operator==(const Member&) const = default;
};

// State of a job that its next leader needs. The leader rebuilds all else from the reports of the agents that join it.
struct Heritage {
  int attempt = -1;  // the attempt that was started last; -1 if there was none
  AgentId leader;    // process that started this attempt
  // Nodes of this attempt by node rank, then agents that wait as spares, in order of arrival.
  std::vector<Member> members = {};
  int nodes = 0;  // number of nodes of this attempt; they are the first entries of `members`
  bool begun = false;
  RestartBudget::Counts budget = {};
  std::set<int> misfits = {};  // world sizes that do not fit the settings
  int replacements = 0;        // number of attempts that surviving workers of the previous attempt joined
  bool operator==(const Heritage&) const = default;
};

enum class Presence : std::uint8_t {
  alive,   // the process answers
  ended,   // its host refuses connections to its address, or a different process listens there
  unknown  // nothing answers: the process is cut off or stopped, or its host is down
};

using Probe = std::function<Presence(const Member&)>;

// Returns the agent at which the agents of a lost leader gather: the leader itself if it answers again, otherwise the
// first other member that answers or that is `self`; nullopt if there is none.
std::optional<Member> choose_leader(const Heritage&, const AgentId& self, const Probe&);

// Connects to the address of a member and asks which process listens there. Takes up to `timeout`.
Presence probe(const Member&, const std::string& cookie, std::chrono::milliseconds timeout);

// Keys in each agent's store. kOwner: the process that serves the store. kLedFrom: the address of the agent that leads
// the job, if that is a different agent; empty if it is not known.
inline const std::string kOwner = "owner", kLedFrom = "led from";

}  // namespace ring
