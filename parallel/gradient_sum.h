#pragma once
// A gradient reduction in flight: of a whole buffer to every rank, or of its pieces to their owners. Values are sent
// and added in the buffer's type or in bf16, or sent in codes (parallel/compressed_sum.h).

#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "kernels/kernel.h"
#include "parallel/compressed_sum.h"

namespace ring {

// How gradients are sent.
struct GradientTravel {
  DType type = DType::f32;                   // type in which f32 gradients are sent and added
  GradientCompressor* compressor = nullptr;  // if not null, gradients are sent in its code instead
};

class GradientSum {
 public:
  // Starts an in-place reduction; without pieces every rank gets the whole sum. Collective. The buffer must not be used
  // until advance() returns false. A compressor requires pieces; if it was made with to_all, every rank gets all sums.
  GradientSum(Communicator&, const ExecContext&, const Tensor& buffer, const std::vector<BufferPiece>& pieces,
              const GradientTravel&);
  // Makes the stream wait for the messages in flight, and starts the next ones. Returns false once no messages remain:
  // the reduction has ended. Collective: ranks must advance their reductions in the same order. Throws Error on a lost
  // peer or a timeout.
  bool advance(const ExecContext&);
  void finish(const ExecContext& ctx) {
    while (advance(ctx)) {
    }
  }

 private:
  std::optional<CompressedSum> compressed_;  // if set, the other members are not used
  Tensor buffer_, travels_;                  // travels_: what is sent; the same tensor as buffer_ unless converted
  std::vector<BufferPiece> own_;
  Work work_;
};

}  // namespace ring
