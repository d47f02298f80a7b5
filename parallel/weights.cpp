#include "parallel/weights.h"

namespace ring {

WeightBroadcast::WeightBroadcast(Communicator& comm, const FsdpUnits& units, const Tensor& all)
    : comm_(comm), units_(units), all_(all), under_way_(units.units.size()) {
  for (const FsdpUnit& unit : units.units)
    for (const Param* p : unit.params)
      RING_CHECK(p->var.value.defined() && p->var.value.raw() == all.narrow(0, p->offset, 1).raw(), "the value of ",
                 p->parts[0].name, " is not bound to the flat weights");
}

void WeightBroadcast::updated(const ExecContext& ctx) {
  for (std::size_t i = 0; i < units_.units.size(); ++i) {
    std::vector<OwnedPiece> pieces;
    for (const FsdpUnitPiece& p : units_.units[i].pieces)
      pieces.push_back({all_.narrow(0, p.piece.offset, p.piece.numel), p.piece.owner});
    under_way_[i] = comm_.broadcast_pieces(pieces, ctx.stream.record());
  }
}

void WeightBroadcast::need(std::size_t part, ScopePass, const ExecContext& ctx) {
  for (const std::size_t unit : units_.users[part]) {
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
      p.var.value = buffer.narrow(0, unit.param_at[i], p.shape.numel()).view(p.shape);
    }
}

void WeightGather::updated(const ExecContext& ctx) {
  for (WeightBuffer& buffer : buffers_) {
    if (buffer.under_way) buffer.under_way->wait(ctx.stream);
    buffer.under_way.reset();
    buffer.unit.reset();
  }
}

// Starts gathering the part's units that are not in their buffers yet. A gather may overwrite a buffer, since a part
// never shares a buffer with the previous part: work that used the old contents is earlier in the stream.
void WeightGather::gather(std::size_t part, ScopePass pass, const ExecContext& ctx) {
  for (const std::size_t at : units_.users[part]) {
    const FsdpUnit& unit = units_.units[at];
    WeightBuffer& buffer = buffers_[static_cast<std::size_t>(unit.buffer)];
    if (buffer.unit == at || (pass == ScopePass::backward && unit.tables)) continue;
    if (buffer.under_way) buffer.under_way->wait(ctx.stream);
    for (const FsdpUnitPiece& p : unit.pieces)
      if (p.piece.owner == comm_.rank())
        copy(buffer.tensor.narrow(0, p.at, p.piece.numel), own_.of(p.piece), ctx.stream);
    buffer.unit = at;
    buffer.under_way = comm_.broadcast_pieces(pieces_in(unit, buffer.tensor), ctx.stream.record());
  }
}

void WeightGather::need(std::size_t part, ScopePass pass, const ExecContext& ctx) {
  gather(part, pass, ctx);
  for (const std::size_t at : units_.users[part]) {
    std::optional<Work>& work = buffers_[static_cast<std::size_t>(units_.units[at].buffer)].under_way;
    if (work) work->wait(ctx.stream);
    work.reset();
  }
  if (pass == ScopePass::backward && part > 0) gather(part - 1, pass, ctx);
  if (pass != ScopePass::backward && part + 1 < units_.parts.size()) gather(part + 1, pass, ctx);
}

std::size_t WeightGather::bytes() const {
  std::size_t all = 0;
  for (const WeightBuffer& buffer : buffers_) all += buffer.tensor.bytes();
  return all;
}

}  // namespace ring
