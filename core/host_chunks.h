#pragma once
// Updates flat tensors in host memory on the device, chunk by chunk. One stream copies a chunk to the device, the
// compute stream changes it, and a third stream copies it back. Copies of other chunks run in both directions
// meanwhile. The device holds a ring of at least kMinRing chunks. Events order all work and the host never waits, so a
// pass over all chunks can repeat in every step.
//
// - Begin of a pass: its first chunks, up to a whole ring, can be fetched ahead of it (prefetch()).
// - End of a pass: its last chunks are still being copied back while the compute stream continues. A stream that reads
//   or writes the host tensors must call wait_for_copies() first.
// - Recording (CUDA graph): a recorded pass ends only when all chunks are back, since all streams that fork from a
//   recording must join it. Copies of earlier passes must join before the recording, by join_copies().
// - CPU: it makes the same copies, without overlap.

#include <algorithm>
#include <functional>
#include <vector>

#include "core/tensor.h"

namespace ring {

class HostChunks {
 public:
  // Minimum chunks in a ring: one being copied in, one changed, one copied back.
  static constexpr std::int64_t kMinRing = 3;
  // If the ring would be longer, its chunks are enlarged instead. A pass queues all of its copies at once; if a GPU's
  // queue is full, the host blocks and cannot queue the next computation (docs/measured/memory.md).
  static constexpr std::int64_t kMaxRing = 128;
  static constexpr std::int64_t kAlign = 16;      // elements; chunks begin at multiples of it, unless `ends` are given
  static constexpr std::int64_t kBlock = kAlign;  // elements that share a value of a Piece with per_block

  struct Sizes {            // in bytes, summed over all tensors
    std::int64_t chunk;     // minimum size of a chunk
    std::int64_t ring = 0;  // size of the ring on the device; at least kMinRing chunks are held
  };
  // Part of a host tensor: elements [at, at + numel()) of the n elements that a pass covers.
  struct Piece {
    std::int64_t at = 0;
    Tensor host;
    bool per_block = false;  // one value for each block of kBlock elements: chunks must begin at multiples of it
    std::int64_t per_value() const { return per_block ? kBlock : 1; }
    std::int64_t numel() const { return host.numel() * per_value(); }
  };
  // Pieces of one dtype and one per_block; elements between pieces are not copied.
  using Pieces = std::vector<Piece>;
  using Ends = std::vector<std::int64_t>;  // positions where chunks may end: ascending, the last is n; {} allows all
  // `host` holds tensors [n], of any dtypes.
  HostChunks(const std::vector<Tensor>& host, Sizes, const Stream& compute);
  HostChunks(const std::vector<Tensor>& host, Sizes, const Stream& compute, const Stream& in,
             const Stream& out);  // in, out: streams of the copies to and from the device
  // Chunks end only at `ends`, so a chunk may be larger than Sizes::chunk.
  HostChunks(std::vector<Pieces> host, const Ends& ends, std::int64_t n, Sizes, const Stream& compute);
  // Waits for all copies: the host tensors may be freed afterwards.
  ~HostChunks();
  HostChunks(const HostChunks&) = delete;
  HostChunks& operator=(const HostChunks&) = delete;

  // Starts to fetch the first ring of chunks, after the work that the compute stream has queued so far. The call is
  // optional: for_each_chunk() makes it if the caller has not.
  void prefetch();
  // Like prefetch(), but one chunk per call: prefetch_first() fetches the first chunk, and each prefetch_next() the
  // next one unless the ring is full. Each copy begins after the work that the compute stream has queued so far. So
  // later chunks never delay other copies to the device that this work waits for.
  void prefetch_first();
  void prefetch_next();
  // Queues work on the compute stream that changes elements [first, first + n). `here` holds them on the device: a
  // tensor [n] (with per_block, one value for each block) for each host tensor, in the same order.
  using ChunkFn = std::function<void(std::int64_t first, std::int64_t n, const std::vector<Tensor>& here)>;
  void for_each_chunk(const ChunkFn&);  // called for each chunk in order

  // Makes `stream` wait for all copies of the last pass. The next pass must not overtake work that reads or writes the
  // host tensors. prefetch() waits for such work if it is on the compute stream. If a reader is on a different stream,
  // make the compute stream wait for it before for_each_chunk(): the copies back wait for the compute stream.
  void wait_for_copies(const Stream& stream) const;
  // Like the overload above, but waits only for the copies of elements [0, end).
  void wait_for_copies(const Stream& stream, std::int64_t end) const;
  // Makes the compute stream wait for all copies. Call it before a pass is recorded, and before a recorded pass is
  // replayed.
  void join_copies();

  std::size_t host_bytes() const;
  // Returns the device memory of a ring for n elements, where block_bytes is the size of kBlock elements, summed over
  // all tensors.
  static std::size_t device_bytes(std::int64_t n, std::int64_t block_bytes, Sizes, const Ends& ends = {});
  std::size_t device_bytes() const;
  // Rounds down the length of a ring, counted in chunks of the minimum size, so that it holds a whole number of chunks
  // after they are enlarged.
  static std::int64_t round_to_ring(std::int64_t chunks) { return chunks - chunks % enlargement(chunks); }

 private:
  struct Slot {
    Event arrived, sent;
  };
  // Returns the factor by which chunks are enlarged, so that a ring has at most kMaxRing.
  static std::int64_t enlargement(std::int64_t ring) {
    return std::max<std::int64_t>(1, (ring + kMaxRing - 1) / kMaxRing);
  }
  // Returns the positions where chunks begin, then n.
  static Ends chunk_begins(std::int64_t n, std::int64_t block_bytes, Sizes, const Ends& ends);
  HostChunks(std::vector<Pieces> host, Ends begins, Sizes, const Stream& compute, const Stream& in, const Stream& out);
  std::int64_t chunks() const { return std::ssize(begins_) - 1; }
  std::int64_t begin_of(std::int64_t k) const { return begins_[static_cast<std::size_t>(k)]; }
  std::int64_t length(std::int64_t k) const { return begin_of(k + 1) - begin_of(k); }
  std::int64_t slots() const { return std::ssize(ring_); }
  Slot& slot(std::int64_t k) { return ring_[static_cast<std::size_t>(k % slots())]; }
  std::vector<Tensor> on_device(std::int64_t k) const;  // views of chunk k in the ring
  using CopyPiece = std::function<void(const Tensor& host, const Tensor& device)>;
  void for_each_piece(std::int64_t k,
                      const CopyPiece&) const;  // calls the function for each part of a piece in chunk k
  void copy_to_device(std::int64_t k);          // queues the copies of chunk k to the device
  void copy_to_host(std::int64_t k);            // queues the copies of chunk k back to the host

  const std::vector<Pieces> host_;
  const Stream compute_, in_, out_;
  const Ends begins_;
  const std::int64_t longest_;  // elements of the longest chunk
  std::vector<Slot> ring_;
  std::vector<Tensor> ring_memory_;  // the ring on the device: one tensor per host tensor
  Event all_sent_;                   // all copies of the last pass
  std::int64_t prefetched_ = 0;      // chunks of the next pass whose copies have been queued
};

}  // namespace ring
