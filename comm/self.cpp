#include "comm/self.h"

#include <deque>
#include <string>
#include <vector>

#include "core/fake.h"

namespace ring {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator() : Communicator(0, 1) {}
  std::string_view backend() const override { return "self"; }
  void abort(const std::string&) override {}  // no operation waits for a peer

 private:
  Work do_all_reduce(Operation, const Tensor& t, Reduce, const Event& after) override { return {after, {t}}; }
  Work do_all_gather(Operation, const Tensor& out, const Tensor& in, const Event& after) override {
    return move({{out, in}}, after);
  }
  Work do_reduce_scatter(Operation, const Tensor& out, const Tensor& in, Reduce, const Event& after) override {
    return move({{out, in}}, after);
  }
  Work do_all_to_all(Operation, const Tensor& out, const Tensor& in, const Event& after) override {
    return move({{out, in}}, after);
  }
  Work do_broadcast(Operation, const Tensor& t, int, const Event& after) override { return {after, {t}}; }
  Work do_reduce_pieces(Operation, const std::vector<OwnedPiece>& p, Reduce, const Event& after) override {
    return stay(p, after);
  }
  Work do_broadcast_pieces(Operation, const std::vector<OwnedPiece>& p, const Event& after) override {
    return stay(p, after);
  }
  Work do_exchange(Operation, const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                   const Event& after) override {
    std::vector<Copy> copies;
    for (std::size_t i = 0; i < sends.size(); ++i) copies.push_back({receives[i].tensor, sends[i].tensor});
    return move(copies, after);
  }
  Work do_barrier(Operation, const Event& after) override { return {after, {}}; }

  struct Copy {
    Tensor to, from;
  };
  Work stay(const std::vector<OwnedPiece>& pieces, const Event& after) {
    std::vector<Tensor> keep_alive;
    for (const OwnedPiece& p : pieces) keep_alive.push_back(p.tensor);
    return {after, std::move(keep_alive)};
  }
  Work move(const std::vector<Copy>& copies, const Event& after) {
    std::vector<Tensor> keep_alive;
    for (const Copy& c : copies)
      if (c.to.raw() != c.from.raw() && has_bytes(c.to)) keep_alive.insert(keep_alive.end(), {c.to, c.from});
    if (keep_alive.empty()) return {after, {}};
    const Stream& stream = stream_of(keep_alive[0].device());
    stream.wait(after);
    for (std::size_t i = 0; i < keep_alive.size(); i += 2)
      stream.impl().copy(keep_alive[i].raw(), keep_alive[i + 1].raw(), keep_alive[i].bytes());
    return {stream.record(), std::move(keep_alive)};
  }
  // Returns the stream for copies on a device. There is one per device, since a stream per copy would cost more than
  // the copy. In a fake run (core/fake.h), only tensors in host memory have bytes to copy.
  const Stream& stream_of(Device device) {
    for (const Stream& s : streams_)
      if (s.device() == device) return s;
    return streams_.emplace_back(device.backend == Backend::cpu ? Stream::cpu(1) : Stream::create(device, 1));
  }

  std::deque<Stream> streams_;
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() { return std::make_unique<SelfCommunicator>(); }

}  // namespace ring
