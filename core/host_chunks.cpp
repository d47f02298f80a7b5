#include "core/host_chunks.h"

#include <algorithm>
#include <utility>

#include "core/copy_stream.h"

namespace ring {
namespace {

std::int64_t length_of(const std::vector<Tensor>& host) {
  RING_CHECK(!host.empty(), "expected tensors to copy in chunks, got none");
  for (const Tensor& t : host)
    RING_CHECK(t.numel() == host[0].numel(), "chunked tensors differ in size: ", t.numel(), " and ", host[0].numel(),
               " elements");
  return host[0].numel();
}

std::vector<HostChunks::Pieces> pieces_of(const std::vector<Tensor>& host) {
  std::vector<HostChunks::Pieces> out;
  for (const Tensor& t : host) out.push_back({{0, t}});
  return out;
}

DType type_of(const HostChunks::Pieces& pieces) {
  RING_CHECK(!pieces.empty(), "expected pieces to copy in chunks, got none");
  return pieces[0].host.dtype();
}

// Returns the number of the pieces' values for n elements.
std::int64_t values_of(const HostChunks::Pieces& pieces, std::int64_t n) {
  const std::int64_t per_value = pieces[0].per_value();
  return (n + per_value - 1) / per_value;
}

std::int64_t bytes_of_block(const std::vector<HostChunks::Pieces>& host) {
  std::int64_t bytes = 0;
  for (const HostChunks::Pieces& pieces : host)
    bytes += values_of(pieces, HostChunks::kBlock) * static_cast<std::int64_t>(size_of(type_of(pieces)));
  return bytes;
}

std::int64_t bytes_of(std::int64_t elements, std::int64_t block_bytes) {
  return elements * block_bytes / HostChunks::kBlock;
}

std::int64_t longest_of(const HostChunks::Ends& begins) {
  std::int64_t longest = 0;
  for (std::size_t k = 0; k + 1 < begins.size(); ++k) longest = std::max(longest, begins[k + 1] - begins[k]);
  return longest;
}

// Returns the number of chunks in the ring on the device.
std::int64_t ring_length(const HostChunks::Ends& begins, std::int64_t block_bytes, std::int64_t ring_bytes) {
  if (begins.size() == 1) return 0;
  const std::int64_t wanted = std::max(HostChunks::kMinRing, ring_bytes / bytes_of(longest_of(begins), block_bytes));
  return std::min(wanted, std::ssize(begins) - 1);
}

}  // namespace

HostChunks::Ends HostChunks::chunk_begins(std::int64_t n, std::int64_t block_bytes, Sizes bytes, const Ends& ends) {
  const std::int64_t smallest = kAlign * std::max<std::int64_t>(1, bytes.chunk / block_bytes);
  const std::int64_t chunk = smallest * enlargement(bytes.ring / bytes_of(smallest, block_bytes));
  Ends begins{0};
  if (ends.empty())
    while (n - begins.back() > chunk) begins.push_back(begins.back() + chunk);
  for (std::size_t i = 0; i + 1 < ends.size(); ++i)
    if (ends[i + 1] - begins.back() > chunk) begins.push_back(ends[i]);
  if (n > 0) begins.push_back(n);
  return begins;
}

HostChunks::HostChunks(const std::vector<Tensor>& host, Sizes bytes, const Stream& compute)
    : HostChunks(host, bytes, compute, copy_stream(compute), copy_stream(compute)) {}

HostChunks::HostChunks(const std::vector<Tensor>& host, Sizes bytes, const Stream& compute, const Stream& in,
                       const Stream& out)
    : HostChunks(pieces_of(host), chunk_begins(length_of(host), bytes_of_block(pieces_of(host)), bytes, {}), bytes,
                 compute, in, out) {}

HostChunks::HostChunks(std::vector<Pieces> host, const Ends& ends, std::int64_t n, Sizes bytes, const Stream& compute)
    : HostChunks(host, chunk_begins(n, bytes_of_block(host), bytes, ends), bytes, compute, copy_stream(compute),
                 copy_stream(compute)) {}

HostChunks::HostChunks(std::vector<Pieces> host, Ends begins, Sizes bytes, const Stream& compute, const Stream& in,
                       const Stream& out)
    : host_(std::move(host)),
      compute_(compute),
      in_(in),
      out_(out),
      begins_(std::move(begins)),
      longest_(longest_of(begins_)),
      ring_(static_cast<std::size_t>(ring_length(begins_, bytes_of_block(host_), bytes.ring))) {
  for (const Pieces& pieces : host_)
    ring_memory_.push_back(
        Tensor::empty({slots() * values_of(pieces, longest_)}, type_of(pieces), compute_, Lifetime::run));
}

HostChunks::~HostChunks() {
  try {
    in_.synchronize();   // allowed host wait: shutdown (copies use the host tensors)
    out_.synchronize();  // allowed host wait: shutdown (copies use the host tensors)
  } catch (const Error&) {
    // The device failed. The code that waits for the device's steps reports the failure.
  }
}

std::size_t HostChunks::host_bytes() const {
  std::size_t bytes = 0;
  for (const Pieces& pieces : host_)
    for (const Piece& piece : pieces) bytes += piece.host.bytes();
  return bytes;
}

std::size_t HostChunks::device_bytes(std::int64_t n, std::int64_t block_bytes, Sizes bytes, const Ends& ends) {
  const Ends begins = chunk_begins(n, block_bytes, bytes, ends);
  return static_cast<std::size_t>(ring_length(begins, block_bytes, bytes.ring) *
                                  bytes_of(longest_of(begins), block_bytes));
}

std::size_t HostChunks::device_bytes() const {
  return static_cast<std::size_t>(slots() * bytes_of(longest_, bytes_of_block(host_)));
}

std::vector<Tensor> HostChunks::on_device(std::int64_t k) const {
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < host_.size(); ++i)
    parts.push_back(
        ring_memory_[i].narrow(0, k % slots() * values_of(host_[i], longest_), values_of(host_[i], length(k))));
  return parts;
}

void HostChunks::for_each_piece(std::int64_t k, const CopyPiece& copy_piece) const {
  const std::vector<Tensor> here = on_device(k);
  for (std::size_t i = 0; i < host_.size(); ++i)
    for (const Piece& piece : host_[i]) {
      const std::int64_t from = std::max(piece.at, begin_of(k));
      const std::int64_t n = std::min(piece.at + piece.numel(), begin_of(k + 1)) - from, per = piece.per_value();
      if (n > 0)
        copy_piece(piece.host.narrow(0, (from - piece.at) / per, n / per),
                   here[i].narrow(0, (from - begin_of(k)) / per, n / per));
    }
}

// Copies chunk k to the device once its ring slot is free, which it is when the slot's previous chunk was copied back.
// Chunks are copied back in order, so the host has then also received chunk k of the previous pass.
void HostChunks::copy_to_device(std::int64_t k) {
  in_.wait(slot(k).sent);
  for_each_piece(k, [this](const Tensor& host, const Tensor& device) { copy(device, host, in_); });
  slot(k).arrived = in_.record();
}

void HostChunks::copy_to_host(std::int64_t k) {
  out_.wait(compute_.record());
  for_each_piece(k, [this](const Tensor& host, const Tensor& device) { copy(host, device, out_); });
  all_sent_ = slot(k).sent = out_.record();
}

void HostChunks::prefetch() {
  prefetch_first();
  while (prefetched_ < slots()) copy_to_device(prefetched_++);
}

void HostChunks::prefetch_first() {
  prefetched_ = 0;
  prefetch_next();
}

void HostChunks::prefetch_next() {
  if (prefetched_ == slots()) return;
  in_.wait(compute_.record());
  copy_to_device(prefetched_++);
}

void HostChunks::for_each_chunk(const ChunkFn& fn) {
  if (prefetched_ == 0) prefetch_first();
  while (prefetched_ < slots()) copy_to_device(prefetched_++);
  prefetched_ = 0;
  for (std::int64_t k = 0; k < chunks(); ++k) {
    compute_.wait(slot(k).arrived);
    const std::vector<Tensor> here = on_device(k);
    fn(begin_of(k), length(k), here);
    copy_to_host(k);
    if (k + slots() < chunks()) copy_to_device(k + slots());
  }
  if (compute_.impl().recording()) join_copies();
}

// Waits for the compute stream as well. After a recorded pass, all_sent_ is empty, because the compute stream has
// already waited for the copies.
void HostChunks::wait_for_copies(const Stream& stream) const {
  stream.wait(compute_.record());
  stream.wait(all_sent_);
}

// Waits for the last chunk that begins before `end`: chunks are copied back in order, so all earlier chunks are back by
// then. If a later chunk of the same pass has reused the slot, the stream waits for that chunk instead.
void HostChunks::wait_for_copies(const Stream& stream, std::int64_t end) const {
  const std::int64_t k = std::ranges::lower_bound(begins_, end) - begins_.begin() - 1;
  if (k < 0 || ring_.empty()) return;
  stream.wait(ring_[static_cast<std::size_t>(k % slots())].sent);
}

// Makes the compute stream wait for all copies, then drops their events: a recording must not wait for events from
// before it.
void HostChunks::join_copies() {
  wait_for_copies(compute_);
  for (Slot& p : ring_) p.sent = {};
  all_sent_ = {};
}

}  // namespace ring
