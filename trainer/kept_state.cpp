#include "trainer/kept_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "comm/host.h"
#include "core/check.h"
#include "job/job_time.h"

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

const Tensor& tensor_in(const Snapshot& copy, const StateTensor& wanted) {
  const auto found = copy.tensors().find(wanted.name);
  RING_CHECK(found != copy.tensors().end() && found->second.local.bytes() == wanted.local.bytes(),
             "the kept state has ", found == copy.tensors().end() ? "no" : "a different", " tensor '", wanted.name,
             "'");
  return found->second.local;
}

}  // namespace

void KeptState::keep(const State& state, const Stream& stream, std::int64_t step, bool finished,
                     const StepReport& last) {
  Snapshot copy = state.snapshot(stream);
  copy.wait();
  copy_.emplace(std::move(copy));
  step_ = step;
  kept_ms_ = now_ms();
  finished_ = finished;
  last_ = last;
}

std::optional<KeptStates> KeptState::compare(Communicator& host) const {
  Numbers own;
  if (copy_) {
    own = {static_cast<double>(step_), static_cast<double>(kept_ms_), finished_ ? 1.0 : 0.0};
    append(own, last_);
  }
  std::vector<Numbers> all;
  for (const std::string& bytes : gather_host(host, bytes_of(own))) all.push_back(numbers_of(bytes));
  KeptStates k{.donor = -1};
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty())
      k.replaced.push_back(static_cast<int>(r));
    else if (k.donor < 0 || static_cast<std::int64_t>(all[r][0]) < k.step)
      k.donor = static_cast<int>(r), k.step = static_cast<std::int64_t>(all[r][0]);
  }
  if (k.donor < 0) return std::nullopt;
  for (const Numbers& n : all) k.holders.push_back(!n.empty() && static_cast<std::int64_t>(n[0]) == k.step);
  const Numbers& leader = all.front();
  k.recorded = !leader.empty() && (leader[0] > static_cast<double>(k.step) || leader[2] > 0);
  const Numbers& donor = all[static_cast<std::size_t>(k.donor)];
  k.kept_ms = static_cast<std::int64_t>(donor[1]);
  k.last = report_from(donor.begin() + 3, donor.end());
  return k;
}

void KeptState::load(const KeptStates& all, State& state, const Stream& stream, Communicator& host) {
  const auto holds = [&](int rank) { return static_cast<bool>(all.holders[static_cast<std::size_t>(rank)]); };
  const bool gives = host.rank() == all.donor;
  Manifest values{.step = all.step};
  if (gives) values.values = copy_->values();
  values = parse_manifest(gather_host(host, gives ? to_text(values) : "")[static_cast<std::size_t>(all.donor)]);
  state.wait_for_writes(stream);
  stream.synchronize();  // allowed host wait: checkpoint
  std::vector<Transfer> sends, receives;
  for (const auto& [name, t] : state.tensors()) {
    if (t.local.bytes() == 0) continue;
    if (!holds(host.rank())) {
      receives.push_back({t.local, all.donor});
      continue;
    }
    const Tensor& kept = tensor_in(*copy_, t);
    std::memcpy(t.local.raw(), kept.raw(), kept.bytes());
    for (int rank = 0; gives && rank < host.size(); ++rank)
      if (!holds(rank)) sends.push_back({kept, rank});
  }
  host.exchange(sends, receives).synchronize();  // allowed host wait: checkpoint
  set_values(values, state);
  clear();
}

}  // namespace ring
