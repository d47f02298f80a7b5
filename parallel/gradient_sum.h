#pragma once
// A gradient reduction in flight: of a whole buffer to every rank, or of its pieces to their owners. Values are sent
// and added in the buffer's type or in bf16.

#include <vector>

#include "comm/communicator.h"
#include "kernels/kernel.h"

namespace ring {

struct BufferPiece {
  std::int64_t begin = 0, numel = 0;
  int owner = 0;
};

class GradientSum {
 public:
  // Starts an in-place reduction; without pieces every rank gets the whole sum. Collective. The buffer must not be used
  // until finish() is called.
  GradientSum(Communicator&, const ExecContext&, const Tensor& buffer, const std::vector<BufferPiece>& pieces,
              DType travel);
  // Makes the stream wait for the reduction. Throws Error on a lost peer or a timeout.
  void finish(const ExecContext&);

 private:
  Tensor buffer_, travels_;  // both are the same tensor if nothing is converted
  std::vector<BufferPiece> own_;
  Work work_;
};

}  // namespace ring
