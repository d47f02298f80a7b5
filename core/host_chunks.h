#pragma once
// Flat tensors that live in host memory and are changed on the device, chunk by chunk: a chunk comes on one stream, is
// changed on the compute stream and leaves on a third, while others come and leave. The device holds a ring of chunks,
// at least kLeastRing: as many come ahead of a pass, and as many are still leaving when it ends.
//
// Everything is ordered by events and the host never waits, so a pass repeats from step to step. Its last chunks leave
// while the compute stream goes on: whoever looks at the host's tensors, or writes them, does so on a stream behind
// settle(). A pass that is being recorded (a CUDA graph) ends when all have left, since what forks from a recording has
// to join it; what ran before has joined with join(). On a CPU, where nothing overlaps, the same copies are made.

#include <algorithm>
#include <functional>
#include <vector>

#include "core/tensor.h"

namespace ring {

class HostChunks {
 public:
  static constexpr std::int64_t kLeastRing = 3;  // chunks: one comes, one is changed, one leaves
  // A longer ring has chunks of several times the size: a pass queues all of its copies at once, and where a GPU's
  // queue is full, the host waits, and with it what is to be computed meanwhile (docs/measured/memory.md).
  static constexpr std::int64_t kMostRing = 128;
  static constexpr std::int64_t kAlign = 16;  // elements; chunks begin at multiples of it

  struct Bytes {            // of all tensors together
    std::int64_t chunk;     // that travel at a time, at least
    std::int64_t ring = 0;  // that the device holds of them, at least kLeastRing chunks
  };
  // Elements [at, at + numel) of a pass.
  struct Piece {
    std::int64_t at = 0;
    Tensor host;
  };
  using Pieces = std::vector<Piece>;       // of one type; what lies between them does not travel
  using Ends = std::vector<std::int64_t>;  // where chunks may end, ascending, the last is n; none: anywhere
  // host: [n] each, of any types.
  HostChunks(const std::vector<Tensor>& host, Bytes, const Stream& compute);
  HostChunks(const std::vector<Tensor>& host, Bytes, const Stream& compute, const Stream& in,
             const Stream& out);  // which copy
  // A chunk is then as long as it must be to end where it may.
  HostChunks(std::vector<Pieces> host, const Ends& ends, std::int64_t n, Bytes, const Stream& compute);
  // Waits for copies: their memory may be gone afterwards.
  ~HostChunks();
  HostChunks(const HostChunks&) = delete;
  HostChunks& operator=(const HostChunks&) = delete;

  // The first chunks come, behind what the compute stream has queued so far, each as soon as its place is free; without
  // it they come with change().
  void begin();
  // Elements [first, first + n) of all tensors, in their order, [n] each, on the device: to be changed by what is
  // queued on the compute stream.
  using Change = std::function<void(std::int64_t first, std::int64_t n, const std::vector<Tensor>& here)>;
  void change(const Change&);  // all chunks, in order

  // What is queued on `stream` from now on comes behind every copy of the last pass. The pass after that is to wait for
  // what reads or writes the host's tensors: its begin() does for work on the compute stream, its change() for readers
  // that the compute stream waits for.
  void settle(const Stream& stream) const;
  // Before a pass is recorded, or a recorded one is replayed.
  void join();

  std::size_t host_bytes() const;
  // What n elements of so many bytes take of the device on their way.
  static std::size_t device_bytes(std::int64_t n, std::int64_t element_bytes, Bytes, const Ends& ends = {});
  std::size_t device_bytes() const;
  // How many of so many chunks of the smallest size a ring takes.
  static std::int64_t in_ring(std::int64_t chunks) { return chunks - chunks % times(chunks); }

 private:
  struct Place {
    Event arrived, left;
  };
  // A chunk's size in chunks of the smallest.
  static std::int64_t times(std::int64_t ring) { return std::max<std::int64_t>(1, (ring + kMostRing - 1) / kMostRing); }
  // Where chunks begin, and n.
  static Ends cut(std::int64_t n, std::int64_t element_bytes, Bytes, const Ends& ends);
  HostChunks(std::vector<Pieces> host, Ends begins, Bytes, const Stream& compute, const Stream& in, const Stream& out);
  std::int64_t chunks() const { return std::ssize(begins_) - 1; }
  std::int64_t begin_of(std::int64_t k) const { return begins_[static_cast<std::size_t>(k)]; }
  std::int64_t length(std::int64_t k) const { return begin_of(k + 1) - begin_of(k); }
  std::int64_t places() const { return std::ssize(ring_); }
  Place& place(std::int64_t k) { return ring_[static_cast<std::size_t>(k % places())]; }
  std::vector<Tensor> on_device(std::int64_t k) const;
  using CopyPiece = std::function<void(const Tensor& host, const Tensor& device)>;
  void for_pieces(std::int64_t k, const CopyPiece&) const;
  void fetch(std::int64_t k);
  void send(std::int64_t k);

  const std::vector<Pieces> host_;
  const Stream compute_, in_, out_;
  const Ends begins_;
  const std::int64_t longest_;  // chunk
  std::vector<Place> ring_;
  std::vector<Tensor> room_;  // of the whole ring, for each tensor
  Event all_left_;            // of the last pass
  bool begun_ = false;
};

}  // namespace ring
