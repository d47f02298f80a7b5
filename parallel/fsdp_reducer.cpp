#include "parallel/fsdp_reducer.h"

#include <utility>

#include "kernels/elementwise.h"

namespace ring {

FsdpReducer::FsdpReducer(Communicator& comm, const FsdpUnits& units, const ExecContext& ctx, DType gradients,
                         const GradientTravel& travel, const FlatBuffer& own)
    : comm_(comm), units_(units), travel_(travel), own_(own), open_(units.units.size()), added_(units.units.size()) {
  for (const std::int64_t size : units.buffers) buffers_.push_back(ctx.zeros({size}, gradients, Lifetime::run));
  under_way_.resize(buffers_.size());
  for (const FsdpUnit& unit : units.units)
    for (std::size_t i = 0; i < unit.params.size(); ++i) {
      const Param& p = *unit.params[i];
      if (p.is_frozen()) continue;
      const Tensor& buffer = buffers_[static_cast<std::size_t>(unit.buffer)];
      p.var.slot->grad = buffer.narrow(0, unit.param_offsets[i], p.shape.numel()).view(p.shape);
      p.var.slot->bound = true;
    }
}

void FsdpReducer::start_step() { added_.assign(added_.size(), false); }

void FsdpReducer::begin_unit(std::size_t at, const ExecContext& ctx) {
  if (open_[at]) return;
  const FsdpUnit& unit = units_.units[at];
  for (std::size_t other = 0; other < open_.size(); ++other)
    RING_CHECK(!open_[other] || units_.units[other].buffer != unit.buffer, "gradients of ", unit.scope,
               " would be written while those of ", units_.units[other].scope, " are still in the same buffer");
  finish_reduction(static_cast<std::size_t>(unit.buffer), ctx);
  for (const Param* p : unit.params)
    if (!p->is_frozen()) p->var.slot->written = false;
  open_[at] = true;
}

void FsdpReducer::end_unit(std::size_t at, const ExecContext& ctx) {
  begin_unit(at, ctx);  // usually open already, except if none of its gradients was needed
  const FsdpUnit& unit = units_.units[at];
  for (const Param* p : unit.params)
    if (!p->is_frozen() && !std::exchange(p->var.slot->written, true)) fill_zero(p->var.slot->grad, ctx.stream);
  std::vector<BufferPiece> pieces;
  for (const FsdpUnitPiece& p : unit.pieces)
    if (!p.piece.param->is_frozen())
      pieces.push_back({p.offset_in_buffer, p.piece.numel, p.piece.owner, p.piece.offset,
                        GradientCompressor::compresses(*p.piece.param, units_.slice)});
  open_[at] = false;
  if (pieces.empty()) return;
  const auto buffer = static_cast<std::size_t>(unit.buffer);
  under_way_[buffer] = Reduction{at, {comm_, ctx, buffers_[buffer].narrow(0, 0, unit.size), pieces, travel_}};
}

// Waits for the reduction of this buffer, and adds this rank's pieces to the sums of the step.
void FsdpReducer::finish_reduction(std::size_t buffer, const ExecContext& ctx) {
  if (!under_way_[buffer]) return;
  Reduction r = std::move(*under_way_[buffer]);
  under_way_[buffer].reset();
  r.sum.finish(ctx);
  for (const FsdpUnitPiece& p : units_.units[r.unit].pieces) {
    if (p.piece.owner != comm_.rank() || p.piece.param->is_frozen()) continue;
    const Tensor sum = own_.of(p.piece);
    const Tensor more = buffers_[buffer].narrow(0, p.offset_in_buffer, p.piece.numel);
    axpby_kernel({more, added_[r.unit] ? sum : Tensor{}, sum, 1, added_[r.unit] ? 1.0f : 0.0f}, ctx);
  }
  added_[r.unit] = true;
}

void FsdpReducer::finish_step(const ExecContext& ctx) {
  for (std::size_t i = 0; i < buffers_.size(); ++i) finish_reduction(i, ctx);
  for (std::size_t at = 0; at < added_.size(); ++at)
    for (const FsdpUnitPiece& p : units_.units[at].pieces)
      if (!added_[at] && p.piece.owner == comm_.rank() && !p.piece.param->is_frozen())
        fill_zero(own_.of(p.piece), ctx.stream);
}

std::size_t FsdpReducer::bytes() const {
  std::size_t all = 0;
  for (const Tensor& t : buffers_) all += t.bytes();
  return all;
}

}  // namespace ring
