#include "parallel/encoded_weights.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise.h"

namespace ring {
namespace {

std::int64_t bytes_of_piece(const ShardPiece& p) {
  std::int64_t bytes = 0;
  for (const EncodedRange& r : encoding_of(*p.param)->ranges(*p.param, p.first_row, p.rows)) bytes += r.size;
  return bytes;
}

// Calls use(range of the encoded weight, the same bytes within the piece's encoded bytes) for each range of the piece.
template <class Use>
void for_each_range(const ShardPiece& p, const Tensor& encoded, const Tensor& of_piece, const Use& use) {
  std::int64_t at = 0;
  for (const EncodedRange& r : encoding_of(*p.param)->ranges(*p.param, p.first_row, p.rows)) {
    use(encoded.narrow(0, r.begin, r.size), of_piece.narrow(0, at, r.size));
    at += r.size;
  }
}

}  // namespace

std::int64_t slot_bytes(const Param& p, DType weights) {
  constexpr std::int64_t kAlignment = 256;
  const WeightEncoding* const encoding = encoding_of(p);
  const std::int64_t bytes =
      encoding ? encoding->bytes(p) : p.shape.numel() * static_cast<std::int64_t>(size_of(weights));
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t EncodedWeights::device_bytes(const Parameters& params, const std::vector<ShardPiece>& own, bool gathered) {
  std::int64_t bytes = 0;
  for (const Param* p : params.layout())
    if (p->encoded && !gathered) bytes += slot_bytes(*p, DType::u8);
  for (const ShardPiece& p : own)
    if (p.param->encoded && gathered) bytes += bytes_of_piece(p);
  return bytes;
}

EncodedWeights::EncodedWeights(Ranks ranks, const OwnedShard& shard, const Parameters& params, DType weights,
                               const ExecContext& ctx)
    : ranks_(std::move(ranks)), shard_(shard), weights_(weights) {
  const auto is_plain = [](const ShardPiece& p) { return !p.param->encoded; };
  std::erase_if(ranks_.plan, is_plain);
  own_ = shard.pieces;
  std::erase_if(own_, is_plain);
  params_ = params.layout();
  std::erase_if(params_, [](const Param* p) { return !p->encoded; });
  all_ = ctx.zeros({device_bytes(params, own_, ranks_.gathered)}, DType::u8, Lifetime::run);
  std::int64_t at = 0;
  if (ranks_.gathered) {
    for (const ShardPiece& p : own_) {
      own_encoded_[p.offset] = all_.narrow(0, at, bytes_of_piece(p));
      at += bytes_of_piece(p);
    }
    return;
  }
  for (Param* p : params_) {
    p->var.value = all_.narrow(0, at, encoding_of(*p)->bytes(*p));
    at += slot_bytes(*p, DType::u8);
  }
}

// Calls use() repeatedly, each time with some of the rows of a piece, converted to the dtype of the weights.
void EncodedWeights::for_each_rows(const ShardPiece& p, const ExecContext& ctx, const UseRows& use) const {
  constexpr std::int64_t max = 1 << 22;  // elements staged on the device at a time
  const std::int64_t multiple = encoding_of(*p.param)->row_multiple(), columns = p.numel / p.rows;
  const std::int64_t at_once = std::max(max / columns / multiple, std::int64_t{1}) * multiple;
  const Tensor values = shard_.values.of(p).view({p.rows, columns});
  for (std::int64_t first = 0; first < p.rows; first += at_once) {
    Tensor rows = values.narrow(0, first, std::min(at_once, p.rows - first));
    if (rows.device() != ctx.stream.device()) {
      const Tensor here = ctx.empty(rows.shape(), rows.dtype(), Lifetime::run);
      copy(here, rows, ctx.stream);
      rows = here;
    }
    if (rows.dtype() != weights_) {
      const Tensor cast = ctx.empty(rows.shape(), weights_, Lifetime::run);
      cast_kernel({rows, cast}, ctx);
      rows = cast;
    }
    use({*p.param, p.first_row + first, rows});
  }
}

// Returns the largest magnitude of each whole weight if the encoding needs it. Reduces over the ranks, because owners
// have only some of a weight's rows, and tensor-parallel ranks have shards.
std::map<const Param*, Tensor> EncodedWeights::find_maxima(const ExecContext& ctx) const {
  std::map<const Param*, Tensor> maxima;
  const auto needs_max = [](const Param* p) { return encoding_of(*p)->needs_max(); };
  if (std::ranges::none_of(params_, needs_max)) return maxima;
  const Tensor all = ctx.zeros({std::ssize(params_)}, DType::f32, Lifetime::run);
  for (std::size_t i = 0; i < params_.size(); ++i) maxima[params_[i]] = all.narrow(0, static_cast<std::int64_t>(i), 1);
  for (const ShardPiece& p : own_)
    if (needs_max(p.param))
      for_each_rows(p, ctx,
                    [&](const WeightRows& rows) { encoding_of(*p.param)->raise_max(rows, maxima.at(p.param), ctx); });
  for (Communicator* group : {&ranks_.data, &ranks_.slices})
    if (group->size() > 1) group->all_reduce(all, Reduce::max, ctx.stream.record()).wait(ctx.stream);
  return maxima;
}

void EncodedWeights::encode(const ExecContext& ctx) const {
  const std::map<const Param*, Tensor> maxima = find_maxima(ctx);
  for (const ShardPiece& p : own_) {
    const WeightEncoding& encoding = *encoding_of(*p.param);
    const Tensor max = encoding.needs_max() ? maxima.at(p.param) : Tensor();
    const Tensor encoded =
        ranks_.gathered ? ctx.zeros({encoding.bytes(*p.param)}, DType::u8, Lifetime::run) : p.param->var.value;
    for_each_rows(p, ctx, [&](const WeightRows& rows) { encoding.encode(rows, max, encoded, ctx); });
    if (!ranks_.gathered) continue;
    for_each_range(p, encoded, own_encoded_.at(p.offset),
                   [&](const Tensor& whole, const Tensor& piece) { copy(piece, whole, ctx.stream); });
  }
  if (!ranks_.gathered) broadcast(ctx);
}

void EncodedWeights::broadcast(const ExecContext& ctx) const {
  for (const ShardPiece& p : ranks_.plan) {
    std::vector<OwnedPiece> pieces;
    for (const EncodedRange& r : encoding_of(*p.param)->ranges(*p.param, p.first_row, p.rows))
      pieces.push_back({p.param->var.value.narrow(0, r.begin, r.size), p.owner});
    ranks_.data.broadcast_pieces(pieces, ctx.stream.record()).wait(ctx.stream);
  }
}

void EncodedWeights::copy_piece(const ShardPiece& p, const Tensor& encoded, const ExecContext& ctx) const {
  for_each_range(p, encoded, own_encoded_.at(p.offset),
                 [&](const Tensor& whole, const Tensor& piece) { copy(whole, piece, ctx.stream); });
}

}  // namespace ring
