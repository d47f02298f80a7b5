#include "comm/host_communicator.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/host_collectives.h"
#include "job/inject.h"

namespace ring {
namespace {

using Tensors = std::vector<Tensor>;

template <class List>  // a list of OwnedPiece or Transfer
Tensors tensors_of(const List& list) {
  Tensors out;
  for (const auto& one : list) out.push_back(one.tensor);
  return out;
}

// Corrupts a message if --inject asks for it.
Injector::Change corrupted(const Operation& op, bool sent, const Tensors& tensors) {
  Injector* const faults = injector.load(std::memory_order_relaxed);
  if (!faults) [[likely]]
    return {};
  std::vector<Injector::Bytes> message;
  for (const Tensor& t : tensors) message.emplace_back(t.raw(), t.bytes());
  return faults->change_message(op.text, sent, message);
}

std::int64_t bytes(const Tensor& t) { return static_cast<std::int64_t>(t.bytes()); }

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(std::string_view backend, int rank, int size, std::unique_ptr<HostLink> link,
                   std::shared_ptr<CommQueue> queue, const CommOptions& options)
      : Communicator(rank, size),
        backend_(backend),
        queue_(std::move(queue)),
        collectives_(std::make_shared<HostCollectives>(rank, size, std::move(link), options)) {}
  ~HostCommunicator() override { collectives_->abort("the communicator was destroyed"); }

  std::string_view backend() const override { return backend_; }
  void abort(const std::string& reason) override { collectives_->abort(reason); }

 private:
  using Body = std::function<void(HostCollectives&)>;
  Work start(Operation op, Tensors sent, Tensors received, const Event& after, Body body) {
    Tensors keep_alive = sent;
    keep_alive.insert(keep_alive.end(), received.begin(), received.end());
    return queued(op, std::move(keep_alive), after,
                  [op, sent = std::move(sent), received = std::move(received), body = std::move(body)](auto& x) {
                    const Injector::Change change = corrupted(op, true, sent);
                    body(x);
                    // Restores `sent`: only the message in transit is corrupted.
                    if (change.at) *change.at = change.before;
                    corrupted(op, false, received);
                  });
  }
  Work start_in_place(Operation op, const Tensors& tensors, const Event& after, Body body) {
    return queued(op, tensors, after, [op, tensors, body = std::move(body)](auto& x) {
      corrupted(op, true, tensors);
      body(x);
      corrupted(op, false, tensors);
    });
  }
  Work queued(Operation op, Tensors keep_alive, const Event& after, Body body) {
    for (const Tensor& t : keep_alive)
      RING_CHECK(t.device().backend == Backend::cpu, op.where(), ": the ", backend_,
                 " communicator moves host memory, got ", describe(t));
    Event done = queue_->push(
        [x = collectives_, op = std::move(op), after, body = std::move(body)] { x->run(op, after, body); });
    return {std::move(done), std::move(keep_alive)};
  }

  Work do_all_reduce(Operation o, const Tensor& t, Reduce op, const Event& after) override {
    return start_in_place(std::move(o), {t}, after,
                          [t, op](HostCollectives& x) { x.all_reduce(t.dtype(), op, t.raw(), t.numel()); });
  }
  Work do_all_gather(Operation o, const Tensor& out, const Tensor& in, const Event& after) override {
    return start(std::move(o), {in}, {out}, after,
                 [out, in](HostCollectives& x) { x.all_gather(out.raw(), in.raw(), bytes(in)); });
  }
  Work do_reduce_scatter(Operation o, const Tensor& out, const Tensor& in, Reduce op, const Event& after) override {
    return start(std::move(o), {in}, {out}, after, [out, in, op](HostCollectives& x) {
      x.reduce_scatter(in.dtype(), op, out.raw(), in.raw(), out.numel());
    });
  }
  Work do_all_to_all(Operation o, const Tensor& out, const Tensor& in, const Event& after) override {
    return start(std::move(o), {in}, {out}, after,
                 [out, in](HostCollectives& x) { x.all_to_all(out.raw(), in.raw(), bytes(in) / x.size); });
  }
  Work do_broadcast(Operation o, const Tensor& t, int root, const Event& after) override {
    return start_in_place(std::move(o), {t}, after,
                          [t, root](HostCollectives& x) { x.broadcast(t.raw(), bytes(t), root); });
  }
  Work do_reduce_pieces(Operation o, const std::vector<OwnedPiece>& pieces, Reduce op, const Event& after) override {
    return start_in_place(std::move(o), tensors_of(pieces), after,
                          [pieces, op](HostCollectives& x) { x.reduce_pieces(pieces, op); });
  }
  Work do_broadcast_pieces(Operation o, const std::vector<OwnedPiece>& pieces, const Event& after) override {
    return start_in_place(std::move(o), tensors_of(pieces), after,
                          [pieces](HostCollectives& x) { x.broadcast_pieces(pieces); });
  }
  Work do_exchange(Operation o, const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                   const Event& after) override {
    return start(std::move(o), tensors_of(sends), tensors_of(receives), after,
                 [sends, receives](HostCollectives& x) { x.exchange(sends, receives); });
  }
  Work do_barrier(Operation o, const Event& after) override {
    return start(std::move(o), {}, {}, after, [](HostCollectives& x) {
      std::int32_t here = 1;
      x.all_reduce(DType::i32, Reduce::sum, reinterpret_cast<std::byte*>(&here), 1);
      RING_CHECK(here == x.size, "barrier: ", here, " ranks of ", x.size, " arrived");
    });
  }

  std::string backend_;
  std::shared_ptr<CommQueue> queue_;
  std::shared_ptr<HostCollectives> collectives_;
};

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(std::string_view backend, int rank, int size,
                                                     std::unique_ptr<HostLink> link, std::shared_ptr<CommQueue> queue,
                                                     const CommOptions& options) {
  return std::make_unique<HostCommunicator>(backend, rank, size, std::move(link), std::move(queue), options);
}

}  // namespace ring
