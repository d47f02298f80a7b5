#include "comm/self.h"

#include <string>

namespace ring {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator() : Communicator(0, 1) {}
  std::string_view backend() const override { return "self"; }
  void abort(const std::string&) override {}  // nothing here ever waits for a peer

 private:
  Work do_all_reduce(const Tensor& t, Reduce, const Event& after) override { return {after, {t}}; }
  Work do_all_gather(const Tensor& out, const Tensor& in, const Event& after) override { return move(out, in, after); }
  Work do_reduce_scatter(const Tensor& out, const Tensor& in, Reduce, const Event& after) override {
    return move(out, in, after);
  }
  Work do_broadcast(const Tensor& t, int, const Event& after) override { return {after, {t}}; }
  Work do_send_recv(const Tensor& out, int, const Tensor& in, int, const Event& after) override {
    return move(in, out, after);
  }
  Work do_barrier(const Event& after) override { return {after, {}}; }

  Work move(const Tensor& dst, const Tensor& src, const Event& after) {
    if (dst.raw() == src.raw()) return {after, {dst}};
    const Stream stream = Stream::create(dst.device(), 1);
    stream.wait(after);
    stream.impl().copy(dst.raw(), src.raw(), dst.bytes());
    return {stream.record(), {dst, src}};
  }
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() { return std::make_unique<SelfCommunicator>(); }

}  // namespace ring
