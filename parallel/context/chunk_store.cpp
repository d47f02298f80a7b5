#include "parallel/context/chunk_store.h"

#include <algorithm>
#include <utility>

#include "core/byte_size.h"
#include "core/copy_stream.h"
#include "core/page_locker.h"
#include "parallel/context/rows.h"

namespace ring {
namespace {

// Copies the parts of `bytes` bytes with elements of this size.
void copy_parts(const Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes, std::size_t element,
                const ChunkStore::Parts& parts) {
  if (!parts) return stream.impl().copy(to, from, bytes);
  for (const ChunkStore::Elements& e : *parts) {
    const std::size_t at = static_cast<std::size_t>(e.first) * element;
    stream.impl().copy(to + at, from + at, static_cast<std::size_t>(e.count) * element);
  }
}

}  // namespace

ChunkStore::ChunkStore(const ExecContext& ctx, std::size_t host_limit)
    : ctx_(ctx),
      on_host_(host_limit > 0),
      out_(copy_stream(ctx.stream)),
      in_(copy_stream(ctx.stream)),
      slabs_(ctx.stream, host_limit) {}

ChunkStore::~ChunkStore() {
  try {
    clear();
  } catch (const Error&) {  // the device has failed; its next use reports the error
  }
}

void ChunkStore::clear() {
  free_stored();
  for (Entries* all : {&keys_, &gradients_}) {
    while (!all->empty()) forget(*all, all->begin()->first);
  }
}

void ChunkStore::drop(const Key& key) {
  forget(keys_, key);
  forget(gradients_, key);
}

// Makes the compute stream wait for a copy in flight before the memory is freed.
void ChunkStore::forget(Entries& all, const Key& key) {
  const auto at = all.find(key);
  if (at == all.end()) return;
  ctx_.stream.wait(at->second.arrived);
  if (const HostPiece& piece = at->second.host; piece.data) free_.emplace(piece.bytes, piece.data);
  all.erase(at);
}

// Returns a piece of host memory that holds at least this many bytes: a free one unless it is far too large.
ChunkStore::HostPiece ChunkStore::take_host(std::size_t bytes) {
  const auto at = free_.lower_bound(bytes);
  if (at != free_.end() && at->first <= 2 * bytes) {
    const HostPiece piece{at->second, at->first};
    free_.erase(at);
    return piece;
  }
  return {slabs_.allocate(bytes), bytes};
}

std::size_t ChunkStore::expected_host_bytes() const {
  std::size_t gradients = 0, free = 0;
  for (const auto& [key, entry] : keys_)
    if (on_host_ && !gradients_.contains(key))
      gradients += static_cast<std::size_t>(entry.form.numel()) * sizeof(float);
  for (const auto& [bytes, piece] : free_) free += bytes;
  return slabs_.held_after(gradients - std::min(gradients, free));
}

void ChunkStore::free_stored() {
  for (const Leaving& l : leaving_) ctx_.stream.wait(l.stored);
  leaving_.clear();
}

void ChunkStore::put(const Key& key, const Tensor& message) {
  const auto [at, is_new] = keys_.try_emplace(key);
  RING_CHECK(is_new, "chunk store: layer ", key.layer, " has stored the keys of chunk ", key.chunk);
  store(at->second, message, {});
}

Tensor ChunkStore::keys(const Key& key, const Parts& parts) {
  const auto at = keys_.find(key);
  RING_CHECK(at != keys_.end(), "chunk store: layer ", key.layer, " has not stored the keys of chunk ", key.chunk);
  return use(at->second, parts);
}

Tensor ChunkStore::gradients(const Key& key) {
  const auto at = gradients_.find(key);
  return at == gradients_.end() ? Tensor{} : use(at->second, {});
}

void ChunkStore::add_gradients(const Key& key, const Tensor& message, const Parts& parts) {
  const auto [at, is_new] = gradients_.try_emplace(key);
  if (is_new) return store(at->second, message, {});
  if (parts && parts->empty()) return;
  const Tensor sum = use(at->second, parts);
  add(sum, message, ctx_);
  store(at->second, sum, parts);
}

void ChunkStore::store(Entry& entry, const Tensor& t, const Parts& parts) {
  entry.form = t.with_storage(nullptr);
  if (!on_host_) {
    if (entry.here.defined()) return;  // `t` is the stored tensor itself
    entry.here = ctx_.empty(t.shape(), t.dtype(), Lifetime::run);
    return copy(entry.here, t, ctx_.stream);
  }
  free_stored();
  if (!entry.host.data) entry.host = take_host(t.bytes());
  if (!entry.host.data)
    throw OutOfHostMemory(str("out of host memory for the keys of a sequence in chunks: ", bytes_text(t.bytes()),
                              " requested, ", bytes_text(slabs_.held()), " held"),
                          "Raise train.activation_offload_bytes, or give the host more memory");
  out_.wait(ctx_.stream.record());
  copy_parts(out_, entry.host.data, t.raw(), t.bytes(), size_of(t.dtype()), parts);
  entry.stored = out_.record();
  leaving_.push_back({t, entry.stored});
}

void ChunkStore::prefetch(Entries& all, const Key& key, const Parts& parts) {
  if (parts && parts->empty()) return;  // add_gradients() would not use it
  const auto at = all.find(key);
  if (on_host_ && at != all.end() && !at->second.here.defined()) fetch(at->second, parts);
}

void ChunkStore::fetch(Entry& entry, const Parts& parts) {
  entry.here = ctx_.empty(entry.form.shape(), entry.form.dtype(), Lifetime::run);
  if (parts) fill_zero(entry.here, ctx_.stream);  // kernels may multiply the other elements by a weight of 0
  in_.wait(ctx_.stream.record());                 // wait for earlier users of that memory
  in_.wait(entry.stored);
  copy_parts(in_, entry.here.raw(), entry.host.data, entry.here.bytes(), size_of(entry.form.dtype()), parts);
  entry.arrived = in_.record();
}

Tensor ChunkStore::use(Entry& entry, const Parts& parts) {
  if (!entry.here.defined()) fetch(entry, parts);
  ctx_.stream.wait(std::exchange(entry.arrived, {}));
  return on_host_ ? std::exchange(entry.here, {}) : entry.here;
}

}  // namespace ring
