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

// Elements of a chunk.
std::int64_t chunk_length(std::int64_t n, std::int64_t element_bytes, std::int64_t chunk_bytes) {
  constexpr std::int64_t align = HostChunks::kAlign;
  const std::int64_t whole = (n + align - 1) / align * align;
  return std::clamp(chunk_bytes / element_bytes / align * align, align, std::max(align, whole));
}

std::int64_t stage_count(std::int64_t n, std::int64_t chunk) {
  return std::min(HostChunks::kStages, (n + chunk - 1) / chunk);
}

}  // namespace

HostChunks::HostChunks(std::vector<Tensor> host, std::int64_t chunk_bytes, const Stream& compute)
    : HostChunks(std::move(host), chunk_bytes, compute, copy_stream(compute), copy_stream(compute)) {}

HostChunks::HostChunks(std::vector<Tensor> host, std::int64_t chunk_bytes, const Stream& compute, const Stream& in,
                       const Stream& out)
    : host_(std::move(host)),
      compute_(compute),
      in_(in),
      out_(out),
      size_(length_of(host_)),
      chunk_(chunk_length(size_, bytes_of_element(host_), chunk_bytes)),
      stages_(static_cast<std::size_t>(stage_count(size_, chunk_))) {
  for (Stage& stage : stages_)
    for (const Tensor& t : host_) stage.room.push_back(Tensor::empty({chunk_}, t.dtype(), compute_, Lifetime::run));
}

std::size_t HostChunks::host_bytes() const { return static_cast<std::size_t>(size_ * bytes_of_element(host_)); }

std::size_t HostChunks::device_bytes(std::int64_t n, std::int64_t element_bytes, std::int64_t chunk_bytes) {
  const std::int64_t chunk = chunk_length(n, element_bytes, chunk_bytes);
  return static_cast<std::size_t>(stage_count(n, chunk) * chunk * element_bytes);
}

std::size_t HostChunks::device_bytes() const {
  return static_cast<std::size_t>(std::ssize(stages_) * chunk_ * bytes_of_element(host_));
}

std::vector<Tensor> HostChunks::on_host(std::int64_t k) const {
  std::vector<Tensor> parts;
  for (const Tensor& t : host_) parts.push_back(t.narrow(0, k * chunk_, std::min(chunk_, size_ - k * chunk_)));
  return parts;
}

std::vector<Tensor> HostChunks::on_device(std::int64_t k) {
  std::vector<Tensor> parts;
  for (const Tensor& t : stage(k).room) parts.push_back(t.narrow(0, 0, std::min(chunk_, size_ - k * chunk_)));
  return parts;
}

void HostChunks::fetch(std::int64_t k) {
  const std::vector<Tensor> from = on_host(k), to = on_device(k);
  for (std::size_t i = 0; i < from.size(); ++i) copy(to[i], from[i], in_);
  stage(k).arrived = in_.record();
}

void HostChunks::send(std::int64_t k) {
  out_.wait(compute_.record());
  const std::vector<Tensor> from = on_device(k), to = on_host(k);
  for (std::size_t i = 0; i < from.size(); ++i) copy(to[i], from[i], out_);
  stage(k).left = out_.record();
}

// What is queued so far has every copy of the last pass behind it.
void HostChunks::begin() {
  in_.wait(compute_.record());
  for (std::int64_t k = 0; k < std::ssize(stages_); ++k) fetch(k);
  begun_ = true;
}

void HostChunks::change(const Change& change_chunk) {
  if (!begun_) begin();
  begun_ = false;
  for (std::int64_t k = 0; k < chunks(); ++k) {
    compute_.wait(stage(k).arrived);
    const std::vector<Tensor> here = on_device(k);
    change_chunk(k * chunk_, here[0].numel(), here);
    send(k);
    if (k + kStages >= chunks()) continue;
    in_.wait(stage(k).left);
    fetch(k + kStages);
  }
  if (chunks() > 0) compute_.wait(stage(chunks() - 1).left);
}

}  // namespace ring
