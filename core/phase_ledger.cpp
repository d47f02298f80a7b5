#include "core/phase_ledger.h"

#include <algorithm>

namespace ring {

void PhaseLedger::enter(const ScopeId& phase) {
  const auto [found, fresh] = numbers_.emplace(phase, static_cast<std::uint32_t>(phases_.size()));
  if (fresh) phases_.push_back({phase});
  open_.push_back(found->second);
  PhaseMemory& p = phases_[open_.back()];
  p.peak = std::max(p.peak, in_use_);
}

void PhaseLedger::leave() {
  open_.pop_back();
  PhaseMemory& p = phases_[open_.back()];
  p.peak = std::max(p.peak, in_use_);
}

std::uint32_t PhaseLedger::add(std::size_t bytes) {
  in_use_ += bytes;
  peak_ = std::max(peak_, in_use_);
  PhaseMemory& p = phases_[open_.back()];
  p.held += bytes;
  p.peak = std::max(p.peak, in_use_);
  return open_.back();
}

void PhaseLedger::remove(std::uint32_t phase, std::size_t bytes) {
  in_use_ -= bytes;
  phases_[phase].held -= bytes;
}

void PhaseLedger::reset_peak() {
  peak_ = in_use_;
  for (PhaseMemory& p : phases_) p.peak = 0;
  phases_[open_.back()].peak = in_use_;
}

std::vector<PhaseMemory> PhaseLedger::phases() const {
  std::vector<PhaseMemory> out;
  for (const PhaseMemory& p : phases_)
    if (p.held || p.peak) out.push_back(p);
  std::stable_sort(out.begin(), out.end(), [](const PhaseMemory& a, const PhaseMemory& b) { return a.held > b.held; });
  return out;
}

std::string PhaseLedger::largest_holders(int max) const {
  std::string text;
  for (const PhaseMemory& p : phases()) {
    if (!p.held || max-- == 0) break;
    text += str(text.empty() ? "" : ", ", p.phase, " ", bytes_text(p.held));
  }
  return text.empty() ? "nobody" : text;
}

}  // namespace ring
