#include "core/phase_ledger.h"

#include <algorithm>

namespace ring {

void PhaseLedger::enter(std::string_view phase) {
  auto found = numbers_.find(phase);
  if (found == numbers_.end()) {
    found = numbers_.emplace(phase, static_cast<std::uint32_t>(phases_.size())).first;
    phases_.push_back({std::string(phase)});
  }
  current_ = found->second;
  phases_[current_].peak = std::max(phases_[current_].peak, in_use_);
}

std::uint32_t PhaseLedger::add(std::size_t bytes) {
  in_use_ += bytes;
  peak_ = std::max(peak_, in_use_);
  PhaseMemory& p = phases_[current_];
  p.held += bytes;
  p.peak = std::max(p.peak, in_use_);
  return current_;
}

void PhaseLedger::remove(std::uint32_t phase, std::size_t bytes) {
  in_use_ -= bytes;
  phases_[phase].held -= bytes;
}

void PhaseLedger::reset_peak() {
  peak_ = in_use_;
  for (PhaseMemory& p : phases_) p.peak = 0;
  phases_[current_].peak = in_use_;
}

std::vector<PhaseMemory> PhaseLedger::phases() const {
  std::vector<PhaseMemory> out;
  for (const PhaseMemory& p : phases_)
    if (p.held || p.peak) out.push_back(p);
  std::stable_sort(out.begin(), out.end(), [](const PhaseMemory& a, const PhaseMemory& b) { return a.held > b.held; });
  return out;
}

std::string PhaseLedger::largest_holders(int most) const {
  std::string text;
  for (const PhaseMemory& p : phases()) {
    if (!p.held || most-- == 0) break;
    text += str(text.empty() ? "" : ", ", p.phase, " ", bytes_text(p.held));
  }
  return text.empty() ? "nobody" : text;
}

}  // namespace ring
