#pragma once
// Shared by the CPU attention kernels: views of strided [N,H,D] tensors, and scheduling of tasks on threads.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "kernels/attention/attention.h"

namespace ring::cpu {

constexpr std::int64_t kQueryBlock = 64, kKeyBlock = 128;  // rows and columns of a score tile; multiples of kLanes

// A tensor [N,H,D] with unit last stride.
struct Heads {
  float* data = nullptr;
  std::int64_t tokens = 0, heads = 0, dim = 0, row = 0, head = 0;  // row, head: strides in floats

  float* at(std::int64_t token, std::int64_t h) const { return data + token * row + h * head; }
};

inline Heads heads_of(const Tensor& t) {
  return {t.data<float>(), t.dim(0), t.dim(1), t.dim(2), t.stride(0), t.stride(1)};
}

// The samples of a head segment in one head of a tensor: sample j is at data + first + j * stride.
struct Rows {
  float* data = nullptr;
  std::int64_t first = 0, stride = 0;  // in floats; `first` is negative if sample 0 is before the tensor

  float* at(std::int64_t j) const { return data + (first + j * stride); }
  // Copies samples [j, j + count) of `dim` floats, a multiple of 8, to contiguous rows. Without the copy, rows that are
  // a power of two apart would compete for few cache sets.
  void copy(std::int64_t j, std::int64_t count, std::int64_t dim, float* to) const {
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t c = 0; c < dim; c += 8) std::memcpy(to + i * dim + c, at(j + i) + c, 8 * sizeof(float));
  }
};
// Returns the samples first_row, first_row + rate, ... of a head.
inline Rows rows_of(const Heads& t, std::int64_t head, std::int64_t first_row, std::int64_t rate) {
  return {t.data + head * t.head, first_row * t.row, rate * t.row};
}

// Calls fn(task, thread) for every task; the next free thread takes the task with the highest cost (Graham 1969).
// Requires that tasks write disjoint results, so that the results do not depend on the schedule.
template <class Task, class Fn>
void share_out(std::vector<Task> tasks, ThreadPool& pool, const Fn& fn) {
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
  std::atomic<std::size_t> next{0};
  pool.parallel_for(pool.size(), 1, [&](std::int64_t, std::int64_t, int thread) {
    for (std::size_t i = next.fetch_add(1); i < tasks.size(); i = next.fetch_add(1)) fn(tasks[i], thread);
  });
}

}  // namespace ring::cpu
