#include "comm/fake.h"

#include <cstring>
#include <utility>

#include "core/fake.h"

namespace ring {
namespace {

class FakeCommunicator final : public Communicator {
 public:
  FakeCommunicator(std::string group, int rank, int size, TransferObserver seen)
      : Communicator(rank, size), group_(std::move(group)), seen_(std::move(seen)) {}
  std::string_view backend() const override { return "fake"; }
  void abort(const std::string&) override {}

 private:
  Work do_all_reduce(Operation, const Tensor& t, Reduce, const Event&) override {
    return done("all_reduce", t.bytes(), {t});
  }
  Work do_all_gather(Operation, const Tensor& out, const Tensor& in, const Event&) override {
    for (int r = 0; r < size() && has_bytes(out); ++r)
      std::memmove(out.raw() + static_cast<std::size_t>(r) * in.bytes(), in.raw(), in.bytes());
    return done("all_gather", out.bytes(), {out, in});
  }
  Work do_reduce_scatter(Operation, const Tensor& out, const Tensor& in, Reduce, const Event&) override {
    return done("reduce_scatter", in.bytes(), {out, in});
  }
  Work do_all_to_all(Operation, const Tensor& out, const Tensor& in, const Event&) override {
    return done("all_to_all", in.bytes(), {out, in});
  }
  Work do_broadcast(Operation, const Tensor& t, int, const Event&) override {
    return done("broadcast", t.bytes(), {t});
  }
  Work do_reduce_pieces(Operation, const std::vector<OwnedPiece>& pieces, Reduce, const Event&) override {
    return done("reduce", pieces);
  }
  Work do_broadcast_pieces(Operation, const std::vector<OwnedPiece>& pieces, const Event&) override {
    return done("broadcast", pieces);
  }
  Work do_exchange(Operation, const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                   const Event&) override {
    std::vector<Tensor> keep_alive;
    std::size_t bytes = 0;
    for (const Transfer& t : receives) keep_alive.push_back(t.tensor);
    for (const Transfer& t : sends) {
      keep_alive.push_back(t.tensor);
      bytes += t.peer == rank() ? 0 : t.tensor.bytes();
    }
    return done("exchange", bytes, std::move(keep_alive));
  }
  Work do_barrier(Operation, const Event&) override { return {}; }

  Work done(std::string_view operation, std::size_t bytes, std::vector<Tensor> keep_alive) {
    if (seen_) seen_({group_, operation, bytes, size()});
    return {Event(), std::move(keep_alive)};
  }
  Work done(std::string_view operation, const std::vector<OwnedPiece>& pieces) {
    std::vector<Tensor> keep_alive;
    std::size_t bytes = 0;
    for (const OwnedPiece& p : pieces) {
      keep_alive.push_back(p.tensor);
      bytes += p.tensor.bytes();
    }
    return done(operation, bytes, std::move(keep_alive));
  }

  std::string group_;
  TransferObserver seen_;
};

}  // namespace

std::unique_ptr<Communicator> make_fake_communicator(const std::string& group, int rank, int size,
                                                     TransferObserver seen) {
  return std::make_unique<FakeCommunicator>(group, rank, size, std::move(seen));
}

}  // namespace ring
