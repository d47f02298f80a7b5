#pragma once
// What every kernel call of a training step left in memory: tells which call first gave other bits than in another run.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "trainer/trainer.h"

namespace ring::test {

// A checksum of one block of memory after one call.
struct TracedBlock {
  std::string name;        // of a watched tensor; empty: memory of the step
  std::size_t number = 0;  // in the order in which blocks were taken
  std::size_t bytes = 0;
  std::size_t born = 0;  // how many calls there were before it was taken
  std::uint64_t hash = 0;

  bool operator==(const TracedBlock&) const = default;
  std::string text() const;
};

struct TracedCall {
  std::string text;                 // part of the model, slot, candidate, shape
  std::vector<TracedBlock> blocks;  // all that lived when it was done
};

// The first call that differs and the blocks in which it does, in words; empty: none does.
std::string first_difference(const std::vector<TracedCall>&, const std::vector<TracedCall>&);

// While it lives, the trainer's kernels are watched and the memory that its steps take is full of NaN at first, so that
// what is never written is the same in every run, and shows where it is read.
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
