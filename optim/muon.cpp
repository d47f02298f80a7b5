#include "optim/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/philox.h"
#include "kernels/batched_matmul.h"
#include "kernels/muon.h"

namespace ring {
namespace {

constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;  // coefficients of the quintic polynomial
constexpr double kScale = 0.2;                              // root mean square of AdamW's updates

// Matrices updated together: they have the same size, sharding, learning rate and decay.
using Batch = std::vector<const MatrixUpdate*>;

// The size of each unsharded matrix in a batch, and how it is sharded; this process holds one slice.
struct Whole {
  std::int64_t rows, columns, slices;
  Cut cut;

  Whole(const MatrixUpdate& m, const Communicator* tp)
      : rows(m.rows), columns(m.columns), slices(1), cut(tp && tp->size() > 1 ? m.param->placement.cut : Cut::none) {
    if (cut != Cut::outputs && cut != Cut::inputs) return;
    slices = tp->size();
    (cut == Cut::outputs ? rows : columns) *= slices;
  }
  // Returns the bytes of temporary tensors for the update of each matrix.
  std::int64_t work_bytes(DType type) const {
    const std::int64_t side = std::min(rows, columns), gathered = slices > 1 ? 2 * rows * columns : 0;
    return (2 * rows * columns + 2 * side * side + gathered) * static_cast<std::int64_t>(size_of(type));
  }
};

bool alike(const MatrixUpdate& a, const MatrixUpdate& b) {
  return a.rows == b.rows && a.columns == b.columns && a.param->placement.cut == b.param->placement.cut &&
         a.lr_scale == b.lr_scale && a.weight_decay == b.weight_decay;
}

std::vector<Batch> batches_of(const std::vector<MatrixUpdate>& all, const Communicator* tp, DType type) {
  std::vector<Batch> batches;
  for (const MatrixUpdate& m : all) {
    const auto max =
        static_cast<std::size_t>(std::max<std::int64_t>(1, kMuonWorkBytes / Whole(m, tp).work_bytes(type)));
    const auto open =
        std::ranges::find_if(batches, [&](const Batch& b) { return b.size() < max && alike(*b.front(), m); });
    (open == batches.end() ? batches.emplace_back() : *open).push_back(&m);
  }
  return batches;
}

// Copies `slice` [B,r,c] to or from its place in `whole` [B,R,C]; it is slice number s.
void copy_slice(const Tensor& whole, const Tensor& slice, std::int64_t s, Cut cut, bool to_whole,
                const Stream& stream) {
  const auto bytes = static_cast<std::int64_t>(size_of(whole.dtype()));
  const bool rows = cut == Cut::outputs;  // row slices are contiguous within each matrix
  const std::int64_t width = (rows ? slice.dim(1) * slice.dim(2) : slice.dim(2)) * bytes;
  const std::int64_t pitch = (rows ? whole.dim(1) * whole.dim(2) : whole.dim(2)) * bytes;
  const std::int64_t count = rows ? slice.dim(0) : slice.dim(0) * slice.dim(1);
  std::byte* const at = whole.raw() + s * width;
  const auto n = [](std::int64_t x) { return static_cast<std::size_t>(x); };
  if (to_whole)
    stream.impl().copy_rows(at, n(pitch), slice.raw(), n(width), n(width), n(count));
  else
    stream.impl().copy_rows(slice.raw(), n(width), at, n(pitch), n(width), n(count));
}

Tensor gathered(const Tensor& own, const Whole& whole, Communicator& tp, const ExecContext& ctx) {
  const Tensor all = ctx.empty({whole.slices, own.dim(0), own.dim(1), own.dim(2)}, own.dtype());
  tp.all_gather(all, own, ctx.stream.record()).wait(ctx.stream);
  const Tensor out = ctx.empty({own.dim(0), whole.rows, whole.columns}, own.dtype());
  for (std::int64_t s = 0; s < whole.slices; ++s)
    copy_slice(out, all.narrow(0, s, 1).view(own.shape()), s, whole.cut, true, ctx.stream);
  return out;
}

class MuonRule final : public UpdateRule {
 public:
  MuonRule(const OptimizerConfig& config, std::uint64_t seed)
      : config_(config.muon), moments_(config.moments), site_{.seed = seed, .site = site_of("muon.rounding")} {}

  std::vector<StateKind> states() const override { return {moment_kind("momentum", moments_, Fp8Moment::e4m3)}; }
  bool takes(const Param& p) const override { return p.shape.size() == 2 && !p.table; }
  bool is_matrix_rule() const override { return true; }
  double flops(const Shape& whole) const override {
    return newton_schulz_flops(whole[0], whole[1], config_.iterations);
  }

  void update_matrices(const std::vector<MatrixUpdate>& all, Communicator* tp, const ExecContext& ctx) const override {
    const DType type = ctx.stream.device().backend == Backend::cuda ? DType::bf16 : DType::f32;
    for (const Batch& batch : batches_of(all, tp, type)) update_batch(batch, tp, type, ctx);
  }

 private:
  void update_batch(const Batch& batch, Communicator* tp, DType type, const ExecContext& ctx) const {
    const MatrixUpdate& first = *batch.front();
    const Whole whole(first, tp);
    const Tensor own = ctx.empty({std::ssize(batch), first.rows, first.columns}, type);
    const std::vector<MuonMatrix> matrices = matrices_of(batch);
    muon_momentum_kernel({.matrices = matrices,
                          .update = own,
                          .state = first.step,
                          .beta = static_cast<float>(config_.momentum),
                          .nesterov = config_.nesterov,
                          .site = site_},
                         ctx);
    Tensor x = whole.slices > 1 ? gathered(own, whole, *tp, ctx) : own;
    unit_norm_kernel({x}, ctx);
    x = newton_schulz(x, config_.iterations, ctx);
    if (whole.slices > 1) copy_slice(x, own, tp->rank(), whole.cut, false, ctx.stream);
    MuonApply apply{.matrices = matrices, .update = whole.slices > 1 ? own : x, .state = first.step};
    apply.scale = static_cast<float>(kScale * std::sqrt(static_cast<double>(std::max(whole.rows, whole.columns))));
    apply.weight_decay = first.weight_decay;
    apply.lr_scale = first.lr_scale;
    apply.site = site_;
    muon_apply_kernel(apply, ctx);
  }

  // The random bits for rounding are generated for groups of eight elements. A matrix that does not start at a group
  // therefore uses some bits that its neighbour uses, too.
  static std::vector<MuonMatrix> matrices_of(const Batch& batch) {
    std::vector<MuonMatrix> out;
    for (const MatrixUpdate* m : batch)
      out.push_back({m->values, m->gradients, m->states[0], m->weights, m->first_element / 8 * 8, m->scales[0]});
    return out;
  }

  MuonConfig config_;
  MomentType moments_;
  RandomSite site_;
};

}  // namespace

OptimizerKind muon() {
  return [](const OptimizerConfig& config, std::uint64_t seed) { return std::make_unique<MuonRule>(config, seed); };
}

// Each iteration replaces x by a x + P x, with P = b A + c A^2, where A is the smaller of x x^T and x^T x (for a tall
// x: x P).
Tensor newton_schulz(Tensor x, std::int64_t iterations, const ExecContext& ctx) {
  const bool wide = x.dim(1) <= x.dim(2);
  const std::int64_t side = std::min(x.dim(1), x.dim(2));
  const Tensor a = ctx.empty({x.dim(0), side, side}, x.dtype()), p = ctx.empty(a.shape(), x.dtype());
  Tensor next = ctx.empty(x.shape(), x.dtype());
  for (std::int64_t i = 0; i < iterations; ++i) {
    batched_matmul_kernel({.a = x, .b = x, .c = a, .transpose_a = !wide, .transpose_b = wide}, ctx);
    batched_matmul_kernel({.a = a, .b = a, .c = p, .alpha = kC, .add = a, .beta = kB}, ctx);
    batched_matmul_kernel({.a = wide ? p : x, .b = wide ? x : p, .c = next, .add = x, .beta = kA}, ctx);
    std::swap(x, next);
  }
  return x;
}

double newton_schulz_flops(std::int64_t rows, std::int64_t columns, std::int64_t iterations) {
  const auto small = static_cast<double>(std::min(rows, columns)), large = static_cast<double>(std::max(rows, columns));
  return static_cast<double>(iterations) * (4 * small * small * large + 2 * small * small * small);
}

}  // namespace ring
