#pragma once
// Memory accounting: live bytes by the phase in which they were allocated.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/storage.h"

namespace ring {

class PhaseLedger {
 public:
  PhaseLedger() { enter({}); }
  void enter(const ScopeId& phase);
  void leave();                          // returns to the enclosing phase
  std::uint32_t add(std::size_t bytes);  // adds to the current phase; returns the phase's index, for remove()
  void remove(std::uint32_t phase, std::size_t bytes);
  void reset_peak();

  std::size_t in_use() const { return in_use_; }
  std::size_t peak() const { return peak_; }
  std::vector<PhaseMemory> phases() const;         // phases that held memory, largest first
  std::string largest_holders(int max = 5) const;  // e.g. "optimizer states 1.50 GiB, blocks.0 20.0 MiB"

 private:
  std::vector<PhaseMemory> phases_;
  std::map<ScopeId, std::uint32_t> numbers_;
  std::vector<std::uint32_t> open_;  // indices of the open phases, outermost first; the last one is current
  std::size_t in_use_ = 0, peak_ = 0;
};

}  // namespace ring
