#include "core/host_chunks.h"

#include <algorithm>
#include <utility>

#include "core/copy_stream.h"

namespace ring {
namespace {

std::int64_t length_of(const std::vector<Tensor>& host) {
  RING_CHECK(!host.empty(), "nothing travels in chunks");
  for (const Tensor& t : host)
    RING_CHECK(t.numel() == host[0].numel(), "chunks of tensors of ", t.numel(), " and ", host[0].numel(), " elements");
  return host[0].numel();
}

std::int64_t bytes_of_element(const std::vector<Tensor>& host) {
  std::int64_t bytes = 0;
  for (const Tensor& t : host) bytes += static_cast<std::int64_t>(size_of(t.dtype()));
  return bytes;
}

// Chunks that the device holds.
std::int64_t ring_length(std::int64_t n, std::int64_t chunk, std::int64_t element_bytes, std::int64_t ring_bytes) {
  const std::int64_t wanted = std::max(HostChunks::kLeastRing, ring_bytes / (chunk * element_bytes));
  return std::min(wanted, (n + chunk - 1) / chunk);
}

}  // namespace

// In elements.
std::int64_t HostChunks::chunk_length(std::int64_t n, std::int64_t element_bytes, Bytes bytes) {
  const std::int64_t whole = (n + kAlign - 1) / kAlign * kAlign;
  const std::int64_t smallest = std::max(kAlign, bytes.chunk / element_bytes / kAlign * kAlign);
  return std::min(smallest * times(bytes.ring / (smallest * element_bytes)), std::max(kAlign, whole));
}

HostChunks::HostChunks(std::vector<Tensor> host, Bytes bytes, const Stream& compute)
    : HostChunks(std::move(host), bytes, compute, copy_stream(compute), copy_stream(compute)) {}

HostChunks::HostChunks(std::vector<Tensor> host, Bytes bytes, const Stream& compute, const Stream& in,
                       const Stream& out)
    : host_(std::move(host)),
      compute_(compute),
      in_(in),
      out_(out),
      size_(length_of(host_)),
      chunk_(chunk_length(size_, bytes_of_element(host_), bytes)),
      ring_(static_cast<std::size_t>(ring_length(size_, chunk_, bytes_of_element(host_), bytes.ring))) {
  for (const Tensor& t : host_) room_.push_back(Tensor::empty({places() * chunk_}, t.dtype(), compute_, Lifetime::run));
}

HostChunks::~HostChunks() {
  try {
    in_.synchronize();   // host waits: shutdown
    out_.synchronize();  // host waits: shutdown
  } catch (const Error&) {
    // The device failed, as whoever waits for its steps is told.
  }
}

std::size_t HostChunks::host_bytes() const { return static_cast<std::size_t>(size_ * bytes_of_element(host_)); }

std::size_t HostChunks::device_bytes(std::int64_t n, std::int64_t element_bytes, Bytes bytes) {
  const std::int64_t chunk = chunk_length(n, element_bytes, bytes);
  return static_cast<std::size_t>(ring_length(n, chunk, element_bytes, bytes.ring) * chunk * element_bytes);
}

std::size_t HostChunks::device_bytes() const {
  return static_cast<std::size_t>(places() * chunk_ * bytes_of_element(host_));
}

std::vector<Tensor> HostChunks::on_host(std::int64_t k) const {
  std::vector<Tensor> parts;
  for (const Tensor& t : host_) parts.push_back(t.narrow(0, k * chunk_, std::min(chunk_, size_ - k * chunk_)));
  return parts;
}

std::vector<Tensor> HostChunks::on_device(std::int64_t k) const {
  std::vector<Tensor> parts;
  for (const Tensor& t : room_)
    parts.push_back(t.narrow(0, k % places() * chunk_, std::min(chunk_, size_ - k * chunk_)));
  return parts;
}

// Behind what left its place. Chunks leave in order: its own bytes of the last pass are back, too.
void HostChunks::fetch(std::int64_t k) {
  in_.wait(place(k).left);
  const std::vector<Tensor> from = on_host(k), to = on_device(k);
  for (std::size_t i = 0; i < from.size(); ++i) copy(to[i], from[i], in_);
  place(k).arrived = in_.record();
}

void HostChunks::send(std::int64_t k) {
  out_.wait(compute_.record());
  const std::vector<Tensor> from = on_device(k), to = on_host(k);
  for (std::size_t i = 0; i < from.size(); ++i) copy(to[i], from[i], out_);
  all_left_ = place(k).left = out_.record();
}

void HostChunks::begin() {
  in_.wait(compute_.record());
  for (std::int64_t k = 0; k < places(); ++k) fetch(k);
  begun_ = true;
}

void HostChunks::change(const Change& change_chunk) {
  if (!begun_) begin();
  begun_ = false;
  for (std::int64_t k = 0; k < chunks(); ++k) {
    compute_.wait(place(k).arrived);
    const std::vector<Tensor> here = on_device(k);
    change_chunk(k * chunk_, here[0].numel(), here);
    send(k);
    if (k + places() < chunks()) fetch(k + places());
  }
  if (compute_.impl().recording()) join();
}

// The compute stream itself is behind those of a recorded pass.
void HostChunks::settle(const Stream& stream) const {
  stream.wait(compute_.record());
  stream.wait(all_left_);
}

// The events are of no use any more: none may be waited for in a recording that it is not from.
void HostChunks::join() {
  settle(compute_);
  for (Place& p : ring_) p.left = {};
  all_left_ = {};
}

}  // namespace ring
