#include "trainer/diagnose.h"

#include <cmath>

#include "kernels/elementwise.h"

namespace ring {
namespace {

std::string locate(const std::string& what, const Tensor& t, const ExecContext& ctx) {
  const std::int64_t at = first_non_finite(t, ctx);
  return at < 0 ? "" : str(what, " (", describe(t), ", element ", at, ")");
}

std::string first_in_pieces(const OwnedShard& shard, const FlatBuffer& buffer, const char* what, const ExecContext& ctx,
                            bool with_frozen) {
  for (const ShardPiece& piece : shard.pieces)
    if (with_frozen || !piece.param->is_frozen())
      for (const LogicalParam& part : piece.param->parts) {
        const PieceRows rows = rows_of(piece, part);
        if (!rows.rows) continue;
        const std::int64_t columns = piece.numel / piece.rows;
        const Tensor values = buffer.of(piece).narrow(0, rows.at, rows.rows * columns);
        const Tensor shaped = piece.param->shape.size() == 2 ? values.view({rows.rows, columns}) : values;
        if (std::string found = locate(str(what, part.name), shaped, ctx); !found.empty()) return found;
      }
  return "";
}

}  // namespace

std::int64_t first_non_finite(const Tensor& t, const ExecContext& ctx) {
  Tensor as_float = t;
  if (t.dtype() != DType::f32) {
    Tensor here = t;
    if (t.device() != ctx.stream.device()) copy(here = ctx.empty(t.shape(), t.dtype()), t, ctx.stream);
    cast_kernel({here, as_float = ctx.empty(t.shape())}, ctx);
  }
  const std::vector<float> host = to_host<float>(as_float, ctx.stream);
  for (std::size_t i = 0; i < host.size(); ++i)
    if (!std::isfinite(host[i])) return static_cast<std::int64_t>(i);
  return -1;
}

std::string non_finite_weight(const OwnedShard& shard, const ExecContext& ctx) {
  return first_in_pieces(shard, shard.values, "weight ", ctx, true);
}

std::string non_finite_gradient(const OwnedShard& shard, const ExecContext& ctx) {
  return first_in_pieces(shard, shard.gradients, "gradient of ", ctx, false);
}

std::string non_finite_activation(Model& model, Run run, const Tensor& ids, const Sequences& seqs) {
  std::string found;
  run.tape = nullptr;
  model.watch = [&](const ScopeId& part, const Tensor& t) {
    if (found.empty()) found = locate(str("activation after ", part), t, run.ctx);
  };
  model.hidden(run, ids, seqs);
  model.watch = nullptr;
  return found;
}

}  // namespace ring
