#pragma once
// A group of ranks that send tensors to each other. Every operation is asynchronous: it starts once `after` is done and
// returns a Work. Operations run in the order in which they are started, and every rank must start the same operations
// in the same order. Each wait for a peer ends after a timeout. After a failure the communicator is unusable, and every
// later operation fails at once. Sums add the ranks' values in rank order, so the same world size always gives
// bit-identical results.
//
// The public functions check shapes, dtypes and devices (Error names the operation and both sides) and record their
// call site. Backends override the private functions, which only move bytes.

#include <cstdint>
#include <string_view>
#include <vector>

#include "comm/flight_log.h"
#include "comm/operation.h"
#include "comm/work.h"

namespace ring {

// Another rank died, left, hung or ran a different operation: this rank is not the cause. A worker that ends because of
// it exits with kExitPeerLost (core/exit_code.h), so that its launcher blames the right rank.
struct PeerLost : Error {
  using Error::Error;
};

enum class Reduce : std::uint8_t { sum, max };  // max: a NaN wins over every number
constexpr std::string_view to_string(Reduce r) { return r == Reduce::sum ? "sum" : "max"; }

struct OwnedPiece {  // a tensor with an owner rank
  Tensor tensor;
  int root;
};
struct Transfer {  // a tensor sent to or received from a rank
  Tensor tensor;
  int peer;
  // Used only for receives: the tensor may be overwritten after this event. If it is undefined, the operation's `after`
  // applies. If it is earlier than `after`, the sender can begin as soon as its own data is ready.
  Event free = {};
};

class Communicator {
 public:
  virtual ~Communicator() = default;  // abandons unfinished operations: wait for them first
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string_view backend() const = 0;  // "self", "gloo", "nccl"

  // Sets the log of this group's operations, for the diagnosis of hangs.
  void record(FlightLog log) { flights_ = log; }
  FlightLog& flights() { return flights_; }

  // Tensors must be contiguous. Reductions take f32, bf16 and i32. On the host, bf16 is accumulated in f32 and rounded
  // once; on GPUs, NCCL defines the rounding.

  // Reduces `t` in place on every rank.
  Work all_reduce(const Tensor& t, Reduce op, const Event& after = {}, Site site = Site::current());
  // `out` holds size() * in.numel() elements: the ranks' parts in rank order. `in` may be this rank's part of `out`.
  Work all_gather(const Tensor& out, const Tensor& in, const Event& after = {}, Site site = Site::current());
  // `in` holds size() * out.numel() elements. This rank receives the reduction of its part in `out`.
  Work reduce_scatter(const Tensor& out, const Tensor& in, Reduce op, const Event& after = {},
                      Site site = Site::current());
  // Both tensors hold size() equal parts in rank order: part j of `in` goes to rank j, and part i of `out` comes from
  // rank i. They must not overlap.
  Work all_to_all(const Tensor& out, const Tensor& in, const Event& after = {}, Site site = Site::current());
  Work broadcast(const Tensor& t, int root, const Event& after = {}, Site site = Site::current());

  // One operation over many tensors with their own roots. All ranks pass the same list, which may be empty.
  // reduce_pieces() reduces in place at the root; the contents on other ranks are unspecified afterwards.
  Work reduce_pieces(const std::vector<OwnedPiece>& pieces, Reduce op, const Event& after = {},
                     Site site = Site::current());
  Work broadcast_pieces(const std::vector<OwnedPiece>& pieces, const Event& after = {}, Site site = Site::current());

  // Sends and receives messages between any ranks as one operation. Every rank calls it, even with empty lists. The
  // k-th message to a rank matches the k-th message that this rank expects from the sender, and must have the same
  // size. Messages to oneself are copies.
  Work exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives, const Event& after = {},
                Site site = Site::current());
  // Returns memory for tensors that exchange() receives. It behaves like memory of the stream's allocator, but peers
  // write directly to it if the transport supports that, which saves a copy. All uses of this memory, and its
  // deallocation, must come before the next exchange: before its `after`, or before Transfer::free of its receives.
  virtual Tensor receive_buffer(const Shape& shape, DType dtype, const Stream& stream) {
    return Tensor::empty(shape, dtype, stream);
  }
  virtual std::size_t receive_bytes() const { return 0; }   // bytes of receive buffers outside the stream's allocator
  virtual bool uses_copy_engines() const { return false; }  // if true, exchange() uses no SMs

  // Sends and receives run in the same order as all other operations of a rank: two ranks that send to each other must
  // use send_recv() or exchange().
  Work send(const Tensor& t, int to, const Event& after = {}, Site site = Site::current());
  Work recv(const Tensor& t, int from, const Event& after = {}, Site site = Site::current());
  // Sends and receives at the same time; the two messages may have different sizes.
  Work send_recv(const Tensor& out, int to, const Tensor& in, int from, const Event& after = {},
                 Site site = Site::current());
  Work barrier(const Event& after = {}, Site site = Site::current());

  // Makes every running or queued operation fail at once with `reason`. Callable from any thread.
  virtual void abort(const std::string& reason) = 0;
  // Returns true if no operation that was started uses device memory any more, so that the memory may be freed.
  virtual bool idle() const { return true; }

 protected:
  Communicator(int rank, int size);

 private:
  void check(std::string_view op, const Tensor& t) const;
  void check_peer(std::string_view op, int peer) const;
  void check_reduce(std::string_view op, const Tensor& t) const;
  void check_part(std::string_view op, const Tensor& whole, const Tensor& part) const;
  std::string check_pieces(const std::string& op, const std::vector<OwnedPiece>& pieces) const;
  void check_own_messages(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives) const;
  Operation record(Operation);

  virtual Work do_all_reduce(Operation, const Tensor& t, Reduce, const Event& after) = 0;
  virtual Work do_all_gather(Operation, const Tensor& out, const Tensor& in, const Event& after) = 0;
  virtual Work do_reduce_scatter(Operation, const Tensor& out, const Tensor& in, Reduce, const Event& after) = 0;
  virtual Work do_all_to_all(Operation, const Tensor& out, const Tensor& in, const Event& after) = 0;
  virtual Work do_broadcast(Operation, const Tensor& t, int root, const Event& after) = 0;
  virtual Work do_reduce_pieces(Operation, const std::vector<OwnedPiece>&, Reduce, const Event& after) = 0;
  virtual Work do_broadcast_pieces(Operation, const std::vector<OwnedPiece>&, const Event& after) = 0;
  // Also implements send, recv and send_recv as exchanges in which only the named ranks take part.
  virtual Work do_exchange(Operation, const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                           const Event& after) = 0;
  virtual Work do_barrier(Operation, const Event& after) = 0;

  int rank_, size_;
  FlightLog flights_;
};

}  // namespace ring
