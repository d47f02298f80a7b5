#include "comm/nccl/nccl.h"

#include "core/unavailable.h"

#ifdef RING_WITH_NCCL

#include <utility>
#include <vector>

#include "comm/nccl/channel.h"
#include "comm/nccl/watchdog.h"

#define RING_NCCL(call, ...) nccl::Channel::check(nccl::library().call(__VA_ARGS__), "NCCL " #call)

namespace ring {
namespace {

ncclDataType_t type_of(DType t) {
  switch (t) {
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::i32: return ncclInt32;
    case DType::u8: return ncclUint8;
  }
  fail("NCCL has no type for ", t);
}
ncclRedOp_t operation_of(Reduce r) { return r == Reduce::sum ? ncclSum : ncclMax; }
std::size_t count(const Tensor& t) { return static_cast<std::size_t>(t.numel()); }

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const NcclGroup& group, const std::shared_ptr<Store>& store, NcclWatchdog& watchdog,
                   const CommOptions& options)
      : Communicator(group.rank, group.size),
        device_(group.device),
        channel_(std::make_shared<nccl::Channel>(group, store, watchdog.abort_flag(), watchdog.notice_time(), options)),
        token_(Tensor::zeros({1}, DType::i32, channel_->stream(), Lifetime::run)) {
    watchdog.watch(channel_);
  }
  ~NcclCommunicator() override { channel_->close(); }

  std::string_view backend() const override { return "nccl"; }
  void abort(const std::string& reason) override { channel_->abort(reason); }
  bool idle() const override { return channel_->idle(); }
  Tensor receive_buffer(const Shape& shape, DType dtype, const Stream& stream) override {
    nccl::PeerCopies* copies = channel_->copies();
    const bool lands = copies && !stream.impl().recording();
    return lands ? copies->peer_memory().tensor(shape, dtype, stream) : Tensor::empty(shape, dtype, stream);
  }
  std::size_t receive_bytes() const override {
    return channel_->copies() ? channel_->copies()->peer_memory().bytes() : 0;
  }
  bool uses_copy_engines() const override { return channel_->copies() != nullptr; }

 private:
  template <class Calls>
  Work start(const Operation& op, std::vector<Tensor> keep_alive, const Event& after, Calls calls,
             const nccl::Channel::Copies& copies = {}, std::vector<Tensor>* landed = nullptr) {
    for (const Tensor& t : keep_alive)
      RING_CHECK(t.device() == device_, op.where(), ": this NCCL communicator moves memory of ", device_, ", got ",
                 describe(t));
    Event done = channel_->run(op, after, calls, copies);
    if (landed) keep_alive.insert(keep_alive.end(), landed->begin(), landed->end());
    return {std::move(done), std::move(keep_alive), channel_};
  }
  void copy_own(const Tensor& to, std::int64_t to_offset, const Tensor& from, std::int64_t from_offset,
                std::size_t bytes) const {
    if (bytes > 0) channel_->stream().impl().copy(to.raw() + to_offset, from.raw() + from_offset, bytes);
  }

  Work do_all_reduce(Operation o, const Tensor& t, Reduce op, const Event& after) override {
    return start(o, {t}, after, [&](ncclComm_t comm, cudaStream_t stream) {
      RING_NCCL(all_reduce, t.raw(), t.raw(), count(t), type_of(t.dtype()), operation_of(op), comm, stream);
    });
  }
  Work do_all_gather(Operation o, const Tensor& out, const Tensor& in, const Event& after) override {
    return start(o, {out, in}, after, [&](ncclComm_t comm, cudaStream_t stream) {
      RING_NCCL(all_gather, in.raw(), out.raw(), count(in), type_of(in.dtype()), comm, stream);
    });
  }
  Work do_reduce_scatter(Operation o, const Tensor& out, const Tensor& in, Reduce op, const Event& after) override {
    return start(o, {out, in}, after, [&](ncclComm_t comm, cudaStream_t stream) {
      RING_NCCL(reduce_scatter, in.raw(), out.raw(), count(out), type_of(in.dtype()), operation_of(op), comm, stream);
    });
  }
  Work do_all_to_all(Operation, const Tensor& out, const Tensor& in, const Event& after) override;
  Work do_broadcast(Operation o, const Tensor& t, int root, const Event& after) override {
    return start(o, {t}, after, [&](ncclComm_t comm, cudaStream_t stream) {
      RING_NCCL(broadcast, t.raw(), t.raw(), count(t), type_of(t.dtype()), root, comm, stream);
    });
  }
  Work do_reduce_pieces(Operation, const std::vector<OwnedPiece>&, Reduce, const Event& after) override;
  Work do_broadcast_pieces(Operation, const std::vector<OwnedPiece>&, const Event& after) override;
  Work do_exchange(Operation, const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                   const Event& after) override;
  Work do_barrier(Operation o, const Event& after) override {
    return start(o, {token_}, after, [&](ncclComm_t comm, cudaStream_t stream) {
      RING_NCCL(all_reduce, token_.raw(), token_.raw(), 1, ncclInt32, ncclMax, comm, stream);
    });
  }

  Device device_;
  std::shared_ptr<nccl::Channel> channel_;
  Tensor token_;  // operand of barrier(); on the channel's stream
};

Work NcclCommunicator::do_all_to_all(Operation o, const Tensor& out, const Tensor& in, const Event& after) {
  return start(o, {out, in}, after, [&](ncclComm_t comm, cudaStream_t stream) {
    const std::size_t bytes = in.bytes() / static_cast<std::size_t>(size());
    const auto at = [&](int p) { return p * static_cast<std::int64_t>(bytes); };
    for (int p = 0; p < size() && bytes > 0; ++p) {
      if (p == rank()) continue;
      RING_NCCL(send, in.raw() + at(p), bytes, ncclUint8, p, comm, stream);
      RING_NCCL(recv, out.raw() + at(p), bytes, ncclUint8, p, comm, stream);
    }
    copy_own(out, at(rank()), in, at(rank()), bytes);
  });
}

Work NcclCommunicator::do_reduce_pieces(Operation o, const std::vector<OwnedPiece>& pieces, Reduce op,
                                        const Event& after) {
  std::vector<Tensor> keep_alive;
  for (const OwnedPiece& p : pieces) keep_alive.push_back(p.tensor);
  return start(o, std::move(keep_alive), after, [&](ncclComm_t comm, cudaStream_t stream) {
    for (const auto& [t, root] : pieces)
      if (t.numel() > 0)
        RING_NCCL(reduce, t.raw(), t.raw(), count(t), type_of(t.dtype()), operation_of(op), root, comm, stream);
  });
}

Work NcclCommunicator::do_broadcast_pieces(Operation o, const std::vector<OwnedPiece>& pieces, const Event& after) {
  std::vector<Tensor> keep_alive;
  for (const OwnedPiece& p : pieces) keep_alive.push_back(p.tensor);
  return start(o, std::move(keep_alive), after, [&](ncclComm_t comm, cudaStream_t stream) {
    for (const auto& [t, root] : pieces)
      if (t.numel() > 0) RING_NCCL(broadcast, t.raw(), t.raw(), count(t), type_of(t.dtype()), root, comm, stream);
  });
}

Work NcclCommunicator::do_exchange(Operation o, const std::vector<Transfer>& sends,
                                   const std::vector<Transfer>& receives, const Event& after) {
  std::vector<Tensor> keep_alive, own;
  for (const Transfer& t : sends) keep_alive.push_back(t.tensor);
  for (const Transfer& t : receives) {
    keep_alive.push_back(t.tensor);
    if (t.peer == rank()) own.push_back(t.tensor);
  }
  const auto calls = [&](ncclComm_t comm, cudaStream_t stream) {
    auto copy = own.begin();
    for (const auto& [t, peer, free] : sends) {
      if (peer == rank())
        copy_own(*copy++, 0, t, 0, t.bytes());
      else if (t.numel() > 0)
        RING_NCCL(send, t.raw(), t.bytes(), ncclUint8, peer, comm, stream);
    }
    for (const auto& [t, peer, free] : receives)
      if (peer != rank() && t.numel() > 0) RING_NCCL(recv, t.raw(), t.bytes(), ncclUint8, peer, comm, stream);
  };
  std::vector<Tensor> landed;
  const auto copy = [&](nccl::PeerCopies& copies, const std::vector<Event>& events) {
    return copies.exchange(sends, receives, events, landed);
  };
  return start(o, std::move(keep_alive), after, calls, copy, &landed);
}

}  // namespace

bool nccl_available() { return true; }

std::shared_ptr<NcclWatchdog> make_nccl_watchdog(const Device& device, int world) {
  return std::make_shared<NcclWatchdog>(device, world);
}
void check_nccl(NcclWatchdog& watchdog) { watchdog.check(); }
const std::uint32_t* nccl_abort_flag(const NcclWatchdog& watchdog) { return watchdog.abort_flag().get(); }

std::unique_ptr<Communicator> make_nccl_communicator(const NcclGroup& group, std::shared_ptr<Store> store,
                                                     std::shared_ptr<NcclWatchdog> watchdog,
                                                     const CommOptions& options) {
  RING_CHECK(store && watchdog, "NCCL: needs a store and a watchdog");
  RING_CHECK(group.device.backend == Backend::cuda, "NCCL: moves memory of GPUs, not of ", group.device);
  return std::make_unique<NcclCommunicator>(group, store, *watchdog, options);
}

}  // namespace ring

#else

namespace ring {

bool nccl_available() { return false; }

std::shared_ptr<NcclWatchdog> make_nccl_watchdog(const Device&, int) {
  fail_without(
      Resource::gpu,
      "several processes with GPUs need NCCL, which this build lacks: install libnccl-dev (it needs CUDA too), then "
      "configure and build again");
}

void check_nccl(NcclWatchdog&) {}
const std::uint32_t* nccl_abort_flag(const NcclWatchdog&) { return nullptr; }

std::unique_ptr<Communicator> make_nccl_communicator(const NcclGroup&, std::shared_ptr<Store>,
                                                     std::shared_ptr<NcclWatchdog>, const CommOptions&) {
  make_nccl_watchdog({}, 0);
  return nullptr;
}

}  // namespace ring

#endif
