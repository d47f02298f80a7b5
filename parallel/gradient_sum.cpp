#include "parallel/gradient_sum.h"

#include "kernels/elementwise.h"

namespace ring {

GradientSum::GradientSum(Communicator& comm, const ExecContext& ctx, const Tensor& buffer,
                         const std::vector<BufferPiece>& pieces, const GradientTravel& travel)
    : buffer_(buffer), travels_(buffer) {
  if (comm.size() == 1) return;
  if (travel.compressor) {
    compressed_.emplace(*travel.compressor, ctx, buffer, pieces);
    return;
  }
  if (travel.type == DType::bf16 && buffer.dtype() != travel.type) {
    travels_ = ctx.empty(buffer.shape(), travel.type);
    cast_kernel({buffer, travels_}, ctx);
  }
  if (pieces.empty()) {
    own_ = {{0, buffer.numel(), comm.rank()}};
    work_ = comm.all_reduce(travels_, Reduce::sum, ctx.stream.record());
    return;
  }
  std::vector<OwnedPiece> owned;
  for (const BufferPiece& p : pieces) {
    owned.push_back({travels_.narrow(0, p.begin, p.numel), p.owner});
    if (p.owner == comm.rank()) own_.push_back(p);
  }
  work_ = comm.reduce_pieces(owned, Reduce::sum, ctx.stream.record());
}

bool GradientSum::advance(const ExecContext& ctx) {
  if (compressed_) return compressed_->advance(ctx);
  work_.wait(ctx.stream);
  if (!travels_.defined() || travels_.raw() == buffer_.raw()) return false;
  for (const BufferPiece& p : own_)
    cast_kernel({travels_.narrow(0, p.begin, p.numel), buffer_.narrow(0, p.begin, p.numel)}, ctx);
  travels_ = {};
  return false;
}

}  // namespace ring
