#pragma once
// A group of ranks that move tensors between each other. Every operation is asynchronous: it starts once `after` is
// done and returns a Work; what was started first runs first, and every rank must start the same operations in the same
// order. Each wait for a peer is bounded by a timeout; after a failure the communicator is unusable and every later
// operation fails at once. Sums add the ranks' values in rank order, so that the same world size always gives the same
// bits.
//
// The public calls check shapes, dtypes and devices (Error names the operation and both sides); backends override the
// private ones, which only move bytes.

#include <cstdint>
#include <string_view>

#include "comm/work.h"

namespace ring {

// Another rank died, left, stopped or did something else: this one is not the cause. A worker that ends because of it exits
// with kExitPeerLost, so that its launcher names the right one.
struct PeerLost : Error {
  using Error::Error;
};
inline constexpr int kExitPeerLost = 83;

enum class Reduce : std::uint8_t { sum, max };  // max: NaN wins over every number
constexpr std::string_view to_string(Reduce r) { return r == Reduce::sum ? "sum" : "max"; }

class Communicator {
 public:
  virtual ~Communicator() = default;  // unfinished operations are abandoned: wait for them first
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string_view backend() const = 0;  // "self", "gloo"

  // In place; f32 or i32.
  Work all_reduce(const Tensor& t, Reduce op, const Event& after = {});
  // out holds size() * in.numel() elements, the ranks' parts in rank order; `in` may be this rank's part of `out`.
  Work all_gather(const Tensor& out, const Tensor& in, const Event& after = {});
  // in holds size() * out.numel() elements; this rank gets the reduction of its part. f32 or i32.
  Work reduce_scatter(const Tensor& out, const Tensor& in, Reduce op, const Event& after = {});
  Work broadcast(const Tensor& t, int root, const Event& after = {});
  // Both sides run in their rank's one order: two ranks that send to each other use send_recv.
  Work send(const Tensor& t, int to, const Event& after = {});
  Work recv(const Tensor& t, int from, const Event& after = {});
  // At once; the two sides may have different sizes.
  Work send_recv(const Tensor& out, int to, const Tensor& in, int from, const Event& after = {});
  Work barrier(const Event& after = {});

  // From any thread: every operation, running or queued, fails at once with `reason`.
  virtual void abort(const std::string& reason) = 0;

 protected:
  Communicator(int rank, int size);

 private:
  void check(std::string_view op, const Tensor& t) const;
  void check_peer(std::string_view op, int peer) const;
  void check_reduce(std::string_view op, const Tensor& t) const;
  void check_part(std::string_view op, const Tensor& whole, const Tensor& part) const;

  virtual Work do_all_reduce(const Tensor& t, Reduce op, const Event& after) = 0;
  virtual Work do_all_gather(const Tensor& out, const Tensor& in, const Event& after) = 0;
  virtual Work do_reduce_scatter(const Tensor& out, const Tensor& in, Reduce op, const Event& after) = 0;
  virtual Work do_broadcast(const Tensor& t, int root, const Event& after) = 0;
  // An undefined tensor: nothing in that direction.
  virtual Work do_send_recv(const Tensor& out, int to, const Tensor& in, int from, const Event& after) = 0;
  virtual Work do_barrier(const Event& after) = 0;

  int rank_, size_;
};

}  // namespace ring
