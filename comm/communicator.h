#pragma once
// A group of ranks that move tensors between each other. Every operation is asynchronous: it starts once `after` is
// done and returns a Work; what was started first runs first, and every rank must start the same operations in the same
// order. Each wait for a peer is bounded by a timeout; after a failure the communicator is unusable and every later
// operation fails at once. Sums add the ranks' values in rank order, so that the same world size always gives the same
// bits.
//
// The public calls check shapes, dtypes and devices (Error names the operation and both sides) and know who called
// them; backends override the private ones, which only move bytes.

#include <cstdint>
#include <string_view>
#include <vector>

#include "comm/flight_log.h"
#include "comm/operation.h"
#include "comm/work.h"

namespace ring {

// Another rank died, left, stopped or did something else: this one is not the cause. A worker that ends because of it
// exits with kExitPeerLost (core/exit_code.h), so that its launcher names the right one.
struct PeerLost : Error {
  using Error::Error;
};

enum class Reduce : std::uint8_t { sum, max };  // max: NaN wins over every number
constexpr std::string_view to_string(Reduce r) { return r == Reduce::sum ? "sum" : "max"; }

struct OwnedPiece {  // a tensor that belongs to one rank
  Tensor tensor;
  int root;
};
struct Transfer {  // a tensor that goes to or comes from a rank
  Tensor tensor;
  int peer;
  // From where on what is received may be written, which is before the operation's `after`. Undefined: from `after`
  // on. A sender that is told so earlier begins as soon as it has what it sends.
  Event free = {};
};

class Communicator {
 public:
  virtual ~Communicator() = default;  // unfinished operations are abandoned: wait for them first
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string_view backend() const = 0;  // "self", "gloo", "nccl"

  // Where its operations are recorded from now on, for when they hang.
  void record(FlightLog log) { flights_ = log; }
  FlightLog& flights() { return flights_; }

  // Tensors are contiguous. What is reduced is f32, bf16 or i32; bf16 is added in f32 and rounded once on the host, and
  // as NCCL does it on GPUs.

  // In place.
  Work all_reduce(const Tensor& t, Reduce op, const Event& after = {}, Site site = Site::current());
  // out holds size() * in.numel() elements, the ranks' parts in rank order; `in` may be this rank's part of `out`.
  Work all_gather(const Tensor& out, const Tensor& in, const Event& after = {}, Site site = Site::current());
  // in holds size() * out.numel() elements; this rank gets the reduction of its part.
  Work reduce_scatter(const Tensor& out, const Tensor& in, Reduce op, const Event& after = {},
                      Site site = Site::current());
  // Both hold size() equal parts in rank order: part j of `in` goes to rank j, part i of `out` comes from rank i. The
  // two do not overlap.
  Work all_to_all(const Tensor& out, const Tensor& in, const Event& after = {}, Site site = Site::current());
  Work broadcast(const Tensor& t, int root, const Event& after = {}, Site site = Site::current());

  // Many tensors with owners of their own as one operation. All ranks name the same list, which may be empty.
  // reduce: in place, at the root; what the others' tensors hold afterwards is unspecified.
  Work reduce_pieces(const std::vector<OwnedPiece>& pieces, Reduce op, const Event& after = {},
                     Site site = Site::current());
  Work broadcast_pieces(const std::vector<OwnedPiece>& pieces, const Event& after = {}, Site site = Site::current());

  // Messages between any ranks at once, as one operation that every rank calls, with empty lists too. The k-th message
  // to a rank meets the k-th that it expects from here, which has the same size. Those to oneself are copies.
  Work exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives, const Event& after = {},
                Site site = Site::current());
  // Memory for what exchange() is to receive: as if it came from the stream's allocator, but peers can write straight
  // to it where the transport allows that, and nothing is copied on. What uses such memory and drops it comes before
  // the `after` of the next exchange, or the `free` of what it receives.
  virtual Tensor receive_buffer(const Shape& shape, DType dtype, const Stream& stream) {
    return Tensor::empty(shape, dtype, stream);
  }
  virtual std::size_t receive_bytes() const { return 0; }   // held for it beside what that allocator counts
  virtual bool uses_copy_engines() const { return false; }  // for exchange(): no multiprocessor works for it

  // Both sides run in their rank's one order: two ranks that send to each other use send_recv or exchange.
  Work send(const Tensor& t, int to, const Event& after = {}, Site site = Site::current());
  Work recv(const Tensor& t, int from, const Event& after = {}, Site site = Site::current());
  // At once; the two sides may have different sizes.
  Work send_recv(const Tensor& out, int to, const Tensor& in, int from, const Event& after = {},
                 Site site = Site::current());
  Work barrier(const Event& after = {}, Site site = Site::current());

  // From any thread: every operation, running or queued, fails at once with `reason`.
  virtual void abort(const std::string& reason) = 0;

 protected:
  Communicator(int rank, int size);

 private:
  void check(std::string_view op, const Tensor& t) const;
  void check_peer(std::string_view op, int peer) const;
  void check_reduce(std::string_view op, const Tensor& t) const;
  void check_part(std::string_view op, const Tensor& whole, const Tensor& part) const;
  std::string check_pieces(const std::string& op, const std::vector<OwnedPiece>& pieces) const;
  void check_own_messages(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives) const;
  Operation recorded(Operation);

  virtual Work do_all_reduce(Operation, const Tensor& t, Reduce, const Event& after) = 0;
  virtual Work do_all_gather(Operation, const Tensor& out, const Tensor& in, const Event& after) = 0;
  virtual Work do_reduce_scatter(Operation, const Tensor& out, const Tensor& in, Reduce, const Event& after) = 0;
  virtual Work do_all_to_all(Operation, const Tensor& out, const Tensor& in, const Event& after) = 0;
  virtual Work do_broadcast(Operation, const Tensor& t, int root, const Event& after) = 0;
  virtual Work do_reduce_pieces(Operation, const std::vector<OwnedPiece>&, Reduce, const Event& after) = 0;
  virtual Work do_broadcast_pieces(Operation, const std::vector<OwnedPiece>&, const Event& after) = 0;
  // Also serves send, recv and send_recv, which are exchanges that only the named ranks take part in.
  virtual Work do_exchange(Operation, const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                           const Event& after) = 0;
  virtual Work do_barrier(Operation, const Event& after) = 0;

  int rank_, size_;
  FlightLog flights_;
};

}  // namespace ring
