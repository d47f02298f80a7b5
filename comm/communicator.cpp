#include "comm/communicator.h"

namespace ring {
namespace {

using Messages = std::vector<Operation::Message>;

Messages messages_of(const std::vector<Transfer>& transfers) {
  Messages out;
  for (const Transfer& t : transfers) out.push_back({t.peer, str(t.tensor.dtype(), " x ", t.tensor.numel())});
  return out;
}

Operation pairwise(std::string text, Site site, const std::vector<Transfer>& sends,
                   const std::vector<Transfer>& receives) {
  return {std::move(text), site, Operation::Kind::pairwise, messages_of(sends), messages_of(receives)};
}

}  // namespace

Communicator::Communicator(int rank, int size) : rank_(rank), size_(size) {
  RING_CHECK(size >= 1 && rank >= 0 && rank < size, "communicator: rank ", rank, " of ", size, " does not exist");
}

Operation Communicator::record(Operation op) {
  op.record = flights_.record_queued(op);
  return op;
}

void Communicator::check(std::string_view op, const Tensor& t) const {
  RING_CHECK(t.defined(), op, ": the tensor is undefined");
  RING_CHECK(t.is_contiguous(), op, ": needs a contiguous tensor, got ", describe(t));
}

void Communicator::check_peer(std::string_view op, int peer) const {
  RING_CHECK(peer >= 0 && peer < size_, op, ": rank ", peer, " is not in this group of ", size_);
}

void Communicator::check_reduce(std::string_view op, const Tensor& t) const {
  RING_CHECK(t.dtype() != DType::u8, op, ": reduces f32, bf16 and i32, got ", describe(t));
}

void Communicator::check_part(std::string_view op, const Tensor& whole, const Tensor& part) const {
  check(op, whole);
  check(op, part);
  RING_CHECK(whole.dtype() == part.dtype() && whole.device() == part.device(), op, ": ", describe(whole), " and ",
             describe(part), " differ in dtype or device");
  RING_CHECK(whole.numel() == size_ * part.numel(), op, ": ", describe(whole), " is not ", size_, " parts of ",
             describe(part));
}

// Checks the pieces. Returns their description, which is the same on every rank.
std::string Communicator::check_pieces(const std::string& op, const std::vector<OwnedPiece>& pieces) const {
  std::string text = str(op, " of ", pieces.size(), pieces.size() == 1 ? " piece" : " pieces");
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const OwnedPiece& p = pieces[i];
    check(op, p.tensor);
    check_peer(op, p.root);
    RING_CHECK(p.tensor.device() == pieces[0].tensor.device(), op, ": ", describe(p.tensor), " and ",
               describe(pieces[0].tensor), " are on different devices");
    text += str(i == 0 ? ": " : ", ", p.tensor.dtype(), p.tensor.shape(), " of rank ", p.root);
  }
  return text;
}

void Communicator::check_own_messages(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives) const {
  std::size_t next = 0;
  const auto own = [&] {
    while (next < receives.size() && receives[next].peer != rank_) ++next;
    return next < receives.size() ? &receives[next++].tensor : nullptr;
  };
  for (const Transfer& s : sends) {
    if (s.peer != rank_) continue;
    const Tensor* in = own();
    RING_CHECK(in, "exchange: rank ", rank_, " sends itself more messages than it receives from itself");
    RING_CHECK(in->bytes() == s.tensor.bytes(), "exchange: ", describe(s.tensor), " to itself does not fit ",
               describe(*in));
  }
  RING_CHECK(!own(), "exchange: rank ", rank_, " receives more messages from itself than it sends itself");
}

Work Communicator::all_reduce(const Tensor& t, Reduce op, const Event& after, Site site) {
  check("all_reduce", t);
  check_reduce("all_reduce", t);
  return do_all_reduce(record({str("all_reduce ", to_string(op), " of ", t.dtype(), t.shape()), site}), t, op, after);
}

Work Communicator::all_gather(const Tensor& out, const Tensor& in, const Event& after, Site site) {
  check_part("all_gather", out, in);
  return do_all_gather(record({str("all_gather of ", in.dtype(), in.shape()), site}), out, in, after);
}

Work Communicator::reduce_scatter(const Tensor& out, const Tensor& in, Reduce op, const Event& after, Site site) {
  check_part("reduce_scatter", in, out);
  check_reduce("reduce_scatter", in);
  return do_reduce_scatter(record({str("reduce_scatter ", to_string(op), " of ", in.dtype(), in.shape()), site}), out,
                           in, op, after);
}

Work Communicator::all_to_all(const Tensor& out, const Tensor& in, const Event& after, Site site) {
  check("all_to_all", out);
  check("all_to_all", in);
  RING_CHECK(out.dtype() == in.dtype() && out.device() == in.device() && out.numel() == in.numel(),
             "all_to_all: ", describe(out), " and ", describe(in), " differ in dtype, device or size");
  RING_CHECK(in.numel() % size_ == 0, "all_to_all: ", describe(in), " cannot be split into ", size_, " equal parts");
  RING_CHECK(in.numel() == 0 || in.raw() + in.bytes() <= out.raw() || out.raw() + out.bytes() <= in.raw(),
             "all_to_all: ", describe(out), " and ", describe(in), " overlap; use separate tensors");
  return do_all_to_all(record({str("all_to_all of ", in.dtype(), in.shape()), site}), out, in, after);
}

Work Communicator::broadcast(const Tensor& t, int root, const Event& after, Site site) {
  check("broadcast", t);
  check_peer("broadcast", root);
  return do_broadcast(record({str("broadcast of ", t.dtype(), t.shape(), " from rank ", root), site}), t, root, after);
}

Work Communicator::reduce_pieces(const std::vector<OwnedPiece>& pieces, Reduce op, const Event& after, Site site) {
  std::string text = check_pieces(str("reduce_pieces ", to_string(op)), pieces);
  for (const OwnedPiece& p : pieces) check_reduce("reduce_pieces", p.tensor);
  return do_reduce_pieces(record({std::move(text), site}), pieces, op, after);
}

Work Communicator::broadcast_pieces(const std::vector<OwnedPiece>& pieces, const Event& after, Site site) {
  return do_broadcast_pieces(record({check_pieces("broadcast_pieces", pieces), site}), pieces, after);
}

Work Communicator::exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                            const Event& after, Site site) {
  for (const auto* list : {&sends, &receives})
    for (const Transfer& t : *list) {
      check("exchange", t.tensor);
      check_peer("exchange", t.peer);
    }
  check_own_messages(sends, receives);
  Operation op{str("exchange of ", sends.size(), " messages for ", receives.size()), site, Operation::Kind::exchange,
               messages_of(sends), messages_of(receives)};
  return do_exchange(record(std::move(op)), sends, receives, after);
}

Work Communicator::send(const Tensor& t, int to, const Event& after, Site site) {
  check("send", t);
  check_peer("send", to);
  RING_CHECK(to != rank_, "send: rank ", to, " is this rank");
  return do_exchange(record(pairwise(str("send of ", t.dtype(), t.shape(), " to rank ", to), site, {{t, to}}, {})),
                     {{t, to}}, {}, after);
}

Work Communicator::recv(const Tensor& t, int from, const Event& after, Site site) {
  check("recv", t);
  check_peer("recv", from);
  RING_CHECK(from != rank_, "recv: rank ", from, " is this rank");
  return do_exchange(
      record(pairwise(str("receive of ", t.dtype(), t.shape(), " from rank ", from), site, {}, {{t, from}})), {},
      {{t, from}}, after);
}

Work Communicator::send_recv(const Tensor& out, int to, const Tensor& in, int from, const Event& after, Site site) {
  check("send_recv", out);
  check("send_recv", in);
  check_peer("send_recv", to);
  check_peer("send_recv", from);
  RING_CHECK((to == rank_) == (from == rank_), "send_recv: sends to rank ", to, " but receives from rank ", from);
  if (to == rank_) {
    RING_CHECK(out.bytes() == in.bytes(), "send_recv: ", describe(out), " does not fit ", describe(in));
  }
  std::string text = str("send of ", out.dtype(), out.shape(), " to rank ", to, " and receive of ", in.dtype(),
                         in.shape(), " from rank ", from);
  return do_exchange(record(pairwise(std::move(text), site, {{out, to}}, {{in, from}})), {{out, to}}, {{in, from}},
                     after);
}

Work Communicator::barrier(const Event& after, Site site) { return do_barrier(record({"barrier", site}), after); }

}  // namespace ring
