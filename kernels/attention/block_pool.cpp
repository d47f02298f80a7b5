#include "kernels/attention/block_pool.h"

namespace ring {

void check(const BlockPool& a) {
  constexpr const char* op = "block_pool";
  RING_CHECK(a.x.defined() && a.x.shape().size() == 3 && (a.x.dim(2) <= 1 || a.x.stride(2) == 1), op, ": x is ",
             describe(a.x), ", expected [rows, heads, head dim] with unit last stride");
  RING_CHECK(a.out.defined() && a.out.dtype() == DType::f32 && a.out.contiguous() && a.out.shape().size() == 3 &&
                 a.out.dim(2) == a.x.dim(2) && a.out.dim(1) > 0 && a.x.dim(1) % a.out.dim(1) == 0,
             op, ": out is ", describe(a.out), " for ", describe(a.x), ", expected f32[blocks, groups, head dim]");
  RING_CHECK(a.block > 0, op, ": blocks of ", a.block, " rows");
  for (const PooledRows& r : a.rows)
    RING_CHECK(r.first >= 0 && r.count >= 0 && r.skipped >= 0 && r.skipped < a.block && r.out >= 0 &&
                   r.first + std::int64_t{r.count} <= a.x.dim(0) &&
                   std::int64_t{r.out} + r.blocks(a.block) <= a.out.dim(0),
               op, ": rows ", r.first, " to ", r.first + std::int64_t{r.count}, ", the first block without ", r.skipped,
               ", do not go from ", describe(a.x), " to ", describe(a.out), " from row ", r.out, " on");
}

}  // namespace ring
