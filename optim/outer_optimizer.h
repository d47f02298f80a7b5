#pragma once
// Outer optimizer of islands that train alone (parallel.local_steps): DiLoCo (Douillard et al. 2023), in fragments that
// are combined at different steps (Streaming DiLoCo, Douillard et al. 2025), with messages quantized to low-bit codes
// (kernels/gradient_codes.h) and error feedback (MuLoCo, Therien et al. 2025). For each weight of a fragment, with the
// outer weight theta and the weight w_i of island i when the message is sent:
//
//   message_i = quantize(residual_i + theta - w_i)      residual_i = what the message leaves out
//   average   = sum of message_i in the order of islands, divided by the number of islands
//   m         = momentum * m + average
//   theta     = theta - lr * (average + momentum * m)                                   (Nesterov)
//   w_i       = theta + (w_i now - w_i when the message was sent)
//
// theta, m and the residuals are f32 in host memory, and so is the computation, which is bit-identical on all islands.
// Within an island each weight is handled by one rank of the group that shares the data: the owner of the weight's
// moments if ZeRO shards them. This rank exchanges messages with the ranks at the same position in the other islands.

#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "kernels/gradient_codes.h"
#include "model/model.h"
#include "parallel/config.h"
#include "parallel/data_parallel.h"

namespace ring {

class OuterOptimizer {
 public:
  struct Groups {
    Communicator& islands;  // the rank of each island at this rank's position; tensors in host memory
    Communicator& data;     // ranks of this island that share the data; tensors on the device
  };
  // last_step: the run's last step, after which all fragments are combined; 0 if it is not known. threads: number of
  // host threads (run.threads) if the model is on a GPU; ignored on a CPU, where the stream's own threads are used. The
  // master weights must be f32 and on the device. All references must outlive this object. Throws Error if the model
  // has fewer parts than fragments, and OutOfHostMemory if host memory is short.
  OuterOptimizer(const ParallelConfig&, std::int64_t last_step, Model&, DataParallel&, Groups, int threads,
                 const ExecContext&);

  // Bytes of host memory. states: theta, momentum, residuals. buffers: weights and messages of one fragment.
  struct HostMemory {
    std::uint64_t states = 0, buffers = 0;
  };
  // Predicts the host memory of a rank before anything is allocated. data: ranks that share the island's data.
  // sharded: as DataParallel::sharded().
  static HostMemory host_memory(const ParallelConfig&, Model& laid_out, const OwnedShard&, const Communicator& data,
                                bool sharded);

  // Sets theta to the weights, and momentum and residuals to zero.
  void start(const ExecContext&);
  // Returns true if islands send a fragment between step `step` and the next one.
  bool sends_after(std::int64_t step) const;
  // Returns true if step `step` must have ended before training continues, because send() or receive() comes next.
  bool must_finish(std::int64_t step) const {
    return sends_after(step) || (config_.outer_delay > 0 && sends_after(step - 1));
  }
  // Call before step `step` + 1 is launched; with outer_delay, sends the fragment that is due. No step may be in flight
  // if must_finish(step).
  void send(std::int64_t step, const ExecContext&);
  // Call after step `step` has ended: combines the fragments whose messages are in flight and, without outer_delay or
  // after the last step, also those that are due. Returns true if it changed weights.
  bool receive(std::int64_t step, const ExecContext&);
  // Returns true while weights, outer weights or residuals are those of a fragment that has not been combined yet.
  // Stays true if a peer is lost in the meantime.
  bool in_flight() const { return in_flight_.has_value(); }
  // Drops messages in flight. Call when an earlier state is loaded. Allowed only with one island.
  void abandon() { in_flight_.reset(); }

  // Swaps the trained weights and theta, so that the model computes with theta; a second call swaps them back. Requires
  // that no messages are in flight.
  void swap_values(const ExecContext&);
  void take_theta(const ExecContext&);  // sets the weights to theta

  // The weights that this rank handles, and their outer weights and states, with the layout of a shard.
  const std::vector<ShardPiece>& pieces() const { return pieces_.own; }
  const FlatBuffer& theta() const { return theta_; }
  const FlatBuffer& momentum() const { return momentum_; }
  const FlatBuffer& residual() const { return residual_; }  // undefined with 32 bits
  // The most recent step after which receive() combined all fragments that were due. Part of the training state: if a
  // finished run is extended, send() must not send these fragments again.
  std::int64_t& combined_step() { return combined_step_; }
  bool quantizes() const { return config_.outer_bits < 32; }

  std::size_t fragments() const { return fragments_.size(); }
  std::int64_t message_bytes() const;  // bytes that this rank sends to each other island in local_steps steps
  std::uint64_t host_bytes() const;    // host memory that this object holds, as host_memory() predicts
  double wait_seconds() const { return wait_seconds_; }  // time spent in send() and receive() so far

 private:
  // A logical piece. at: offset of its values in a fragment's buffers. message_at: byte offset in a fragment's message.
  struct Range {
    ShardPiece piece;
    std::int64_t at = 0, message_at = 0;
  };
  struct Fragment {
    std::vector<Range> ranges;      // ranges that this rank handles
    std::vector<OwnedPiece> all{};  // pieces of all ranks of the island, if each rank holds all values
    std::int64_t numel = 0, bytes = 0;
  };
  struct Sent {
    std::size_t fragment;
    Work work;
  };

  // own: pieces of the weights that this rank updates. all: pieces of all ranks of the island, if each of these ranks
  // holds all weights; otherwise empty.
  struct Pieces {
    std::vector<ShardPiece> own, all;
  };
  // Maximum sizes. state: elements of theta. values: elements of a fragment. message: bytes of a fragment's message.
  struct Sizes {
    std::int64_t state = 1, values = 1, message = 1;  // at least 1, because a rank may own no weights
  };
  static Pieces pieces_of(Model&, const OwnedShard&, const Communicator& data, bool sharded);
  static std::vector<Fragment> make_fragments(const ParallelConfig&, Model&, const Pieces&, const FlatBuffer& values);
  static Sizes sizes_of(const Pieces&, const std::vector<Fragment>&);
  void allocate(const ExecContext&);
  bool due(std::size_t fragment, std::int64_t step) const;
  void send_fragment(std::size_t, const ExecContext&);
  void combine(const ExecContext&);
  void encode(const Fragment&) const;
  bool update(const Fragment&, const Range&) const;
  void read_values(const Fragment&, const Tensor& to, const ExecContext&) const;
  void write_values(const Fragment&, const Tensor& from, const ExecContext&) const;
  Tensor of(const FlatBuffer& b, const Range& r) const { return b.flat.narrow(0, r.piece.shard_offset, r.piece.numel); }
  Tensor part(const Tensor& values, const Range& r) const { return values.narrow(0, r.at, r.piece.numel); }
  Tensor message(const Fragment& f, const Range& r, int island) const {
    return messages_.narrow(0, island * f.bytes + r.message_at, ring::message_bytes(coding_, r.piece.numel));
  }

  const ParallelConfig config_;
  const GradientCoding coding_;
  const std::int64_t last_step_;
  DataParallel& data_;
  Groups groups_;
  const ExecContext host_;  // runs on the CPU even if the model is on a GPU
  const Pieces pieces_;
  const std::vector<Fragment> fragments_;
  FlatBuffer theta_, momentum_, residual_;
  Tensor sent_values_, values_;  // f32 weights of a fragment: when its message was sent, and now; then scratch
  Tensor messages_;              // u8: the messages of all islands
  std::optional<Sent> in_flight_;
  std::int64_t combined_step_ = 0;
  double wait_seconds_ = 0;
};

}  // namespace ring
