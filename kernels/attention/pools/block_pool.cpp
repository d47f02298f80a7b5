#include "kernels/attention/pools/block_pool.h"

namespace ring {
namespace {

void check_rows(const char* op, const Tensor& x, const Tensor& pools, const std::vector<PoolSegment>& rows,
                std::int32_t block) {
  RING_CHECK(block > 0, op, ": blocks of ", block, " rows");
  for (const PoolSegment& r : rows)
    RING_CHECK(r.first >= 0 && r.count >= 0 && r.leading_gap >= 0 && r.leading_gap < block && r.out >= 0 &&
                   r.first + std::int64_t{r.count} <= x.dim(0) && std::int64_t{r.out} + r.blocks(block) <= pools.dim(0),
               op, ": rows ", r.first, " to ", r.first + std::int64_t{r.count}, ", the first block without ",
               r.leading_gap, ", do not match ", describe(x), " and ", describe(pools), " from row ", r.out, " on");
}

}  // namespace

void check(const BlockPool& a) {
  constexpr const char* op = "block_pool";
  RING_CHECK(a.x.defined() && a.x.shape().size() == 3 && (a.x.dim(2) <= 1 || a.x.stride(2) == 1), op, ": x is ",
             describe(a.x), ", expected [rows, heads, head dim] with unit last stride");
  RING_CHECK(a.out.defined() && (a.out.dtype() == DType::f32 || a.out.dtype() == a.x.dtype()) &&
                 a.out.is_contiguous() && a.out.shape().size() == 3 && a.out.dim(2) == a.x.dim(2) && a.out.dim(1) > 0 &&
                 a.x.dim(1) % a.out.dim(1) == 0,
             op, ": out is ", describe(a.out), " for ", describe(a.x),
             ", expected [blocks, groups, head dim] of f32 or that type");
  check_rows(op, a.x, a.out, a.rows, a.block);
}

void check(const BlockPoolBackward& a) {
  constexpr const char* op = "block_pool_backward";
  RING_CHECK(a.dx.defined() && a.dx.dtype() == DType::f32 && a.dx.shape().size() == 3 &&
                 (a.dx.dim(2) <= 1 || a.dx.stride(2) == 1),
             op, ": dx is ", describe(a.dx), ", expected f32[rows, heads, head dim] with unit last stride");
  RING_CHECK(a.dout.defined() && a.dout.dtype() == DType::f32 && a.dout.is_contiguous() && a.dout.shape().size() == 3 &&
                 a.dout.dim(1) == a.dx.dim(1) && a.dout.dim(2) == a.dx.dim(2),
             op, ": dout is ", describe(a.dout), " for ", describe(a.dx), ", expected f32[blocks, heads, head dim]");
  check_rows(op, a.dx, a.dout, a.rows, a.block);
}

}  // namespace ring
