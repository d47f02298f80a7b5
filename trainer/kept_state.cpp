#include "trainer/kept_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "comm/host.h"
#include "core/check.h"
#include "core/host_tensor.h"
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
  to.push_back(r.auxiliary_loss ? 1 : 0);
  if (r.auxiliary_loss) to.push_back(*r.auxiliary_loss);
  to.push_back(r.pairs ? 1 : 0);
  if (r.pairs) to.insert(to.end(), {r.pairs->loss, r.pairs->chosen, r.pairs->rejected, r.pairs->correct});
}

StepReport read_report(Numbers::const_iterator& next) {
  StepReport r;
  r.sources.resize(static_cast<std::size_t>(*next++));
  visit_numbers(r, [&](auto& x) { x = static_cast<std::decay_t<decltype(x)>>(*next++); });
  if (*next++ != 0) r.auxiliary_loss = *next++;
  if (*next++ != 0) {
    r.pairs.emplace();
    for (double* value : {&r.pairs->loss, &r.pairs->chosen, &r.pairs->rejected, &r.pairs->correct}) *value = *next++;
  }
  return r;
}

template <class Facts, class Visit>
void visit_integers(Facts& f, const Visit& visit) {
  IslandPlace& i = f.island;
  IslandExchange& e = i.exchange;
  visit(f.step), visit(f.kept_ms), visit(f.finished);
  visit(i.islands), visit(i.island), visit(i.size), visit(i.position);
  visit(e.step), visit(e.tokens), visit(e.cursor), visit(e.combined);
}

Numbers numbers_of(KeptFacts f) {
  Numbers n;
  visit_integers(f, [&](auto x) { n.push_back(static_cast<double>(x)); });
  append(n, f.last);
  append(n, f.earlier);
  return n;
}

KeptFacts facts_from(const Numbers& n) {
  KeptFacts f;
  auto next = n.begin();
  visit_integers(f, [&](auto& x) { x = static_cast<std::decay_t<decltype(x)>>(*next++); });
  f.last = read_report(next);
  f.earlier = read_report(next);
  return f;
}

// The facts of each rank; nullopt for ranks without a state.
using AllFacts = std::vector<std::optional<KeptFacts>>;

// Returns true if these ranks, which now form an island, already formed one when they kept their states, all at the
// same step.
bool is_whole(const AllFacts& all, std::size_t begin, std::size_t size) {
  for (std::size_t r = begin; r < begin + size; ++r) {
    if (!all[r] || !all[begin]) return false;
    IslandPlace expected = all[begin]->island;
    expected.position = static_cast<int>(r - begin);
    if (all[r]->step != all[begin]->step || all[r]->island != expected) return false;
  }
  return all[begin]->island.size == static_cast<int>(size);
}

// Returns for each rank whether its island is whole and has taken part in the latest exchange.
std::vector<bool> ranks_of_whole_islands(const AllFacts& all, std::size_t size) {
  std::vector<bool> whole(all.size());
  std::int64_t newest = -1;
  for (std::size_t r = 0; r < all.size(); ++r) {
    whole[r] = is_whole(all, r / size * size, size);
    if (whole[r]) newest = std::max(newest, all[r]->island.exchange.combined);
  }
  for (std::size_t r = 0; r < all.size(); ++r) whole[r] = whole[r] && all[r]->island.exchange.combined == newest;
  return whole;
}

// Chooses the donor, the rank from whose state the run continues: a rank at the lowest step or, with islands, at the
// highest.
void choose_donor(KeptStates& k, const AllFacts& all, const std::vector<bool>& usable) {
  k.donor = -1;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (!usable[r]) continue;
    const std::int64_t step = all[r]->step;
    if (k.donor < 0 || (k.islands > 0 ? step > k.step : step < k.step)) k.donor = static_cast<int>(r), k.step = step;
  }
}

// Returns the name of a tensor or value of island `to` in a state in which this island was number `from`; empty if
// `name` belongs to another island.
std::string name_in(const std::string& name, int to, int from) {
  for (const auto& [own, other] :
       {std::pair{IslandBinding::optimizer_prefix(to), IslandBinding::optimizer_prefix(from)},
        {IslandBinding::bad_steps_name(to), IslandBinding::bad_steps_name(from)},
        {IslandBinding::prefix(to), IslandBinding::prefix(from)}})
    if (name.starts_with(own)) return other + name.substr(own.size());
  const bool of_an_island = name.starts_with(IslandBinding::kPrefix) ||
                            name.starts_with(IslandBinding::optimizer_prefix(0)) ||
                            name == IslandBinding::bad_steps_name(0);
  return of_an_island ? "" : name;
}

// The same for a tensor that island `to` receives from the donor's island; empty if it does not receive the tensor,
// because the tensor follows from the outer weights, or is still zero before the first exchange.
std::string given_name(const std::string& name, int to, const IslandPlace& donor) {
  const bool is_state = name.starts_with(IslandBinding::optimizer_prefix(to));
  if (is_state && donor.exchange.combined == 0) return "";
  const int from = donor.island;
  return name.starts_with(IslandBinding::kPrefix) && !is_state ? "" : name_in(name, to, from);
}

// Copies a tensor in host memory to one in host memory or, on the stream, to one on a device.
void copy_from_host(const Tensor& to, const Tensor& from, const Stream& stream) {
  if (to.device().backend == Backend::cpu)
    std::memcpy(to.raw(), from.raw(), to.bytes());
  else
    stream.impl().copy(to.raw(), from.raw(), to.bytes());
}

// Host memory in which tensors for a device are received.
class Arrivals {
 public:
  // bytes: capacity for all tensors on devices, as State::snapshot_bytes().
  Arrivals(const Stream& stream, std::size_t bytes) : stream_(stream), bytes_(bytes) {}

  // Returns `to` if it is in host memory, otherwise a tensor in host memory that copy_to_devices() copies to `to`.
  Tensor host_part_of(const Tensor& to) {
    if (to.device().backend == Backend::cpu) return to;
    if (!memory_) memory_ = take_host_memory(bytes_, stream_);
    std::byte* const at = static_cast<std::byte*>(memory_.get()) + used_;
    used_ += (to.bytes() + kAlign - 1) / kAlign * kAlign;
    RING_CHECK(used_ <= bytes_, "expected at most ", bytes_, " bytes of tensors, got ", used_);
    const auto storage = std::make_shared<Storage>(at, to.bytes(), Device{}, memory_);
    arrived_.emplace_back(to, Tensor::wrap(storage, to.shape(), to.dtype()));
    return arrived_.back().second;
  }
  // Call after all tensors were received.
  void copy_to_devices() const {
    for (const auto& [to, from] : arrived_) copy_from_host(to, from, stream_);
    stream_.synchronize();  // allowed host wait: checkpoint
  }

 private:
  static constexpr std::size_t kAlign = 64;
  Stream stream_;
  std::size_t bytes_, used_ = 0;
  std::shared_ptr<void> memory_;
  std::vector<std::pair<Tensor, Tensor>> arrived_;
};

}  // namespace

bool KeptStates::all_hold() const { return std::ranges::count(holders, false) == 0; }

std::vector<int> KeptStates::lost_islands() const {
  std::vector<int> lost;
  const std::size_t size = holders.size() / static_cast<std::size_t>(std::max(1, islands));
  for (int i = 0; i < islands; ++i)
    if (!holders[static_cast<std::size_t>(i) * size]) lost.push_back(i);
  return lost;
}

std::optional<StepReport> KeptStates::report_to_average(const StepReport& own, int rank) const {
  if (own.step == step) return own;
  if (last.step != step || !(renumbered || holders[static_cast<std::size_t>(rank)])) return std::nullopt;
  StepReport r = last;
  r.accepted = false;
  return r;
}

void KeptState::keep(const State& state, const Stream& stream, KeptFacts facts) {
  Snapshot copy = state.snapshot(stream);
  copy.wait();
  copy_.emplace(std::move(copy));
  facts_ = std::move(facts);
  facts_.kept_ms = now_ms();
}

void KeptState::keep_nothing() {
  clear();
  stays_ = true;
}

void KeptState::clear() {
  copy_.reset();
  stays_ = false;
}

std::optional<KeptStates> KeptState::compare(Communicator& host, int islands) const {
  const Numbers own = copy_ ? numbers_of(facts_) : stays_ ? Numbers(1) : Numbers();
  KeptStates k{.islands = islands};
  AllFacts all;
  for (const std::string& bytes : gather_host(host, bytes_of(own))) {
    const Numbers n = numbers_of(bytes);
    if (n.empty()) k.replaced.push_back(static_cast<int>(all.size()));
    all.push_back(n.size() > 1 ? std::optional(facts_from(n)) : std::nullopt);
  }
  std::vector<bool> usable;
  for (const std::optional<KeptFacts>& f : all) usable.push_back(f.has_value());
  const std::size_t size = all.size() / static_cast<std::size_t>(std::max(1, islands));
  if (islands > 0) usable = ranks_of_whole_islands(all, size);
  choose_donor(k, all, usable);
  if (k.donor < 0) return std::nullopt;
  for (std::size_t r = 0; r < all.size(); ++r)
    k.holders.push_back(usable[r] && (islands > 0 || all[r]->step == k.step));
  for (std::size_t r = 0; r < all.size() && islands > 0; ++r)
    if (const auto& f = all[r]; usable[r])
      k.renumbered |= f->island.islands != islands || f->island.island != static_cast<int>(r / size);
  const std::optional<KeptFacts>& leader = all.front();
  k.recorded = usable.front() && (leader->step > k.step || (leader->step == k.step && leader->finished));
  const KeptFacts& donor = *all[static_cast<std::size_t>(k.donor)];
  k.kept_ms = donor.kept_ms;
  k.donor_from = donor.island;
  k.last = donor.last;
  k.earlier = donor.earlier;
  return k;
}

void KeptState::load(const KeptStates& all, State& state, const Stream& stream, Communicator& host) {
  const bool islands = all.islands > 0;
  const int own = host.rank(), size = host.size() / std::max(1, all.islands);
  const auto holds = [&](int rank) { return static_cast<bool>(all.holders[static_cast<std::size_t>(rank)]); };
  const auto giver = [&](int rank) { return islands ? all.donor / size * size + rank % size : all.donor; };
  const auto source = [&](const std::string& name, int rank) {
    return islands ? given_name(name, rank / size, all.donor_from) : name;
  };
  Manifest values{.step = all.step};
  if (giver(own) == own) values.values = copy_->values();
  values = parse_manifest(gather_host(host, copy_ ? to_text(values) : "")[static_cast<std::size_t>(giver(own))]);
  state.wait_for_writes(stream);
  stream.synchronize();  // allowed host wait: checkpoint
  std::vector<Transfer> sends, receives;
  Arrivals arrivals(stream, state.snapshot_bytes());
  for (const auto& [name, t] : state.tensors()) {
    if (!holds(own) && t.local.bytes() > 0 && !source(name, own).empty())
      receives.push_back({arrivals.host_part_of(t.local), giver(own)});
    for (int rank = 0; rank < host.size(); ++rank) {
      if (holds(rank) || giver(rank) != own) continue;
      const auto kept = copy_->tensors().find(source(name, rank));
      if (kept != copy_->tensors().end() && kept->second.local.bytes() > 0) sends.push_back({kept->second.local, rank});
    }
  }
  host.exchange(sends, receives).synchronize();  // allowed host wait: checkpoint
  arrivals.copy_to_devices();
  if (holds(own)) return restore(state, stream, own / size);
  set_values(values, state);
  clear();
}

void KeptState::restore(State& state, const Stream& stream, int island) {
  const auto name_in_copy = [&](const std::string& name) {
    return facts_.island.islands > 0 ? name_in(name, island, facts_.island.island) : name;
  };
  state.wait_for_writes(stream);
  stream.synchronize();  // allowed host wait: checkpoint
  for (const auto& [name, t] : state.tensors()) {
    if (t.local.bytes() == 0) continue;
    const auto kept = copy_->tensors().find(name_in_copy(name));
    RING_CHECK(kept != copy_->tensors().end() && kept->second.local.bytes() == t.local.bytes(), "the kept state has ",
               kept == copy_->tensors().end() ? "no" : "a different", " tensor '", name, "'");
    copy_from_host(t.local, kept->second.local, stream);
  }
  stream.synchronize();  // allowed host wait: checkpoint
  Manifest values;
  for (const auto& [name, slot] : state.values())
    if (const auto kept = copy_->values().find(name_in_copy(name)); kept != copy_->values().end())
      values.values.emplace(name, kept->second);
  set_values(values, state);
  clear();
}

}  // namespace ring
