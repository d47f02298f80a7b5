#pragma once
// Records memory after every kernel call of a training step, to find the first call with different bits in two runs.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "trainer/trainer.h"

namespace ring::test {

// A checksum of one block of memory after one call.
struct TracedBlock {
  std::string name;        // name of a watched tensor; "" for memory of the step
  std::size_t number = 0;  // in the order of allocation
  std::size_t bytes = 0;
  std::size_t born = 0;  // number of calls before the allocation
  std::uint64_t hash = 0;

  bool operator==(const TracedBlock&) const = default;
  std::string text() const;
};

struct TracedCall {
  std::string text;                 // part of the model, slot, candidate and shape
  std::vector<TracedBlock> blocks;  // all blocks that were live after the call
};

// Describes the first call that differs and the blocks in which it differs; "" if no call does.
std::string first_difference(const std::vector<TracedCall>&, const std::vector<TracedCall>&);

// While it lives, watches the trainer's kernels, and fills memory that steps allocate with NaN: memory that is never
// written is then the same in every run, and reading it shows.
class KernelTrace {
 public:
  explicit KernelTrace(Trainer&);
  ~KernelTrace();
  KernelTrace(const KernelTrace&) = delete;
  KernelTrace& operator=(const KernelTrace&) = delete;

  const std::vector<TracedCall>& calls() const;

 private:
  class Blocks;
  class Watch;
  Trainer& trainer_;
  std::shared_ptr<Allocator> before_;
  std::shared_ptr<Blocks> blocks_;
  std::shared_ptr<Watch> watch_;
};

}  // namespace ring::test
