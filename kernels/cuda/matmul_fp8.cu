#include "kernels/cuda/matmul_fp8.cuh"

#include "kernels/cuda/device/tile_checks.cuh"
#include "kernels/cuda/hopper.h"
#include "kernels/cuda/launch.h"

namespace ring::cuda::fp8 {
namespace {

CUtensorMapDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::u8: return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    case DType::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    default: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  }
}

// Makes a TMA descriptor for boxes of `height` rows of `width` elements. swizzled: uses the 128-byte swizzle, for boxes
// with rows of 128 bytes. Returns false if TMA cannot address the tensor.
bool make_map(const Tensor& t, int width, int height, bool swizzled, CUtensorMap& to) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(t.dim(1)), static_cast<cuuint64_t>(t.dim(0))};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(t.stride(0)) * size_of(t.dtype())};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(width), static_cast<cuuint32_t>(height)}, steps[2] = {1, 1};
  return tensor_map_encoder()(&to, type_of(t.dtype()), 2, t.raw(), sizes, strides, box, steps,
                              CU_TENSOR_MAP_INTERLEAVE_NONE,
                              swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool make_output_map(const Tensor& c, CUtensorMap& to) {
  return make_map(c, kPanelBytes / static_cast<int>(size_of(c.dtype())), kPanelRows, true, to);
}

bool supports(const MatmulFp8& p, const ExecContext& ctx) {
  const bool half = p.c.dtype() == DType::bf16;
  const bool adds = p.bias.defined() || p.residual.defined();
  CUtensorMap map;
  return p.c.numel() > 0 && p.a.values.dim(1) > 0 && (!adds || (half && p.c.dim(1) % 2 == 0)) && is_hopper(ctx) &&
         tensor_map_encoder() && make_output_map(p.c, map);
}

template <int kWaves, bool kTensorwise, bool kHalf>
void run_tiles(const MatmulFp8& args, const ExecContext& ctx) {
  using Memory = MatmulMemory<kWaves, kTensorwise, kHalf>;
  MatmulParams p{};
  const bool fits = make_map(args.a.values, kDepth, Memory::kRows, true, p.a) &&
                    make_map(args.b.values, kDepth, kColumns, true, p.b) &&
                    (kTensorwise || make_map(args.a.scales, Memory::kRows, 1, false, p.a_scales)) &&
                    make_output_map(args.c, p.c);
  RING_CHECK(fits, "matmul_fp8: the TMA does not support ", describe(args.a.values), " and ", describe(args.b.values));
  p.a_scale = device_data<float>(args.a.scales), p.b_scale = device_data<float>(args.b.scales);
  p.b_scale_stride = args.b.scales.stride(0);
  p.blocks = static_cast<int>(fp8_blocks(args.a.values.dim(1)));
  p.tiles_down = static_cast<int>(divide_up(args.c.dim(0), Memory::kRows));
  p.tiles_across = static_cast<int>(divide_up(args.c.dim(1), kColumns));
  p.accumulate = args.accumulate;
  p.rows = static_cast<int>(args.c.dim(0)), p.columns = static_cast<int>(args.c.dim(1));
  p.bias = device_data<__nv_bfloat16>(args.bias), p.residual = device_data<__nv_bfloat16>(args.residual);
  p.residual_stride = p.residual ? args.residual.stride(0) : 0;
  const std::int64_t tiles = std::int64_t{p.tiles_down} * p.tiles_across;
  launch(ctx, {grid_of(std::min(tiles, num_multiprocessors(ctx))), kThreads, sizeof(Memory) + kAlignment},
         matmul_fp8<kWaves, kTensorwise, kHalf>, p);
}

// Returns the time of the busiest SM for tiles of 128 * `waves` rows, in units of the time of a tile of 128 rows.
std::int64_t rounds(const MatmulFp8& args, int waves, const ExecContext& ctx) {
  const std::int64_t tiles = divide_up(args.c.dim(0), 128 * waves) * divide_up(args.c.dim(1), kColumns);
  return divide_up(tiles, num_multiprocessors(ctx)) * waves;
}

template <int kWaves>
void run_waves(const MatmulFp8& args, const ExecContext& ctx) {
  const bool half = args.c.dtype() == DType::bf16;
  if (args.b.blocks == Fp8Blocks::tensor)
    (half ? run_tiles<kWaves, true, true> : run_tiles<kWaves, true, false>)(args, ctx);
  else
    (half ? run_tiles<kWaves, false, true> : run_tiles<kWaves, false, false>)(args, ctx);
}

// Chooses the tile size: large tiles read the operands fewer times, small ones leave fewer SMs idle.
void run(const MatmulFp8& args, const ExecContext& ctx) {
  check(args);
  (10 * rounds(args, 2, ctx) <= 11 * rounds(args, 1, ctx) ? run_waves<2> : run_waves<1>)(args, ctx);
}

const bool added_matmul_fp8 = matmul_fp8_kernel.add(Backend::cuda, {"own_sm90", run, supports, 10});

}  // namespace
}  // namespace ring::cuda::fp8
