#include "kernels/embedding.h"

#include "autograd/ops.h"

namespace ring {

Var embedding(Run& run, const Tensor& ids, const Var& table) {
  RING_CHECK(ids.dtype() == DType::i32 && ids.shape().size() == 1 && table.value.shape().size() == 2, "embedding: ids ",
             describe(ids), " into table ", describe(table.value), ": expected i32[N] and [rows,C]");
  const Tensor y = run.ctx.empty({ids.dim(0), table.value.dim(1)}, table.value.dtype());
  embedding_kernel({.ids = ids, .table = table.value, .out = y}, run.ctx);
  if (!run.tape) return {y, nullptr};
  return run.tape->record("embedding", y, {table.slot}, [ids, w = table.value](Backward& back) {
    if (!back.wants(0)) return;
    const Sink s = back.sink(0, w.shape(), w.dtype());
    embedding_backward_kernel({.ids = ids, .dout = back.grad(), .dtable = s.dst, .beta = s.beta}, back.ctx);
  });
}

}  // namespace ring
