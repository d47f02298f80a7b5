#include "launcher/succession.h"

#include <algorithm>

#include "job/connection_refused.h"
#include "job/store.h"

namespace ring {

std::optional<Member> choose_leader(const Heritage& h, const AgentId& self, const Probe& probe) {
  const auto leader = std::ranges::find(h.members, h.leader, &Member::process);
  if (leader != h.members.end() && h.leader != self && probe(*leader) == Presence::alive) return *leader;
  for (const Member& m : h.members)
    if (m.process != h.leader && (m.process == self || probe(m) == Presence::alive)) return m;
  return std::nullopt;
}

Presence probe(const Member& m, const std::string& cookie, std::chrono::milliseconds timeout) {
  if (m.at.port == 0) return Presence::unknown;  // the member has not reported its address
  try {
    const auto owner = try_store(m.at, cookie, timeout, timeout)->try_get(kOwner);
    return !owner ? Presence::unknown : *owner == m.process ? Presence::alive : Presence::ended;
  } catch (const ConnectionRefused&) {
    return Presence::ended;
  } catch (const StoreRefused&) {  // a different job listens there
    return Presence::ended;
  } catch (const Error&) {
    return Presence::unknown;
  }
}

}  // namespace ring
