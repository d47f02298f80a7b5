#pragma once
// Sums gradients over ranks that send them in codes (kernels/gradient_codes.h), with error feedback.
//
// Each piece of a buffer has an owner. A rank adds its residuals to its gradients, encodes the pieces of all other
// ranks and sends them to their owners. What the codes cannot represent becomes the rank's residual, which the rank
// adds to its next gradients. An owner adds its own gradient and the decoded values in f32, in rank order. If every
// rank needs the sums (zero: 0), the owner adds its residual to the sum, encodes the sum and sends it to all ranks.
//
// Invariant: over all steps, the sum of all gradients equals the sum of what was applied plus the residuals of all
// ranks, up to the rounding of f32 additions. It does not matter which rank holds a residual.
//
// If several nodes have several ranks each, the ranks of a node first add their gradients uncompressed. For each piece,
// the rank that has the owner's index within its node gets the sum of the node. Only ranks with the same index on
// different nodes exchange codes.

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "kernels/gradient_codes.h"
#include "model/params.h"
#include "parallel/buffer_piece.h"
#include "parallel/sparse_messages.h"

namespace ring {

// The ranks of a compressed sum.
struct CompressionRanks {
  Communicator* node = nullptr;     // ranks of this rank's node, which are adjacent; null to ignore nodes
  Communicator* between = nullptr;  // all ranks if `node` is null, otherwise one rank per node, with this rank's index
  // False on tensor-parallel ranks other than the first. Uncompressed pieces have residuals only if a run was resumed
  // from a checkpoint with a smaller tp. All tensor-parallel ranks then hold the same residual, and only the first adds
  // it, because the gradients of these pieces are summed over these ranks.
  bool first_slice = true;
  int per_node() const { return node ? node->size() : 1; }
};

// Ranks, code and residuals, which all sums of a run share.
class GradientCompressor {
 public:
  // elements: size of the flat layout of all gradients. to_all: true if every rank needs the sums (zero: 0). The code
  // f32 has no residuals and leaves out blocks of zeros, so that gradients must be in host memory.
  GradientCompressor(const CompressionRanks&, const GradientCoding&, std::int64_t elements, bool to_all,
                     const ExecContext&);

  // Returns true for matrices, except those that tensor-parallel ranks replicate: their residuals would differ between
  // these ranks. Vectors (norms, biases) are too small to be worth an error.
  static bool compresses(const Param&, const Slice&);

  bool has_residuals() const { return coding_.code != GradientCode::f32; }
  // Returns the residuals after the last accepted step, f32 [elements], which are part of the training state. Without
  // residuals, the tensor is empty.
  const Tensor& residuals() const { return kept_; }
  // Call after anything but a step has written residuals().
  void on_residuals_changed(const ExecContext&);
  // Ends a step: keeps its residuals if the step was accepted, and otherwise restores the residuals from before it.
  // state: the StepState on the device.
  void end_step(const Tensor& state, const ExecContext&);
  std::size_t bytes() const { return kept_.bytes() + pending_.bytes(); }

  // Splits [0, numel) of a buffer into pieces for sums that all ranks need: nearly equal shares, contiguous and in rank
  // order. matrices: the ranges of the buffer that are compressed; the rest is sent exactly.
  struct Range {
    std::int64_t begin = 0, numel = 0;
  };
  std::vector<BufferPiece> split(std::int64_t numel, std::int64_t offset, const std::vector<Range>& matrices) const;

 private:
  friend class CompressedSum;
  CompressionRanks ranks_;
  GradientCoding coding_;
  bool to_all_;
  Tensor kept_, pending_;  // pending_: residuals that replace kept_ if the current step is accepted
};

// A compressed sum in flight.
class CompressedSum {
 public:
  // Encodes the pieces and starts to send them. Collective over the compressor's ranks; all of them pass the same
  // pieces. The buffer, f32 or bf16, must not be used until advance() returns false.
  CompressedSum(GradientCompressor&, const ExecContext&, const Tensor& buffer, const std::vector<BufferPiece>&);
  // Waits for the messages in flight, and starts the next ones. Returns false once the buffer holds the sums of all
  // pieces (if to_all) or of own pieces. Collective: ranks advance sums in the same order. Throws Error on a lost peer.
  bool advance(const ExecContext&);

 private:
  using Pieces = std::vector<BufferPiece>;
  using Messages = std::vector<Tensor>;

  GradientCoding coding_of(const BufferPiece& p) const;
  std::int64_t bytes_of(const Pieces&) const;
  Tensor residual_of(const BufferPiece& p) const {
    return shared_->has_residuals() ? shared_->pending_.narrow(0, p.offset, p.numel) : Tensor{};
  }
  // Returns the residual that this rank adds to its gradient; undefined if it adds none.
  Tensor added_residual(const BufferPiece& p) const {
    return p.compressible || shared_->ranks_.first_slice ? residual_of(p) : Tensor{};
  }
  Tensor part(const BufferPiece& p) const { return buffer_.narrow(0, p.begin, p.numel); }
  void sum_in_node(const ExecContext&, const Pieces& all);
  void send_to_owners(const ExecContext&);
  void add_messages(const ExecContext&);
  void send_sums(const ExecContext&);
  void read_sums(const ExecContext&);
  void send_in_node(const ExecContext&);
  void decode(const BufferPiece&, const Tensor& message, const GradientCoding&, bool add, const Tensor& sum,
              const ExecContext&) const;

  enum class Phase : std::uint8_t { to_owners, sums, in_node, done };

  GradientCompressor* shared_;
  Tensor buffer_;
  Pieces all_;
  std::vector<Pieces> pieces_;  // by rank of `between`: the pieces that it owns and this rank encodes
  Messages sent_, received_;    // by rank of `between`
  MessageExchange exchange_;
  Work in_node_;
  Phase phase_ = Phase::to_owners;
};

}  // namespace ring
