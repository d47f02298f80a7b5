#include "autograd/host_offload.h"

#include <algorithm>
#include <utility>

#include "core/copy_stream.h"

namespace ring {

// A saved storage that is offloaded to the host. Its bytes are on the device until free_on_device(), and again from
// fetch() on.
class HostOffload::OffloadedStorage {
 public:
  OffloadedStorage(HostOffload& owner, std::shared_ptr<Storage> here, std::byte* host)
      : owner_(owner), bytes_(here->bytes()), host_(host), here_(std::move(here)) {
    ++owner_.live_storages_;
  }
  // Makes the compute stream wait for a copy in flight before the memory is freed.
  ~OffloadedStorage() {
    --owner_.live_storages_;
    try {
      wait();
    } catch (const Error&) {  // the device has failed; its next use reports the error
    }
  }
  OffloadedStorage(const OffloadedStorage&) = delete;
  OffloadedStorage& operator=(const OffloadedStorage&) = delete;

  // Records that this part of the model uses the storage. Returns true if the part does not list the storage yet.
  bool joins(std::size_t part) { return std::exchange(part_, part) != part; }
  std::size_t bytes() const { return bytes_; }
  bool here() const { return here_ != nullptr; }
  bool sent() const { return sent_; }

  void copy_out(const Stream& out) {
    out.impl().copy(host_, here_->data(), bytes_);
    sent_ = true;
  }
  void fetch(std::shared_ptr<Storage> room, const Stream& in) {
    here_ = std::move(room);
    in.impl().copy(here_->data(), host_, bytes_);
  }
  void copied_at(const Event& e) { pending_ = e; }
  void wait() {
    if (pending_.defined()) owner_.compute_.wait(std::exchange(pending_, {}));
  }
  void free_on_device() {
    wait();
    here_ = nullptr;
  }
  const std::shared_ptr<Storage>& storage() const { return here_; }

 private:
  HostOffload& owner_;
  const std::size_t bytes_;
  std::byte* const host_;
  std::shared_ptr<Storage> here_;
  std::size_t part_ = 0;  // index of the latest part that saved this storage
  bool sent_ = false;
  Event pending_;  // the latest copy, if the compute stream has not waited for it
};

class HostOffload::View final : public SavedStorage {
 public:
  View(HostOffload& owner, std::shared_ptr<OffloadedStorage> moved, const Tensor& t)
      : owner_(owner), moved_(std::move(moved)), form_(t.with_storage(nullptr)) {}

  void prefetch(const ExecContext&) override {
    if (moved_->here()) return;
    owner_.bytes_.late += moved_->bytes();
    owner_.fetch({moved_});
  }
  Tensor get(const ExecContext& ctx) override {
    prefetch(ctx);
    moved_->wait();
    return form_.with_storage(moved_->storage());
  }

 private:
  HostOffload& owner_;
  const std::shared_ptr<OffloadedStorage> moved_;
  const Tensor form_;  // shape and type, without storage
};

HostOffload::OffloadedStorages HostOffload::Part::live_storages() const {
  OffloadedStorages all;
  for (const std::weak_ptr<OffloadedStorage>& s : saved)
    if (std::shared_ptr<OffloadedStorage> m = s.lock()) all.push_back(std::move(m));
  return all;
}

HostOffload::HostOffload(const ExecContext& ctx, std::size_t limit_bytes)
    : HostOffload(ctx, limit_bytes, copy_stream(ctx.stream), copy_stream(ctx.stream)) {}

HostOffload::HostOffload(const ExecContext& ctx, std::size_t limit_bytes, const Stream& out, const Stream& in)
    : compute_(ctx.stream), out_(out), in_(in), slabs_(ctx.stream, limit_bytes), subscription_(ctx.scopes, *this) {}

std::shared_ptr<SavedStorage> HostOffload::pack(const Tensor& t, const ExecContext&) {
  if (parts_.empty() || t.storage()->bytes() < kMinBytes) return nullptr;
  std::shared_ptr<OffloadedStorage> moved = offload(t.storage());
  if (!moved) return nullptr;
  if (moved->joins(parts_.size())) parts_.back().saved.push_back(moved);
  return std::make_shared<View>(*this, std::move(moved), t);
}

std::shared_ptr<HostOffload::OffloadedStorage> HostOffload::offload(const std::shared_ptr<Storage>& storage) {
  const auto [at, is_new] = packed_.try_emplace(storage);
  if (!is_new) return at->second.lock();
  std::byte* const host = slabs_.allocate(storage->bytes());
  (host ? bytes_.moved : bytes_.stayed) += storage->bytes();
  if (!host) return nullptr;
  const auto moved = std::make_shared<OffloadedStorage>(*this, storage, host);
  at->second = moved;
  return moved;
}

void HostOffload::enter(const ScopeId& id, ScopePass pass) {
  if (id != id.part() || id.kind == scopes::backward) return;
  if (pass == ScopePass::forward) enter_forward(id);
  if (pass == ScopePass::backward) enter_backward(id);
}

// Begins a part of the forward. Copies the previous part to the host: all of its work is queued by now. Frees the part
// before that on the device: its copies ran while the previous part computed.
void HostOffload::enter_forward(const ScopeId& id) {
  if (std::ranges::find(parts_, id, &Part::id) != parts_.end()) begin_forward();
  if (!parts_.empty()) copy_out(parts_.back());
  if (parts_.size() > 1) free_on_device(parts_[parts_.size() - 2]);
  parts_.push_back({id});
}

void HostOffload::begin_forward() {
  parts_.clear();
  packed_.clear();
  bytes_ = {};
  if (live_storages_ == 0) slabs_.reset();
}

void HostOffload::enter_backward(const ScopeId& id) {
  const auto at = std::ranges::find(parts_, id, &Part::id);
  if (at == parts_.end()) return;
  parts_.erase(at + 1, parts_.end());
  fetch(parts_.back().live_storages());
  if (parts_.size() > 1) fetch(parts_[parts_.size() - 2].live_storages());
}

void HostOffload::copy_out(const Part& part) {
  OffloadedStorages all = part.live_storages();
  std::erase_if(all, [](const auto& m) { return m->sent(); });
  if (all.empty()) return;
  out_.wait(compute_.record());
  for (const auto& m : all) m->copy_out(out_);
  const Event copied = out_.record();
  for (const auto& m : all) m->copied_at(copied);
}

void HostOffload::free_on_device(const Part& part) {
  for (const auto& m : part.live_storages())
    if (m->sent()) m->free_on_device();
}

// Allocates all memory first: if that fails, no copy is in flight.
void HostOffload::fetch(const OffloadedStorages& wanted) {
  OffloadedStorages all = wanted;
  std::erase_if(all, [](const auto& m) { return m->here(); });
  if (all.empty()) return;
  std::vector<std::shared_ptr<Storage>> room;
  for (const auto& m : all)
    room.push_back(std::make_shared<Storage>(m->bytes(), compute_.device(), compute_.allocator()));
  in_.wait(compute_.record());  // wait for earlier users of that memory, and for the copies to the host
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i]->fetch(std::move(room[i]), in_);
    bytes_.fetched += all[i]->bytes();
  }
  const Event copied = in_.record();
  for (const auto& m : all) m->copied_at(copied);
}

}  // namespace ring
