#include "comm/fake.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "core/fake.h"

namespace ring {
namespace {

class FakeCommunicator final : public Communicator {
 public:
  FakeCommunicator(std::string group, int rank, int size, TransferObserver seen, const FakePlacement& placement)
      : Communicator(rank, size), group_(std::move(group)), seen_(std::move(seen)), nodes_(placement.nodes) {
    like_.ranks = size;
    like_.ranks_of_node = placement.ranks_of_node;
    like_.ranks_on_node = size;
    if (nodes_.empty()) return;
    std::map<int, int> ranks;
    for (const int node : nodes_) ++ranks[node];
    like_.nodes = static_cast<int>(ranks.size());
    like_.ranks_on_node = std::ranges::max_element(ranks, {}, &std::pair<const int, int>::second)->second;
  }
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
    return done("exchange", bytes, std::move(keep_alive), std::max(between_nodes(sends), between_nodes(receives)));
  }
  Work do_barrier(Operation, const Event&) override { return {}; }

  // Returns the bytes of messages to or from other nodes, as FakeTransfer::bytes_between_nodes counts them: with a ring
  // distance of d, only min(d, ranks_on_node) ranks of a node have a peer on a different node.
  double between_nodes(const std::vector<Transfer>& messages) const {
    double bytes = 0;
    for (const Transfer& t : messages) {
      if (nodes_.empty() || nodes_.at(static_cast<std::size_t>(t.peer)) == nodes_[static_cast<std::size_t>(rank())])
        continue;
      const int distance = std::abs(t.peer - rank());
      const int crossing = std::min({distance, size() - distance, like_.ranks_on_node});
      bytes += static_cast<double>(t.tensor.bytes()) * crossing / like_.ranks_on_node;
    }
    return bytes;
  }

  Work done(std::string_view operation, std::size_t bytes, std::vector<Tensor> keep_alive, double between_nodes = 0) {
    if (!seen_) return {Event(), std::move(keep_alive)};
    FakeTransfer t = like_;
    t.group = group_;
    t.operation = operation;
    t.bytes = bytes;
    t.bytes_between_nodes = between_nodes;
    seen_(t);
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
  std::vector<int> nodes_;
  FakeTransfer like_;  // size and placement of the group
};

}  // namespace

std::unique_ptr<Communicator> make_fake_communicator(const std::string& group, int rank, int size,
                                                     TransferObserver seen, const FakePlacement& placement) {
  return std::make_unique<FakeCommunicator>(group, rank, size, std::move(seen), placement);
}

}  // namespace ring
