#pragma once
// Flat tensors that live in host memory and are changed on the device, chunk by chunk: a chunk comes on one stream, is
// changed on the compute stream and leaves on a third, while the one behind it comes and the one before it leaves. The
// device holds kStages chunks.
//
// Everything is ordered by events, and the compute stream waits for the last copy: a pass repeats from step to step and
// can be recorded (a CUDA graph), the host never waits, and what is queued behind a pass sees the new values. On a CPU,
// where nothing overlaps, the same copies are made.

#include <functional>
#include <vector>

#include "core/tensor.h"

namespace ring {

class HostChunks {
 public:
  static constexpr std::int64_t kStages = 3;  // one comes, one is changed, one leaves
  static constexpr std::int64_t kAlign = 16;  // elements; chunks begin at multiples of it

  // host: [n] each, of any types. chunk_bytes: of all of them together, that travel at a time.
  HostChunks(std::vector<Tensor> host, std::int64_t chunk_bytes, const Stream& compute);
  HostChunks(std::vector<Tensor> host, std::int64_t chunk_bytes, const Stream& compute, const Stream& in,
             const Stream& out);  // which copy
  HostChunks(const HostChunks&) = delete;
  HostChunks& operator=(const HostChunks&) = delete;

  // The first chunks come, behind what the compute stream has queued so far; without it they come with change().
  void begin();
  // Elements [first, first + n) of all tensors, in their order, [n] each, on the device: to be changed by what is
  // queued on the compute stream.
  using Change = std::function<void(std::int64_t first, std::int64_t n, const std::vector<Tensor>& here)>;
  void change(const Change&);  // all chunks, in order

  std::size_t host_bytes() const;
  // What n elements of so many bytes take of the device on their way.
  static std::size_t device_bytes(std::int64_t n, std::int64_t element_bytes, std::int64_t chunk_bytes);
  std::size_t device_bytes() const;

 private:
  struct Stage {
    std::vector<Tensor> room;
    Event arrived, left;
  };
  std::int64_t chunks() const { return (size_ + chunk_ - 1) / chunk_; }
  Stage& stage(std::int64_t k) { return stages_[static_cast<std::size_t>(k % kStages)]; }
  std::vector<Tensor> on_host(std::int64_t k) const;
  std::vector<Tensor> on_device(std::int64_t k);
  void fetch(std::int64_t k);
  void send(std::int64_t k);

  const std::vector<Tensor> host_;
  const Stream compute_, in_, out_;
  const std::int64_t size_, chunk_;  // in elements
  std::vector<Stage> stages_;
  bool begun_ = false;
};

}  // namespace ring
