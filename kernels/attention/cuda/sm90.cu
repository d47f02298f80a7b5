// Registers the Hopper kernels as candidates for bf16 tensors with head dims of up to 256.

#include "kernels/attention/cuda/sm90.cuh"

#include "kernels/attention/cuda/dropout.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/hopper.h"

namespace ring::cuda::sm90 {
namespace {

// Compile-time tests: TMA loads of rows accept only bf16 tiles of 64 rows.
template <class To>
concept LoadsRows = requires(To to, const TensorMap& map, const TmaRows& at, Barrier& full) {
  tma_load_rows(to, map, at, 0, 0, full);
};
static_assert(LoadsRows<SmemView<Bf16, kPart, 128, Swizzle::b128, 192>>);
static_assert(!LoadsRows<SmemView<Bf16, 128, 128, Swizzle::b128>>, "not one box of rows");
static_assert(!LoadsRows<SmemView<float, kPart, 64, Swizzle::b128>>, "not bf16");
static_assert(!LoadsRows<SmemView<Bf16, kPart, 64, Swizzle::none>>, "TMA writes swizzled rows");
static_assert(!LoadsRows<std::uint32_t>, "the tile's shape is unknown");

// Returns true if rows can be written with 16-byte stores.
bool fits_output(const Tensor& t) {
  const std::int64_t each = 16 / static_cast<std::int64_t>(size_of(t.dtype()));
  return is_aligned(t.raw()) && t.stride(0) % each == 0 && t.stride(1) % each == 0;
}

template <class Args>
bool fits_all(const Args& a, std::initializer_list<Tensor> operands, std::initializer_list<Tensor> outputs,
              const ExecContext& ctx) {
  if (a.q.dim(2) > 256 || !(a.scale > 0) || a.soft_cap != 0 || !is_hopper(ctx) || !tensor_map_encoder()) return false;
  TensorMap boxes;
  for (const BranchPass& pass : passes_of(a.pattern))
    for (const Tensor& t : operands)
      if (t.dtype() != DType::bf16 || !make_tensor_map(t, pass.rate, boxes)) return false;
  for (const Tensor& t : outputs)
    if (t.defined() && !fits_output(t)) return false;
  return true;
}

bool supports_forward(const Attention& a, const ExecContext& ctx) {
  return fits_all(a, {a.q, a.k, a.v}, {a.out, a.carry}, ctx);
}
bool supports_backward(const AttentionBackward& a, const ExecContext& ctx) {
  return fits_all(a, {a.q, a.k, a.v, a.dout}, {a.dq, a.dk, a.dv, a.carry_dq, a.carry_dk, a.carry_dv}, ctx);
}

// Row lengths that decide between kernels. kShortRow: longer rows use blocks of 192 queries, which are faster than
// blocks of 128, but which shorter rows do not fill; lists need blocks of 128. kShortestRow: up to this length, the
// fused backward for wide heads is slower, since it cannot hide its prologue and epilogue per block of keys.
constexpr std::int32_t kShortRow = 1024, kShortestRow = 512;
std::int32_t longest(const BranchPass& pass, const std::vector<Span>& spans) {
  std::int32_t most = 0;
  for (const Span& s : spans) most = std::max(most, s.count);
  return std::min(most, pass.segment) / pass.rate;
}

template <bool drops>
void run_pass(const Attention& one, const BranchPass& pass, const Tensor& keys, const ExecContext& ctx) {
  if (one.q.dim(2) > 128)
    run_forward<256, 2, drops>(one, pass, keys, ctx);
  else if (one.q.dim(2) > 64)
    run_forward<128, 2, drops>(one, pass, keys, ctx);
  else if (pass.listed || longest(pass, one.queries) <= kShortRow)
    run_forward<64, 2, drops>(one, pass, keys, ctx);
  else
    run_forward<64, 3, drops>(one, pass, keys, ctx);
}

void forward(const Attention& args, const ExecContext& ctx) {
  check(args);
  fill_outside(args, ctx);
  const Tensor keys = dropout_keys(args.dropout, args.lse, ctx);
  const auto run = keys.defined() ? run_pass<true> : run_pass<false>;
  forward_passes(
      args, ctx, [&](const Tensor& lse) { fill_no_keys(lse, ctx); },
      [&](const Attention& one, const BranchPass& pass) { run(one, pass, keys, ctx); });
}

// Returns true if the fused backward (5 GEMMs) can run. Its registers suffice for heads of up to 128. The order in
// which blocks of keys add to dq must follow from a few numbers; for block patterns, it must be allowed to vary between
// runs. For selected blocks, two separate kernels were faster in every measured shape (docs/measured/attention.md).
bool in_one_kernel(const AttentionBackward& args, const ExecContext& ctx) {
  if (args.q.dim(2) > 128) return false;
  if (args.pattern.blocks) return !ctx.deterministic && !args.pattern.selects();
  const std::vector<BranchPass> passes = passes_of(args.pattern);
  return args.pattern.sinks == 0 && std::ranges::all_of(passes, [](const BranchPass& p) { return p.finer == 0; });
}

template <bool drops>
void run_passes(const AttentionBackward& args, const RowStatistics& statistics, const ExecContext& ctx) {
  const bool narrow = args.q.dim(2) <= 64, wide = args.q.dim(2) > 128;
  const auto fused = narrow ? run_fused<64, drops> : run_fused<128, drops>;
  const auto queries = narrow ? run_backward<Stationary::q, 64, drops>
                       : wide ? run_backward<Stationary::q, 256, drops>
                              : run_backward<Stationary::q, 128, drops>;
  const auto keys = narrow ? run_backward<Stationary::kv, 64, drops>
                    : wide ? run_backward<Stationary::kv, 256, drops>
                           : run_backward<Stationary::kv, 128, drops>;
  if (in_one_kernel(args, ctx))
    return whole_backward_passes(args, ctx, [&](const AttentionBackward& one, const BranchPass& pass) {
      if (narrow || pass.listed || longest(pass, args.queries) > kShortestRow) return fused(one, pass, statistics, ctx);
      queries(one, pass, statistics, ctx);
      keys(one, pass, statistics, ctx);
    });
  backward_passes(args, ctx, [&](const AttentionBackward& one, const BranchPass& pass, Gradient which) {
    (which == Gradient::queries ? queries : keys)(one, pass, statistics, ctx);
  });
}

void backward(const AttentionBackward& args, const ExecContext& ctx) {
  check(args);
  fill_outside(args, ctx);
  const RowStatistics statistics = row_statistics(args, ctx);
  (statistics.keys.defined() ? run_passes<true> : run_passes<false>)(args, statistics, ctx);
}

const bool added_sm90[] = {
    attention_kernel.add(Backend::cuda, {"own_sm90", forward, supports_forward, 15}),
    attention_backward_kernel.add(Backend::cuda, {"own_sm90", backward, supports_backward, 15}),
};

}  // namespace

bool make_tensor_map(const Tensor& t, int rate, TensorMap& to) {
  const auto encode = tensor_map_encoder();
  if (!encode || !t.defined() || t.dtype() != DType::bf16 || t.shape().size() != 3 || t.stride(2) != 1 ||
      t.dim(0) == 0 || t.dim(0) % rate != 0)
    return false;
  const auto bytes = [](std::int64_t elements) { return static_cast<cuuint64_t>(2 * elements); };
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(t.dim(2)), static_cast<cuuint64_t>(rate),
                               static_cast<cuuint64_t>(t.dim(1)), static_cast<cuuint64_t>(t.dim(0) / rate)};
  const cuuint64_t strides[3] = {bytes(t.stride(0)), bytes(t.stride(1)), bytes(t.stride(0) * rate)};
  const cuuint32_t box[4] = {64, 1, 1, kPart}, steps[4] = {1, 1, 1, 1};
  return encode(&to.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, t.raw(), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

std::int64_t grid_blocks(std::int64_t work, const ExecContext& ctx) { return std::min(work, num_multiprocessors(ctx)); }

}  // namespace ring::cuda::sm90
