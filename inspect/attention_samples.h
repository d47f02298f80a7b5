#pragma once
// Counts the pairs that several branches share: in closed form without windows, else query by query.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "core/check.h"
#include "kernels/attention/seen_keys.h"

namespace ring {

constexpr std::size_t kMaxCountedBranches = 16;  // for_subsets() visits 2^branches subsets

// Splits [0, length) into stretches, each within one segment of every branch in `subset` (one bit per branch). For each
// stretch, the positions that all these branches sample form an arithmetic progression: calls fn(first, step, count).
// place: KV head + shift. In these branches, a position of the progression sees itself and the earlier positions of the
// progression; no other pair is in all of them.
template <class Fn>
void for_common_samples(const std::vector<Branch>& branches, unsigned subset, std::int64_t place, std::int64_t length,
                        const Fn& fn) {
  for (std::int64_t begin = 0, end = 0; begin < length; begin = end) {
    end = length;
    for (std::size_t i = 0; i < branches.size(); ++i)
      if (subset >> i & 1) end = std::min(end, (begin / branches[i].segment + 1) * branches[i].segment);
    std::int64_t first = begin, step = 1;
    for (std::size_t i = 0; i < branches.size() && first < end; ++i) {
      if (!(subset >> i & 1)) continue;
      const std::int64_t rate = branches[i].rate, start = begin / branches[i].segment * branches[i].segment;
      const std::int64_t tries = rate / std::gcd(step, rate);  // the remainders repeat after `tries` steps
      std::int64_t tried = 0;
      while (tried < tries && first < end && (first - start) % rate != place % rate) first += step, ++tried;
      if (tried == tries) first = end;
      step = std::min(std::lcm(step, rate), length);  // bounds the step: a step of `length` reaches no second sample
    }
    if (first < end) fn(first, step, (end - first - 1) / step + 1);
  }
}

// Calls fn(subset, number of branches in it) for all non-empty subsets.
template <class Fn>
void for_subsets(const std::vector<Branch>& branches, const Fn& fn) {
  if (branches.size() > kMaxCountedBranches)
    fail("attention: ", branches.size(),
         " dilated branches, but pairs that several branches keep are counted for at most ", kMaxCountedBranches,
         ". Give fewer segments and rates");
  for (unsigned subset = 1; subset < 1u << branches.size(); ++subset) fn(subset, std::popcount(subset));
}

// Calls fn(first, end, times) for each range of adjacent keys that occur equally often in a query's runs, in ascending
// order.
template <class Fn>
void for_key_ranges(const std::vector<KeyRun>& runs, const Fn& fn) {
  std::vector<std::pair<std::int32_t, int>> edges;
  const auto add = [&](std::int32_t first, std::int32_t end) {
    edges.emplace_back(first, 1);
    edges.emplace_back(end, -1);
  };
  for (const KeyRun& run : runs) {
    if (run.stride == 1)
      add(run.first, run.first + run.count);
    else
      for (std::int32_t i = 0; i < run.count; ++i) add(run.first + i * run.stride, run.first + i * run.stride + 1);
  }
  std::sort(edges.begin(), edges.end());
  std::int32_t at = 0;
  int times = 0;
  for (const auto& [key, change] : edges) {
    if (times > 0 && at < key) fn(at, key, times);
    at = key;
    times += change;
  }
}

}  // namespace ring
