#pragma once
// One reduction of gradients that is under way: of a whole buffer to every rank, or of its pieces to their owners. The
// values travel, and are added, in the buffer's type or in bf16.

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
  // In place. No pieces: every rank gets the whole sum. The buffer is left alone until finish().
  GradientSum(Communicator&, const ExecContext&, const Tensor& buffer, const std::vector<BufferPiece>& pieces,
              DType travel);
  // Orders the stream after the reduction. Error: a lost peer, a timeout.
  void finish(const ExecContext&);

 private:
  Tensor buffer_, travels_;  // alike where nothing is converted
  std::vector<BufferPiece> own_;
  Work work_;
};

}  // namespace ring
