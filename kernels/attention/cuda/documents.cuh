#pragma once
// Documents travel with launches, some at a time, so that nothing is uploaded and a step can be recorded.

#include <vector>

#include "kernels/cuda/launch.h"

namespace ring::cuda {

constexpr int kDocuments = 64;  // of a launch

// Documents, and how many blocks those before each have.
template <class Rows>
struct Documents {
  Rows rows[kDocuments];
  int before[kDocuments + 1], count;

  // The one that has block `at` of all.
  __device__ int find(int at) const {
    int d = 0;
    while (before[d + 1] <= at) ++d;
    return d;
  }
};

// fn(documents) for some at a time; those without blocks are left out.
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
