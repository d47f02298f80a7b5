#pragma once
// What the CPU's attention kernels share: strided [N,H,D] views, the cut into blocks, and the sharing out of tasks.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "kernels/kernel.h"

namespace ring::cpu {

constexpr std::int64_t kQueryBlock = 64, kKeyBlock = 128;  // a tile of scores; multiples of kLanes
constexpr std::int64_t kTile = kQueryBlock * kKeyBlock;

// A tensor [N,H,D] with unit last stride.
struct Heads {
  float* data = nullptr;
  std::int64_t tokens = 0, heads = 0, dim = 0, row = 0, head = 0;  // row, head: strides

  float* at(std::int64_t token, std::int64_t h) const { return data + token * row + h * head; }
};

inline Heads heads_of(const Tensor& t, const char* op, const char* name) {
  RING_CHECK(t.shape().size() == 3 && (t.dim(2) == 1 || t.stride(2) == 1), op, ": ", name, " is ", describe(t),
             ", expected [tokens, heads, head dim] with unit last stride");
  return {t.data<float>(), t.dim(0), t.dim(1), t.dim(2), t.stride(0), t.stride(1)};
}

inline void check_same(const Heads& a, const Heads& b, const char* op, const char* names) {
  RING_CHECK(a.tokens == b.tokens && a.heads == b.heads && a.dim == b.dim, op, ": ", names, " have shapes [", a.tokens,
             ",", a.heads, ",", a.dim, "] and [", b.tokens, ",", b.heads, ",", b.dim, "]");
}

inline void check_geometry(const Heads& q, const Heads& k, const char* op) {
  RING_CHECK(q.tokens == k.tokens && q.dim == k.dim, op, ": queries are [", q.tokens, ",", q.heads, ",", q.dim,
             "], keys [", k.tokens, ",", k.heads, ",", k.dim, "]");
  RING_CHECK(q.dim > 0 && q.dim % 8 == 0, op, ": head dim ", q.dim, " is not a multiple of 8");
  RING_CHECK(k.heads > 0 && q.heads % k.heads == 0, op, ": ", q.heads, " query heads over ", k.heads, " KV heads");
}

inline void check_offsets(const std::vector<std::int32_t>& offsets, std::int64_t tokens, const char* op) {
  RING_CHECK(!offsets.empty() && offsets.front() >= 0 && offsets.back() <= tokens &&
                 std::is_sorted(offsets.begin(), offsets.end()),
             op, ": offsets must rise within [0, ", tokens, "]");
}

// Calls fn(first, count) for the rows that belong to no sequence.
template <class Fn>
void for_rows_outside(const std::vector<std::int32_t>& offsets, std::int64_t tokens, const Fn& fn) {
  if (offsets.front() > 0) fn(std::int64_t{0}, std::int64_t{offsets.front()});
  if (offsets.back() < tokens) fn(std::int64_t{offsets.back()}, tokens - offsets.back());
}

inline void zero_rows(const Heads& t, std::int64_t first, std::int64_t count) {
  for (std::int64_t n = first; n < first + count; ++n)
    for (std::int64_t h = 0; h < t.heads; ++h) std::fill_n(t.at(n, h), t.dim, 0.0f);
}

inline std::int64_t blocks(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

// How many of the `width` keys from `key` on a query at position `query` of the same sequence sees.
inline std::int64_t visible(bool causal, std::int64_t query, std::int64_t key, std::int64_t width) {
  return causal ? std::clamp<std::int64_t>(query + 1 - key, 0, width) : width;
}

// fn(task, thread) for every task, each taken by the next free thread, dearest first (Graham 1969). A task writes only
// what it owns and computes it alone, so who runs it when does not change a bit.
template <class Task, class Fn>
void share_out(std::vector<Task> tasks, ThreadPool& pool, const Fn& fn) {
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
  std::atomic<std::size_t> next{0};
  pool.parallel_for(pool.size(), 1, [&](std::int64_t, std::int64_t, int thread) {
    for (std::size_t i = next.fetch_add(1); i < tasks.size(); i = next.fetch_add(1)) fn(tasks[i], thread);
  });
}

}  // namespace ring::cpu
