#include <algorithm>

#include "core/log.h"
#include "core/unavailable.h"
#include "kernels/attention/cuda/lists.h"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

bool recording(const ExecContext& ctx) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  RING_CUDA_CHECK(cudaStreamIsCapturing(static_cast<cudaStream_t>(ctx.stream.native()), &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

DeviceLists lists_for(const Pattern& pattern, Stationary owner, std::int64_t kv_heads, std::int64_t length,
                      std::int64_t stream_bytes, const ExecContext& ctx) {
  RING_CHECK(pattern.blocks, "attention: block lists of a pattern without blocks");
  const ListShape shape{owner, kv_heads, length, pattern.causal, kv_heads_per_section(kv_heads, length, stream_bytes)};
  return ctx.stream.impl().resource<ListCache>().find(*pattern.blocks, shape, ctx);
}

DeviceLists ListCache::find(const BlockPattern& pattern, const ListShape& shape, const ExecContext& ctx) {
  const bool stays = recording(ctx);
  const Key key{pattern.version(), pattern.generation(), shape};
  auto at = entries_.find(key);
  if (at == entries_.end()) {
    if (stays)
      fail_without(Resource::recorded_lists, "attention: the block lists of a recorded step for rows of ", shape.length,
                   " tokens are missing; the cache holds ", bytes_text(bytes_), " of lists, at most ",
                   bytes_text(limit_), ". Lists are built by the step before, if they all fit");
    DeviceLists lists = build_lists(pattern, shape, ctx);
    log::debug("block lists for ", shape.kv_heads, " KV heads and rows of ", shape.length,
               " tokens: ", bytes_text(lists.bytes()), ", density ", lists.density);
    make_room(lists.bytes());
    bytes_ += lists.bytes();
    at = entries_.emplace(key, Entry{std::move(lists)}).first;
  }
  at->second.last_use = ++uses_;
  at->second.pinned |= stays;
  return at->second.lists;
}

void ListCache::set_limit(std::size_t bytes) {
  limit_ = bytes;
  make_room(0);
}

void ListCache::make_room(std::size_t bytes) {
  while (bytes_ + bytes > limit_) {
    const auto rank = [](const auto& e) { return std::pair(e.second.pinned, e.second.last_use); };
    const auto oldest = std::ranges::min_element(entries_, {}, rank);
    if (oldest == entries_.end() || oldest->second.pinned) return;
    bytes_ -= oldest->second.lists.bytes();
    entries_.erase(oldest);
  }
}

}  // namespace ring::cuda
