#include "parallel/gradient_sum.h"

#include "kernels/elementwise.h"

namespace ring {

GradientSum::GradientSum(Communicator& comm, const ExecContext& ctx, const Tensor& buffer,
                         const std::vector<BufferPiece>& pieces, DType travel)
    : buffer_(buffer), travels_(buffer) {
  if (comm.size() == 1) return;
  if (travel == DType::bf16 && buffer.dtype() != travel) {
    travels_ = ctx.empty(buffer.shape(), travel);
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

void GradientSum::finish(const ExecContext& ctx) {
  work_.wait(ctx.stream);
  if (travels_.raw() == buffer_.raw()) return;
  for (const BufferPiece& p : own_)
    cast_kernel({travels_.narrow(0, p.begin, p.numel), buffer_.narrow(0, p.begin, p.numel)}, ctx);
  travels_ = {};
}

}  // namespace ring
