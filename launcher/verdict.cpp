#include "launcher/verdict.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "core/check.h"

namespace ring {
namespace {

using Ranks = std::vector<RankState>;

// An operation in which at least one rank waits.
struct Call {
  std::string group;
  int first_rank;
  std::int64_t number;
  bool pairwise;
  auto operator<=>(const Call&) const = default;
};
struct Waiting {
  std::string text, site;
  std::vector<int> ranks;
};
using Calls = std::map<Call, std::vector<Waiting>>;  // for each operation, the ranks that wait in it, by `text`

void add(std::vector<Waiting>& all, const std::string& text, const std::string& site, int rank) {
  const auto same = std::ranges::find(all, text, &Waiting::text);
  if (same == all.end())
    all.push_back({text, site, {rank}});
  else
    same->ranks.push_back(rank);
}

Calls calls_of(const Ranks& ranks) {
  Calls calls;
  for (const RankState& r : ranks)
    for (const GroupState& g : r.groups) {
      if (g.waits_in.empty() || g.name == kBackgroundGroup) continue;
      add(calls[{g.name, g.first_rank, g.started, g.pairwise}], g.waits_in, g.site, r.rank);
    }
  return calls;
}

std::string text_of(const Call& c, const Waiting& w) {
  return str(c.pairwise ? "after #" : "#", c.number, " of ", c.group, ", ", w.text, " at ", w.site);
}

std::string place_of(const RankState& r) {
  return str("in phase ", r.phase, " after step ", r.step, r.last.empty() ? "" : str(" and ", r.last));
}

std::string who(const std::vector<int>& ranks) { return str(ranks.size() == 1 ? "rank " : "ranks ", listed(ranks)); }

const GroupState* find(const RankState& r, const Call& c) {
  for (const GroupState& g : r.groups)
    if (g.name == c.group && g.first_rank == c.first_rank) return &g;
  return nullptr;
}

// Returns the operations that ranks ran with the same number as this collective operation; more than one if they
// differ.
std::vector<Waiting> runs_of(const Call& c, const Ranks& ranks) {
  std::vector<Waiting> all;
  for (const RankState& r : ranks)
    if (const GroupState* g = find(r, c); g && !c.pairwise)
      for (const PastCall& past : g->recent)
        if (past.number == c.number) add(all, past.text, past.site, r.rank);
  return all;
}

// Returns the ranks of the operation's group that have not reached it.
std::vector<const RankState*> late_for(const Call& c, const Ranks& ranks) {
  std::vector<const RankState*> late;
  for (const RankState& r : ranks)
    if (const GroupState* g = find(r, c); g && (c.pairwise ? g->waits_in.empty() : g->started < c.number))
      late.push_back(&r);
  return late;
}

std::size_t count_in(const Call& c, const Ranks& ranks) {
  return static_cast<std::size_t>(std::ranges::count_if(ranks, [&](const RankState& r) { return find(r, c); }));
}

std::string of_others(const Ranks& ranks, const RankState& cause) {
  for (const auto& [call, waiting] : calls_of(ranks))
    for (const Waiting& w : waiting) {
      std::vector<int> others = w.ranks;
      std::erase(others, cause.rank);
      if (!others.empty() && find(cause, call))
        return str(": ", who(others), others.size() == 1 ? " waits" : " wait", " in ", text_of(call, w), "; rank ",
                   cause.rank, " is ");
    }
  return ": it is ";
}

std::string about(const Ranks& ranks, const RankState& cause, bool several_nodes) {
  return str(name_of(cause, several_nodes), cause.stopped ? " is stopped (SIGSTOP or a debugger)" : " hangs",
             of_others(ranks, cause), place_of(cause), ", for ", std::round(10 * cause.silent) / 10, " s");
}

std::string of_different(const Call& c, std::vector<Waiting> all) {
  std::ranges::stable_sort(all, [](const auto& a, const auto& b) { return a.ranks.size() < b.ranks.size(); });
  std::string text;
  for (const Waiting& w : all)
    text += str(text.empty() ? "" : ", while ", who(w.ranks), w.ranks.size() == 1 ? " runs " : " run ", w.text, " at ",
                w.site);
  return str("ranks run different operations as #", c.number, " of ", c.group, ": ", text);
}

std::string of_pending(const Calls& calls) {
  std::string text;
  for (const auto& [call, waiting] : calls)
    for (const Waiting& w : waiting)
      text += str(text.empty() ? "" : "; ", who(w.ranks), w.ranks.size() == 1 ? " waits" : " wait", " in ",
                  text_of(call, w));
  return text;
}

// Returns, among the ranks that others wait for and that wait for nobody, the one that has been silent for longest;
// null if there is none.
const RankState* lagging(const Calls& calls, const Ranks& ranks) {
  const RankState* first = nullptr;
  for (const auto& [call, waiting] : calls)
    for (const RankState* r : late_for(call, ranks))
      if (!r->is_waiting() && (!first || r->silent > first->silent)) first = r;
  return first;
}

const RankState* silent_for_longest(const Ranks& ranks, const std::function<bool(const RankState&)>& counts) {
  const RankState* longest = nullptr;
  for (const RankState& r : ranks)
    if (counts(r) && (!longest || r.silent > longest->silent)) longest = &r;
  return longest;
}

// Returns true if the rank writes a checkpoint and does not wait for other writers.
bool holds_up_a_save(const RankState& r) {
  return r.writes && std::ranges::none_of(r.groups, [](const GroupState& g) {
           return g.name == kBackgroundGroup && !g.waits_in.empty();
         });
}

// Returns the cause of the hang if no rank waits in an operation of a step.
const RankState* slowest(const Ranks& ranks) {
  if (const RankState* r = silent_for_longest(ranks, holds_up_a_save)) return r;
  return silent_for_longest(ranks, [](const RankState&) { return true; });
}

std::string unheard(const Ranks& ranks, int world) {
  std::vector<int> missing;
  for (int r = 0; r < world; ++r)
    if (!std::ranges::any_of(ranks, [&](const RankState& s) { return s.rank == r; })) missing.push_back(r);
  return missing.empty() ? "" : str("; no report came from ", who(missing));
}

std::string cause(const Ranks& ranks, bool several_nodes) {
  for (const RankState& r : ranks)
    if (r.stopped) return about(ranks, r, several_nodes);
  const Calls calls = calls_of(ranks);
  for (const auto& [call, waiting] : calls)
    if (const auto runs = runs_of(call, ranks); runs.size() > 1) return of_different(call, runs);
  if (const RankState* r = lagging(calls, ranks)) return about(ranks, *r, several_nodes);
  if (calls.empty()) return about(ranks, *slowest(ranks), several_nodes);
  const auto& [call, waiting] = *calls.begin();
  if (calls.size() == 1 && waiting[0].ranks.size() == count_in(call, ranks))
    return str("no rank lags behind: ", of_pending(calls), ", which does not end. Is a connection between them cut?");
  return "ranks wait for each other: " + of_pending(calls);
}

}  // namespace

std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += str(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

std::string name_of(const RankState& r, bool several_nodes) {
  if (!several_nodes) return str("rank ", r.rank, " (pid ", r.pid, ")");
  return str("rank ", r.rank, " on ", r.host, " (pid ", r.pid, ", node ", r.node, ")");
}

std::string verdict(const Ranks& ranks, int world) {
  RING_CHECK(!ranks.empty(), "a verdict needs at least one rank");
  const bool several_nodes = ranks.size() < static_cast<std::size_t>(world) ||
                             std::ranges::any_of(ranks, [&](const RankState& r) { return r.node != ranks[0].node; });
  return cause(ranks, several_nodes) + unheard(ranks, world);
}

}  // namespace ring
