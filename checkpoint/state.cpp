#include "checkpoint/state.h"

#include <cctype>

#include "core/copy_stream.h"
#include "core/host_tensor.h"

namespace ring {
namespace {

constexpr std::size_t kAlign = 64;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

bool suffices(const SnapshotRoom& room, std::size_t bytes) {
  return room.memory && room.bytes >= bytes && room.memory.use_count() == 1;
}

std::size_t room_for(const std::map<std::string, StateTensor>& tensors) {
  std::size_t bytes = 0;
  for (const auto& [name, t] : tensors) bytes += aligned(t.local.bytes());
  return bytes;
}

// Host memory for a State's tensors, allocated as a whole.
class HostRoom {
 public:
  HostRoom(const Stream& stream, const std::map<std::string, StateTensor>& tensors, SnapshotRoom* room) {
    const std::size_t bytes = room_for(tensors);
    memory_ = room && suffices(*room, bytes) ? room->memory : take_host_memory(bytes, stream);
    if (room && room->memory != memory_) *room = {memory_, bytes};
  }
  Tensor next(const Tensor& like) {
    std::byte* const place = static_cast<std::byte*>(memory_.get()) + used_;
    used_ += aligned(like.bytes());
    return Tensor::wrap(std::make_shared<Storage>(place, like.bytes(), Device{}, memory_), like.shape(), like.dtype());
  }

 private:
  std::shared_ptr<void> memory_;
  std::size_t used_ = 0;
};

// src: on a device or, with optimizer.offload, in host memory.
void copy_tensor(const Tensor& dst, const Tensor& src, const Stream& stream) {
  if (src.bytes() == 0) return;
  src.device().backend == Backend::cpu ? copy_on_host(dst, src, stream) : copy(dst, src, stream);
}

}  // namespace

void State::reject_duplicate(const std::string& name) const {
  if (name.empty()) fail("a state needs a name");
  for (char c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-' && c != ':')
      fail("state name '", name, "' contains '", c, "': use only letters, digits and . _ - :");
  if (name == "." || name == "..") fail("state name '", name, "' is reserved");
  if (tensors_.contains(name) || values_.contains(name))
    fail("state '", name, "' was added twice: choose another name");
}

void State::add(const std::string& name, const Tensor& tensor) {
  if (!tensor.defined()) fail("state '", name, "' is an undefined tensor");
  StateTensor whole{name, tensor.shape(), tensor.shape(), tensor};
  for (int i = 0; i < whole.start.size(); ++i) whole.start[i] = 0;
  add(std::move(whole));
}

void State::add(StateTensor t) {
  reject_duplicate(t.name);
  if (!t.local.defined()) fail("state '", t.name, "' is an undefined tensor");
  const Shape& size = t.local.shape();
  if (t.start.size() != size.size() || t.global_shape.size() != size.size())
    fail("state '", t.name, "': local shape ", size, ", start ", t.start, " and global shape ", t.global_shape,
         " differ in their number of dims");
  for (int i = 0; i < size.size(); ++i)
    if (t.start[i] < 0 || t.start[i] + size[i] > t.global_shape[i])
      fail("state '", t.name, "': slice ", size, " at ", t.start, " exceeds the global shape ", t.global_shape);
  if (!t.local.is_contiguous())
    fail("state '", t.name, "' is strided: shape ", size, ", strides ", t.local.strides(), "; add a contiguous view");
  const std::string name = t.name;
  tensors_.emplace(name, std::move(t));
}

void State::add(const std::string& name, StateSlot value, StateScope scope) {
  reject_duplicate(name);
  if (std::visit([](auto* p) { return p == nullptr; }, value)) fail("state '", name, "' is a null pointer");
  values_.emplace(name, value);
  if (scope == StateScope::rank0) of_rank_0_.insert(name);
}

std::uint64_t State::bytes() const {
  std::uint64_t total = 0;
  for (const auto& [name, t] : tensors_) total += t.local.bytes();
  return total;
}

std::uint64_t State::snapshot_bytes() const { return room_for(tensors_); }

Snapshot State::live_snapshot(const Stream& stream) const {
  wait_for_writes(stream);
  stream.synchronize();  // allowed host wait: checkpoint
  Snapshot s(of_rank_0_, stream);
  s.tensors_ = tensors_;
  for (const auto& [name, slot] : values_) s.values_.emplace(name, read_slot(slot));
  return s;
}

void State::reserve(const Stream& stream, SnapshotRoom& room) const { HostRoom(copy_stream(stream), tensors_, &room); }

Snapshot State::snapshot(const Stream& stream, SnapshotRoom* kept) const try {
  Snapshot s(of_rank_0_, copy_stream(stream));
  HostRoom room(s.stream_, tensors_, kept);
  s.stream_.wait(stream.record());
  wait_for_writes(s.stream_);  // makes the copy stream wait, not the caller's
  for (const auto& [name, t] : tensors_) {
    StateTensor copy = t;
    copy.local = room.next(t.local);
    copy_tensor(copy.local, t.local, s.stream_);
    s.tensors_.emplace(name, std::move(copy));
  }
  for (const auto& [name, slot] : values_) s.values_.emplace(name, read_slot(slot));
  s.copied_ = s.stream_.record();
  return s;
} catch (const OutOfHostMemory& e) {
  if (kept) *kept = {};  // frees the memory: a later attempt could not lock its pages either
  throw OutOfMemory(
      str("no host memory for a copy of this rank's state, ", bytes_text(snapshot_bytes()), ": ", e.facts),
      "Every save makes such a copy. End other programs, or use a machine with more memory");
}

StateValue read_slot(const StateSlot& slot) {
  return std::visit([](auto* p) { return StateValue(*p); }, slot);
}

}  // namespace ring
