#pragma once
// Selections in tests are bit matrices [rows, heads, words]: key block k is bit k % 32 of word k / 32. These functions
// convert them to the lists of kept blocks that kernels read (kernels/attention/selection.h), and back.

#include <algorithm>
#include <vector>

#include "kernels/attention/selection.h"
#include "kernels/kernel.h"

namespace ring::test {

// Returns the lists [rows, heads, room] for `lists` = rows x heads rows of the matrix. room: capacity of each list; 0
// means the length of the longest list.
inline std::vector<std::int32_t> lists_of_bits(const std::vector<std::int32_t>& bits, std::int64_t words,
                                               std::size_t room = 0) {
  std::vector<std::vector<std::int32_t>> lists(bits.size() / static_cast<std::size_t>(words));
  for (std::size_t i = 0; i < lists.size(); ++i) {
    for (std::int32_t k = 0; k < words * 32; ++k)
      if (static_cast<std::uint32_t>(bits[i * static_cast<std::size_t>(words) + static_cast<std::size_t>(k / 32)]) >>
              (k % 32) &
          1u)
        lists[i].push_back(k);
  }
  for (const auto& list : lists) room = std::max({room, list.size(), std::size_t{1}});
  std::vector<std::int32_t> all;
  for (auto& list : lists) {
    list.resize(room, kNoBlock);
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

inline Tensor kept_of_bits(const std::vector<std::int32_t>& bits, std::int64_t heads, std::int64_t words,
                           const ExecContext& ctx, std::size_t room = 0) {
  const std::vector<std::int32_t> lists = lists_of_bits(bits, words, room);
  const std::int64_t rows = std::ssize(bits) / words / heads;
  return from_host(lists, ctx.stream).view({rows, heads, rows ? std::ssize(lists) / rows / heads : 1});
}

inline std::vector<std::int32_t> bits_of_kept(const Tensor& kept, std::int64_t words, const ExecContext& ctx) {
  const auto lists = to_host<std::int32_t>(kept, ctx.stream);
  std::vector<std::int32_t> bits(static_cast<std::size_t>(kept.dim(0) * kept.dim(1) * words));
  for (std::size_t n = 0; n < lists.size(); ++n) {
    if (lists[n] == kNoBlock) continue;
    const std::size_t list = n / static_cast<std::size_t>(kept.dim(2)), word = static_cast<std::size_t>(lists[n] / 32);
    std::int32_t& to = bits[list * static_cast<std::size_t>(words) + word];
    to = static_cast<std::int32_t>(static_cast<std::uint32_t>(to) | 1u << (lists[n] % 32));
  }
  return bits;
}

// Converts values by block, [rows, heads, blocks], to values by kept block, [rows, heads, room], or back. Others are 0.
inline std::vector<double> by_kept(const std::vector<double>& by_block, std::int64_t blocks,
                                   const std::vector<std::int32_t>& lists, std::int64_t room) {
  std::vector<double> values(lists.size());
  for (std::size_t n = 0; n < lists.size(); ++n)
    if (lists[n] != kNoBlock)
      values[n] = by_block[n / static_cast<std::size_t>(room) * static_cast<std::size_t>(blocks) +
                           static_cast<std::size_t>(lists[n])];
  return values;
}
inline std::vector<double> by_block(const std::vector<double>& by_kept, std::int64_t blocks,
                                    const std::vector<std::int32_t>& lists, std::int64_t room) {
  std::vector<double> values(lists.size() / static_cast<std::size_t>(room) * static_cast<std::size_t>(blocks));
  for (std::size_t n = 0; n < lists.size(); ++n)
    if (lists[n] != kNoBlock)
      values[n / static_cast<std::size_t>(room) * static_cast<std::size_t>(blocks) +
             static_cast<std::size_t>(lists[n])] = by_kept[n];
  return values;
}

}  // namespace ring::test
