#pragma once
// Passes documents to kernels as launch parameters, up to kDocuments at a time, so that nothing is uploaded and a step
// can be captured.

#include <vector>

#include "kernels/cuda/launch.h"

namespace ring::cuda {

constexpr int kDocuments = 64, kHeads = 64;  // maximum documents and heads per launch

// The documents of one launch. before[d]: number of blocks in all documents before d.
template <class Rows>
struct Documents {
  Rows rows[kDocuments];
  int before[kDocuments + 1], count;

  // Returns the document that block `at` belongs to.
  __device__ int find(int at) const {
    int d = 0;
    while (before[d + 1] <= at) ++d;
    return d;
  }
};

// Calls fn(documents) for up to kDocuments at a time. count(r): number of blocks of a document; if 0, it is skipped.
template <class Rows, class Count, class Fn>
void for_documents(const std::vector<Rows>& all, const Count& count, const Fn& fn) {
  Documents<Rows> some{};
  const auto flush = [&] {
    if (some.count > 0) fn(some);
    some = {};
  };
  for (const Rows& r : all) {
    if (count(r) == 0) continue;
    some.rows[some.count] = r;
    some.before[some.count + 1] = some.before[some.count] + count(r);
    if (++some.count == kDocuments) flush();
  }
  flush();
}

}  // namespace ring::cuda
