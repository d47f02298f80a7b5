#include "launcher/rank_state.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <ranges>
#include <sstream>

#include "core/check.h"
#include "core/clock.h"
#include "core/json.h"

namespace ring {
namespace {

constexpr std::size_t kRecent = 8;

// Returns the text up to its terminating zero, at most N - 1 characters: a process that died may have left it
// half-written.
template <std::size_t N>
std::string text_of(const std::array<char, N>& from) {
  return {from.begin(), std::find(from.begin(), from.end() - 1, '\0')};
}

struct Entry {
  std::int64_t sequence, number, queued_ns, started_ns, ended_ns;
  FlightState state;
  bool pairwise, alike;
  std::size_t group;
  std::string text, site;
};

// Returns true if the rank was waiting in the operation. A failed operation counts: something else ended it while it
// waited.
bool is_waiting(const Entry& e) { return e.state == FlightState::started || e.state == FlightState::failed; }

// Returns the valid entries, oldest first.
std::vector<Entry> entries_of(const FlightRing& ring) {
  std::vector<Entry> all;
  for (const FlightEntry& e : ring.entries) {
    const std::int64_t sequence = e.sequence.load(std::memory_order_acquire);
    const auto group = static_cast<std::size_t>(e.group.load());
    if (sequence <= 0 || group >= ring.groups.size()) continue;
    Entry copy{sequence,   e.number, e.queued_ns, e.started_ns,    e.ended_ns,     e.state,
               e.pairwise, e.alike,  group,       text_of(e.text), text_of(e.site)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (e.sequence.load() == sequence) all.push_back(std::move(copy));
  }
  std::ranges::sort(all, {}, &Entry::sequence);
  return all;
}

std::string name_of(const Entry& e, const FlightRing& ring) {
  return str(e.pairwise ? "after #" : "#", e.number, " of ", text_of(ring.groups[e.group].name));
}

std::vector<GroupState> groups_of(const FlightRing& ring, const std::vector<Entry>& entries) {
  std::vector<GroupState> groups;
  const auto known = static_cast<std::size_t>(std::clamp(ring.known.load(), 0, FlightRing::kGroups));
  for (std::size_t i = 0; i < known; ++i) {
    const FlightGroup& g = ring.groups[i];
    GroupState s{text_of(g.name), g.first_rank, g.size, g.queued, g.started, g.done};
    const auto e = std::ranges::find_if(entries, [&](const Entry& x) { return x.group == i && is_waiting(x); });
    if (e != entries.end()) {
      s.waits_in = e->text;
      s.site = e->site;
      s.pairwise = e->pairwise;
      if (!e->pairwise) s.started = e->number;
    }
    for (const Entry& x : entries | std::views::reverse)
      if (x.group == i && x.alike && x.state != FlightState::queued && s.recent.size() < kRecent)
        s.recent.push_back({x.number, x.text, x.site});
    groups.push_back(std::move(s));
  }
  return groups;
}

std::string phase_of(const WorkerStatus& page) {
  const RunPhase writing = page.writing;
  const std::string phase(to_string(page.phase));
  return writing == RunPhase::nothing ? phase : str(phase, ", writing: ", to_string(writing));
}

nlohmann::json json_of(const Entry& e, const FlightRing& ring) {
  nlohmann::json j = {{"operation", e.text},         {"group", text_of(ring.groups[e.group].name)},
                      {"number", e.number},          {"pairwise", e.pairwise},
                      {"state", to_string(e.state)}, {"site", e.site}};
  const std::int64_t now = nanoseconds_now();
  const auto ago = [&](const char* name, std::int64_t at) {
    if (at > 0) j[name] = static_cast<double>((now - at) / 1000) / 1e6;
  };
  ago("queued_seconds_ago", e.queued_ns);
  ago("started_seconds_ago", e.started_ns);
  ago("ended_seconds_ago", e.ended_ns);
  return j;
}

}  // namespace

bool RankState::is_waiting() const {
  return std::ranges::any_of(groups,
                             [](const GroupState& g) { return g.name != kBackgroundGroup && !g.waits_in.empty(); });
}

RankState state_of(const WorkerStatus& page, int rank) {
  const std::vector<Entry> entries = entries_of(page.flights);
  RankState s{.rank = rank, .step = page.step, .phase = phase_of(page)};
  s.writes = page.writing != RunPhase::nothing;
  s.groups = groups_of(page.flights, entries);
  const auto last = std::ranges::find(entries.rbegin(), entries.rend(), FlightState::done, &Entry::state);
  if (last != entries.rend()) s.last = name_of(*last, page.flights);
  return s;
}

std::int64_t num_progress_signs(const WorkerStatus& page) {
  return page.phases.load() + page.flights.changes.load() + page.step.load();
}

std::int64_t last_progress_ns(const WorkerStatus& page) {
  std::int64_t last = page.entered_ns;
  for (const Entry& e : entries_of(page.flights)) last = std::max({last, e.queued_ns, e.started_ns, e.ended_ns});
  return last;
}

// Returns the fields of /proc/PID/stat from the third on, `state`; empty if there is no such process.
static std::string stat_from_state(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t name = text.rfind(')');
  return name != text.npos && name + 2 < text.size() ? text.substr(name + 2) : "";
}

bool is_stopped(std::int64_t pid) {
  const std::string stat = stat_from_state(pid);
  return stat.starts_with('T') || stat.starts_with('t');
}

bool is_exiting(std::int64_t pid) {
  constexpr unsigned long kExiting = 0x4;  // PF_EXITING in the kernel's include/linux/sched.h
  std::istringstream fields(stat_from_state(pid));
  std::string state, skipped;
  unsigned long flags = 0;
  fields >> state;
  for (int i = 0; i < 5; ++i) fields >> skipped;  // ppid, pgrp, session, tty_nr, tpgid
  fields >> flags;
  return state == "Z" || state == "X" || (flags & kExiting) != 0;
}

std::string flights_json(const RankState& s, const WorkerStatus& page) {
  nlohmann::json j = {{"rank", s.rank},
                      {"node", s.node},
                      {"host", s.host},
                      {"pid", s.pid},
                      {"step", s.step},
                      {"phase", s.phase},
                      {"silent_seconds", s.silent},
                      {"stopped", s.stopped},
                      {"operations", nlohmann::json::array()}};
  for (const Entry& e : entries_of(page.flights)) j["operations"].push_back(json_of(e, page.flights));
  return json_text(j);
}

}  // namespace ring
