#include "comm/communicator.h"

namespace ring {

Communicator::Communicator(int rank, int size) : rank_(rank), size_(size) {
  RING_CHECK(size >= 1 && rank >= 0 && rank < size, "communicator: rank ", rank, " of ", size, " does not exist");
}

void Communicator::check(std::string_view op, const Tensor& t) const {
  RING_CHECK(t.defined(), op, ": the tensor is undefined");
  RING_CHECK(t.contiguous(), op, ": needs a contiguous tensor, got ", describe(t));
}

void Communicator::check_peer(std::string_view op, int peer) const {
  RING_CHECK(peer >= 0 && peer < size_, op, ": rank ", peer, " is not in this group of ", size_);
}

void Communicator::check_reduce(std::string_view op, const Tensor& t) const {
  RING_CHECK(t.dtype() == DType::f32 || t.dtype() == DType::i32, op, ": reduces f32 and i32, got ", describe(t));
}

void Communicator::check_part(std::string_view op, const Tensor& whole, const Tensor& part) const {
  check(op, whole);
  check(op, part);
  RING_CHECK(whole.dtype() == part.dtype() && whole.device() == part.device(), op, ": ", describe(whole), " and ",
             describe(part), " differ in dtype or device");
  RING_CHECK(whole.numel() == size_ * part.numel(), op, ": ", describe(whole), " is not ", size_, " parts of ",
             describe(part));
}

Work Communicator::all_reduce(const Tensor& t, Reduce op, const Event& after) {
  check("all_reduce", t);
  check_reduce("all_reduce", t);
  return do_all_reduce(t, op, after);
}

Work Communicator::all_gather(const Tensor& out, const Tensor& in, const Event& after) {
  check_part("all_gather", out, in);
  return do_all_gather(out, in, after);
}

Work Communicator::reduce_scatter(const Tensor& out, const Tensor& in, Reduce op, const Event& after) {
  check_part("reduce_scatter", in, out);
  check_reduce("reduce_scatter", in);
  return do_reduce_scatter(out, in, op, after);
}

Work Communicator::broadcast(const Tensor& t, int root, const Event& after) {
  check("broadcast", t);
  check_peer("broadcast", root);
  return do_broadcast(t, root, after);
}

Work Communicator::send(const Tensor& t, int to, const Event& after) {
  check("send", t);
  check_peer("send", to);
  RING_CHECK(to != rank_, "send: rank ", to, " is this rank");
  return do_send_recv(t, to, {}, rank_, after);
}

Work Communicator::recv(const Tensor& t, int from, const Event& after) {
  check("recv", t);
  check_peer("recv", from);
  RING_CHECK(from != rank_, "recv: rank ", from, " is this rank");
  return do_send_recv({}, rank_, t, from, after);
}

Work Communicator::send_recv(const Tensor& out, int to, const Tensor& in, int from, const Event& after) {
  check("send_recv", out);
  check("send_recv", in);
  check_peer("send_recv", to);
  check_peer("send_recv", from);
  RING_CHECK((to == rank_) == (from == rank_), "send_recv: sends to rank ", to, " but receives from rank ", from);
  if (to == rank_) {
    RING_CHECK(out.bytes() == in.bytes(), "send_recv: ", describe(out), " does not fit ", describe(in));
  }
  return do_send_recv(out, to, in, from, after);
}

Work Communicator::barrier(const Event& after) { return do_barrier(after); }

}  // namespace ring
