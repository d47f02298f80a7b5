#include "parallel/weights.h"

#include <algorithm>

#include "core/copy_stream.h"

namespace ring {
namespace {

// Returns true if the weight is encoded at each gather and its encoding needs the weight's maximum.
bool has_max(const Param& p) {
  const WeightEncoding* const encoding = encoding_of(p);
  return encoding && encoding->needs_max() && !p.encoded;
}

}  // namespace

std::vector<std::int64_t> weight_buffer_bytes(const FsdpUnits& units, DType weights) {
  std::vector<std::int64_t> buffers(units.buffers.size());
  for (const FsdpUnit& unit : units.units) {
    std::int64_t bytes = 0;
    for (const Param* p : unit.params) bytes += slot_bytes(*p, weights);
    std::int64_t& buffer = buffers[static_cast<std::size_t>(unit.buffer)];
    buffer = std::max(buffer, bytes);
  }
  return buffers;
}

WeightBroadcast::WeightBroadcast(Communicator& comm, const FsdpUnits& units, const Tensor& flat_weights)
    : comm_(comm), units_(units), flat_weights_(flat_weights), under_way_(units.units.size()) {
  for (const FsdpUnit& unit : units.units)
    for (const Param* p : unit.params)
      RING_CHECK(
          p->encoded || (p->var.value.defined() && p->var.value.raw() == flat_weights.narrow(0, p->offset, 1).raw()),
          "the value of ", p->parts[0].name, " is not bound to the flat weights");
}

void WeightBroadcast::on_owners_updated(const ExecContext& ctx) {
  for (std::size_t i = 0; i < units_.units.size(); ++i) {
    std::vector<OwnedPiece> pieces;
    for (const FsdpUnitPiece& p : units_.units[i].pieces)
      if (!p.piece.param->encoded)
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

void WeightBroadcast::wait_for_reads(const ExecContext& ctx) {
  for (std::optional<Work>& work : under_way_)
    if (work) work->wait(ctx.stream);
}

WeightGather::WeightGather(Communicator& comm, Communicator& slices, const FsdpUnits& units, const ExecContext& ctx,
                           const FlatBuffer& own, const EncodedWeights* encoded)
    : comm_(comm), slices_(slices), units_(units), own_(own), encoded_(encoded) {
  for (const std::int64_t bytes : weight_buffer_bytes(units, own.flat.dtype()))
    buffers_.push_back({ctx.zeros({bytes}, DType::u8, Lifetime::run), {}, {}});
  if (own.on_host) {
    uploads_ = copy_stream(ctx.stream);
    uploaded_.resize(units.units.size());
  }
  std::vector<const Param*> with_max;
  for (const FsdpUnit& unit : units.units) {
    std::int64_t offset = 0;
    for (Param* p : unit.params) {
      const std::int64_t bytes = slot_bytes(*p, own.flat.dtype());
      place(*p, buffers_[static_cast<std::size_t>(unit.buffer)].tensor.narrow(0, offset, bytes));
      offset += bytes;
      if (has_max(*p)) with_max.push_back(p);
      RING_CHECK(!own.on_host || !encoding_of(*p), p->parts[0].name, " is on the host, but its format has an encoding");
    }
  }
  if (with_max.empty()) return;
  maxima_ = ctx.zeros({std::ssize(with_max)}, DType::f32, Lifetime::run);
  for (std::size_t i = 0; i < with_max.size(); ++i)
    slots_[with_max[i]].max = maxima_.narrow(0, static_cast<std::int64_t>(i), 1);
}

WeightGather::~WeightGather() {
  try {
    if (uploads_) uploads_->synchronize();  // allowed host wait: shutdown (copies read the weights)
  } catch (const Error&) {
    // The device failed. The code that waits for the device's steps reports the failure.
  }
}

void WeightGather::place(Param& p, const Tensor& bytes) {
  const WeightEncoding* const encoding = encoding_of(p);
  slots_[&p].bytes = encoding ? bytes.narrow(0, 0, encoding->bytes(p)) : bytes;
  p.var.value = slots_[&p].bytes;
  if (encoding) return;
  const DType type = own_.flat.dtype();
  p.var.value = bytes.view_as(type).narrow(0, 0, p.shape.numel()).view(p.shape);
}

void WeightGather::on_owners_updated(const ExecContext& ctx) {
  for (WeightBuffer& buffer : buffers_) {
    if (buffer.under_way) buffer.under_way->wait(ctx.stream);
    buffer.under_way.reset();
    buffer.unit.reset();
  }
  uploaded_.assign(uploaded_.size(), false);
  if (maxima_.defined()) find_maxima(ctx);
}

void WeightGather::wait_for_reads(const ExecContext& ctx) {
  for (WeightBuffer& buffer : buffers_)
    if (buffer.under_way) buffer.under_way->wait(ctx.stream);
}

// Computes the maxima of whole weights: owners have some of a weight's rows, and tensor-parallel ranks have shards.
void WeightGather::find_maxima(const ExecContext& ctx) {
  fill_zero(maxima_, ctx.stream);
  for (const FsdpUnit& unit : units_.units)
    for (const auto& [p, offset] : unit.pieces)
      if (p.owner == comm_.rank() && has_max(*p.param))
        encoding_of(*p.param)->raise_max(rows_of_piece(p), slots_.at(p.param).max, ctx);
  for (Communicator* group : {&comm_, &slices_})
    if (group->size() > 1) group->all_reduce(maxima_, Reduce::max, ctx.stream.record()).wait(ctx.stream);
}

// Writes the rows of this rank's piece to their slot.
void WeightGather::write(const ShardPiece& p, const ExecContext& ctx) const {
  const Slot& slot = slots_.at(p.param);
  if (p.param->encoded) return encoded_->copy_piece(p, slot.bytes, ctx);
  if (const WeightEncoding* const encoding = encoding_of(*p.param))
    return encoding->encode(rows_of_piece(p), slot.max, slot.bytes, ctx);
  const EncodedRange bytes = ranges_of(p)[0];
  copy(slot.bytes.narrow(0, bytes.begin, bytes.size), own_.of(p).view_as(DType::u8), ctx.stream);
}

// Copies this rank's pieces of a unit from host memory into the unit's buffer. The copies start after all work that the
// compute stream has queued so far.
void WeightGather::upload(std::size_t unit, const ExecContext& ctx) {
  uploads_->wait(ctx.stream.record());
  for (const auto& [p, offset] : units_.units[unit].pieces) {
    if (p.owner != comm_.rank()) continue;
    if (!uploaded_[unit] && wait_for_update_) wait_for_update_(*uploads_, p);
    const EncodedRange bytes = ranges_of(p)[0];
    copy(slots_.at(p.param).bytes.narrow(0, bytes.begin, bytes.size), own_.of(p).view_as(DType::u8), *uploads_);
  }
  uploaded_[unit] = true;
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
    if (uploads_) upload(unit_index, ctx);
    std::vector<OwnedPiece> pieces;
    for (const auto& [p, offset] : unit.pieces) {
      if (!uploads_ && p.owner == comm_.rank()) write(p, ctx);
      for (const EncodedRange& r : ranges_of(p))
        pieces.push_back({slots_.at(p.param).bytes.narrow(0, r.begin, r.size), p.owner});
    }
    buffer.unit = unit_index;
    buffer.under_way = comm_.broadcast_pieces(pieces, (uploads_ ? *uploads_ : ctx.stream).record());
  }
}

// Returns the bytes of a piece's rows in the slot of their parameter.
std::vector<EncodedRange> WeightGather::ranges_of(const ShardPiece& p) const {
  if (const WeightEncoding* const encoding = encoding_of(*p.param))
    return encoding->ranges(*p.param, p.first_row, p.rows);
  const auto size = static_cast<std::int64_t>(size_of(own_.flat.dtype()));
  return {{(p.offset - p.param->offset) * size, p.numel * size}};
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
