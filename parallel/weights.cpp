#include "parallel/weights.h"

namespace ring {

WeightBroadcast::WeightBroadcast(Communicator& comm, const FsdpUnits& units, const Tensor& flat_weights)
    : comm_(comm), units_(units), flat_weights_(flat_weights), under_way_(units.units.size()) {
  for (const FsdpUnit& unit : units.units)
    for (const Param* p : unit.params)
      RING_CHECK(p->var.value.defined() && p->var.value.raw() == flat_weights.narrow(0, p->offset, 1).raw(),
                 "the value of ", p->parts[0].name, " is not bound to the flat weights");
}

void WeightBroadcast::on_owners_updated(const ExecContext& ctx) {
  for (std::size_t i = 0; i < units_.units.size(); ++i) {
    std::vector<OwnedPiece> pieces;
    for (const FsdpUnitPiece& p : units_.units[i].pieces)
      pieces.push_back({flat_weights_.narrow(0, p.piece.offset, p.piece.numel), p.piece.owner});
    under_way_[i] = comm_.broadcast_pieces(pieces, ctx.stream.record());
  }
}

void WeightBroadcast::need(std::size_t part, ScopePass, const ExecContext& ctx) {
  for (const std::size_t unit : units_.units_of_part[part]) {
    if (under_way_[unit]) under_way_[unit]->wait(ctx.stream);
    under_way_[unit].reset();
  }
}

WeightGather::WeightGather(Communicator& comm, const FsdpUnits& units, const ExecContext& ctx, const FlatBuffer& own)
    : comm_(comm), units_(units), own_(own) {
  for (const std::int64_t size : units.buffers)
    buffers_.push_back({ctx.zeros({size}, own.flat.dtype(), Lifetime::run), {}, {}});
  for (const FsdpUnit& unit : units.units)
    for (std::size_t i = 0; i < unit.params.size(); ++i) {
      Param& p = *unit.params[i];
      const Tensor& buffer = buffers_[static_cast<std::size_t>(unit.buffer)].tensor;
      p.var.value = buffer.narrow(0, unit.param_offsets[i], p.shape.numel()).view(p.shape);
    }
}

void WeightGather::on_owners_updated(const ExecContext& ctx) {
  for (WeightBuffer& buffer : buffers_) {
    if (buffer.under_way) buffer.under_way->wait(ctx.stream);
    buffer.under_way.reset();
    buffer.unit.reset();
  }
}

// Starts gathering the part's units that are not in their buffers yet. A gather may overwrite a buffer while the
// current part computes, since adjacent parts never share a buffer (make_fsdp_units()). The gather waits for all work
// queued so far, which includes every reader of the old contents.
void WeightGather::gather(std::size_t part, ScopePass pass, const ExecContext& ctx) {
  for (const std::size_t unit_index : units_.units_of_part[part]) {
    const FsdpUnit& unit = units_.units[unit_index];
    WeightBuffer& buffer = buffers_[static_cast<std::size_t>(unit.buffer)];
    if (buffer.unit == unit_index) continue;
    if (pass == ScopePass::backward && unit.only_tables) continue;  // backward does not read the values of tables
    if (buffer.under_way) buffer.under_way->wait(ctx.stream);
    for (const FsdpUnitPiece& p : unit.pieces)
      if (p.piece.owner == comm_.rank())
        copy(buffer.tensor.narrow(0, p.offset_in_buffer, p.piece.numel), own_.of(p.piece), ctx.stream);
    buffer.unit = unit_index;
    buffer.under_way = comm_.broadcast_pieces(pieces_in(unit, buffer.tensor), ctx.stream.record());
  }
}

void WeightGather::need(std::size_t part, ScopePass pass, const ExecContext& ctx) {
  gather(part, pass, ctx);
  for (const std::size_t unit_index : units_.units_of_part[part]) {
    std::optional<Work>& work = buffers_[static_cast<std::size_t>(units_.units[unit_index].buffer)].under_way;
    if (work) work->wait(ctx.stream);
    work.reset();
  }
  // Prefetch the part that runs next.
  if (pass == ScopePass::backward && part > 0) gather(part - 1, pass, ctx);
  if (pass != ScopePass::backward && part + 1 < units_.parts.size()) gather(part + 1, pass, ctx);
}

std::size_t WeightGather::bytes() const {
  std::size_t all = 0;
  for (const WeightBuffer& buffer : buffers_) all += buffer.tensor.bytes();
  return all;
}

}  // namespace ring
