#include "trainer/kept_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "comm/host.h"
#include "core/check.h"
#include "job/job_time.h"
#include "trainer/island_binding.h"

namespace ring {
namespace {

// Numbers that ranks send each other. Integers up to 2^53 are exact.
using Numbers = std::vector<double>;

std::string bytes_of(const Numbers& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double)};
}

Numbers numbers_of(const std::string& bytes) {
  Numbers numbers(bytes.size() / sizeof(double));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(double));
  return numbers;
}

// Visits all numbers of a report except the per-part norms and the watched values.
template <class Report, class Visit>
void visit_numbers(Report& r, const Visit& visit) {
  visit(r.step), visit(r.loss), visit(r.norm), visit(r.valid), visit(r.lr), visit(r.decay_scale);
  visit(r.sequences), visit(r.tokens), visit(r.context), visit(r.trained);
  visit(r.seconds), visit(r.data_seconds), visit(r.exchange_seconds);
  for (auto& s : r.sources) visit(s.sum), visit(s.targets);
}

void append(Numbers& to, const StepReport& r) {
  to.push_back(static_cast<double>(r.sources.size()));
  visit_numbers(r, [&](auto x) { to.push_back(static_cast<double>(x)); });
  if (r.auxiliary_loss) to.push_back(*r.auxiliary_loss);
}

StepReport report_from(Numbers::const_iterator next, Numbers::const_iterator end) {
  StepReport r;
  r.sources.resize(static_cast<std::size_t>(*next++));
  visit_numbers(r, [&](auto& x) { x = static_cast<std::decay_t<decltype(x)>>(*next++); });
  if (next != end) r.auxiliary_loss = *next;
  return r;
}

// The facts that a rank sends about its kept state.
struct Kept {
  std::int64_t step = 0, kept_ms = 0;  // step: -1 after keep_nothing()
  bool finished = false;
  IslandExchange exchange;
  StepReport last;
};

Numbers numbers_of(const Kept& k) {
  Numbers n;
  for (const std::int64_t x : {k.step, k.kept_ms, std::int64_t{k.finished}, k.exchange.step, k.exchange.tokens,
                               k.exchange.cursor, k.exchange.combined})
    n.push_back(static_cast<double>(x));
  append(n, k.last);
  return n;
}

// Returns nullopt if the process is new and sent nothing.
std::optional<Kept> kept_from(const Numbers& numbers) {
  if (numbers.empty()) return std::nullopt;
  auto next = numbers.begin();
  const auto whole = [&next] { return static_cast<std::int64_t>(*next++); };
  Kept k{.step = whole(), .kept_ms = whole(), .finished = whole() != 0};
  k.exchange = {whole(), whole(), whole(), whole()};
  k.last = report_from(next, numbers.end());
  return k;
}

using AllKept = std::vector<std::optional<Kept>>;

bool has_state(const std::optional<Kept>& k) { return k && k->step >= 0; }

// Returns for each rank whether its island is whole and knows the latest exchange of all islands.
std::vector<bool> ranks_of_whole_islands(const AllKept& all, std::size_t size) {
  const auto same = [](const Kept& a, const Kept& b) { return a.step == b.step && a.exchange == b.exchange; };
  std::vector<bool> whole(all.size());
  std::int64_t newest = -1;
  for (std::size_t begin = 0; begin < all.size(); begin += size) {
    bool island = has_state(all[begin]);
    for (std::size_t r = begin; r < begin + size && island; ++r)
      island = has_state(all[r]) && same(*all[r], *all[begin]);
    std::fill_n(whole.begin() + static_cast<std::ptrdiff_t>(begin), size, island);
    if (island) newest = std::max(newest, all[begin]->exchange.combined);
  }
  for (std::size_t r = 0; r < all.size(); ++r) whole[r] = whole[r] && all[r]->exchange.combined == newest;
  return whole;
}

// Chooses the rank whose state of the lowest or, with islands, the highest step the run continues from.
void choose_donor(KeptStates& k, const AllKept& all, const std::vector<bool>& usable) {
  k.donor = -1;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (!usable[r]) continue;
    const std::int64_t step = all[r]->step;
    if (k.donor < 0 || (k.islands > 1 ? step > k.step : step < k.step)) k.donor = static_cast<int>(r), k.step = step;
  }
}

// Returns the tensor of a rank in island `from` that becomes tensor `name` of a rank in island `to`; empty if the
// latter does not receive the tensor: it belongs to a different island, or follows from the outer weights.
std::string source_of(const std::string& name, int to, int from) {
  const std::string states = IslandBinding::optimizer_prefix(to);
  if (name.starts_with(states)) return IslandBinding::optimizer_prefix(from) + name.substr(states.size());
  const bool of_an_island =
      name.starts_with(IslandBinding::kPrefix) || name.starts_with(IslandBinding::optimizer_prefix(0));
  return of_an_island ? "" : name;
}

}  // namespace

bool KeptStates::all_hold() const { return std::ranges::count(holders, false) == 0; }

std::vector<int> KeptStates::lost_islands() const {
  std::vector<int> lost;
  const std::size_t size = holders.size() / static_cast<std::size_t>(islands);
  for (int i = 0; i < islands; ++i)
    if (!holders[static_cast<std::size_t>(i) * size]) lost.push_back(i);
  return lost;
}

void KeptState::keep(const State& state, const Stream& stream, std::int64_t step, bool finished, const StepReport& last,
                     const IslandExchange& exchange) {
  Snapshot copy = state.snapshot(stream);
  copy.wait();
  copy_.emplace(std::move(copy));
  step_ = step;
  kept_ms_ = now_ms();
  finished_ = finished;
  exchange_ = exchange;
  last_ = last;
}

void KeptState::keep_nothing() {
  clear();
  step_ = -1;
}

void KeptState::clear() {
  copy_.reset();
  step_ = 0;
}

std::optional<KeptStates> KeptState::compare(Communicator& host, int islands) const {
  Numbers own;
  if (holds()) own = numbers_of(Kept{step_, kept_ms_, finished_, exchange_, last_});
  AllKept all;
  for (const std::string& bytes : gather_host(host, bytes_of(own))) all.push_back(kept_from(numbers_of(bytes)));
  std::vector<bool> usable(all.size());
  std::ranges::transform(all, usable.begin(), has_state);
  KeptStates k{.islands = islands};
  if (islands > 1) usable = ranks_of_whole_islands(all, all.size() / static_cast<std::size_t>(islands));
  choose_donor(k, all, usable);
  if (k.donor < 0) return std::nullopt;
  for (std::size_t r = 0; r < all.size(); ++r) {
    k.holders.push_back(usable[r] && (islands > 1 || all[r]->step == k.step));
    if (!all[r]) k.replaced.push_back(static_cast<int>(r));
  }
  const std::optional<Kept>& leader = all.front();
  k.recorded = usable.front() && (leader->step > k.step || (leader->step == k.step && leader->finished));
  const Kept& donor = *all[static_cast<std::size_t>(k.donor)];
  k.kept_ms = donor.kept_ms;
  k.exchange = donor.exchange;
  k.last = donor.last;
  return k;
}

void KeptState::load(const KeptStates& all, State& state, const Stream& stream, Communicator& host) {
  const int own = host.rank(), size = host.size() / all.islands;
  const auto holds = [&](int rank) { return static_cast<bool>(all.holders[static_cast<std::size_t>(rank)]); };
  const auto giver = [&](int rank) { return all.islands > 1 ? all.donor / size * size + rank % size : all.donor; };
  const auto source = [&](const std::string& name, int rank) {
    return all.islands > 1 ? source_of(name, rank / size, all.donor / size) : name;
  };
  Manifest values{.step = all.step};
  if (giver(own) == own) values.values = copy_->values();
  values = parse_manifest(gather_host(host, copy_ ? to_text(values) : "")[static_cast<std::size_t>(giver(own))]);
  state.wait_for_writes(stream);
  stream.synchronize();  // allowed host wait: checkpoint
  std::vector<Transfer> sends, receives;
  for (const auto& [name, t] : state.tensors()) {
    if (!holds(own) && t.local.bytes() > 0 && !source(name, own).empty()) receives.push_back({t.local, giver(own)});
    for (int rank = 0; rank < host.size(); ++rank) {
      if (holds(rank) || giver(rank) != own) continue;
      const auto kept = copy_->tensors().find(source(name, rank));
      if (kept != copy_->tensors().end() && kept->second.local.bytes() > 0)
        sends.push_back({kept->second.local, rank});
    }
  }
  host.exchange(sends, receives).synchronize();  // allowed host wait: checkpoint
  if (holds(own)) return restore(state, stream);
  set_values(values, state);
  clear();
}

void KeptState::restore(State& state, const Stream& stream) {
  state.wait_for_writes(stream);
  stream.synchronize();  // allowed host wait: checkpoint
  for (const auto& [name, t] : state.tensors()) {
    if (t.local.bytes() == 0) continue;
    const auto kept = copy_->tensors().find(name);
    RING_CHECK(kept != copy_->tensors().end() && kept->second.local.bytes() == t.local.bytes(), "the kept state has ",
               kept == copy_->tensors().end() ? "no" : "a different", " tensor '", name, "'");
    std::memcpy(t.local.raw(), kept->second.local.raw(), t.local.bytes());
  }
  set_values(Manifest{.values = copy_->values()}, state);
  clear();
}

}  // namespace ring
