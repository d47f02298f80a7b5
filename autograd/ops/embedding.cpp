#include "kernels/embedding.h"

#include "autograd/ops.h"
#include "comm/communicator.h"

namespace ring {
namespace {

// Looks up ids in `table`: the whole table, or a shard that begins at row first_id of all_rows rows (see Embedding).
Var look_up(Run& run, const Tensor& ids, const Var& table, std::int64_t first_id, std::int64_t all_rows) {
  RING_CHECK(ids.dtype() == DType::i32 && ids.shape().size() == 1 && table.value.shape().size() == 2, "embedding: ids ",
             describe(ids), " into table ", describe(table.value), ": expected i32[N] and [rows,C]");
  const Tensor y = run.ctx.empty({ids.dim(0), table.value.dim(1)}, table.value.dtype());
  embedding_kernel({.ids = ids, .table = table.value, .out = y, .first_id = first_id, .all_rows = all_rows}, run.ctx);
  if (!run.records(table)) return {y, nullptr};
  const auto rule = [shape = table.value.shape(), type = table.value.dtype(), first_id, all_rows](
                        const Backward& back, const SlotPtr& input, const Saved& saved_ids) {
    const Sink s = back.sink(input, shape, type);
    embedding_backward_kernel({.ids = saved_ids.get(back.ctx),
                               .dout = back.grad(),
                               .dtable = s.dst,
                               .beta = s.beta,
                               .first_id = first_id,
                               .all_rows = all_rows},
                              back.ctx);
  };
  return run.record("embedding", y, table.slot, save_in_place(ids), rule);
}

}  // namespace

Var embedding(Run& run, const Tensor& ids, const Var& table) { return look_up(run, ids, table, 0, 0); }

// Each process looks up the ids in its shard; the other rows are zero, so that the sum is exact.
Var vocab_parallel_embedding(Run& run, const Tensor& ids, const Var& table) {
  if (!is_tensor_parallel(run)) return embedding(run, ids, table);
  RING_CHECK(table.value.shape().size() == 2, "embedding: the table is ", describe(table.value));
  const std::int64_t rows = table.value.dim(0);
  return reduce_scatter_rows(run, look_up(run, ids, table, run.layout.tp->rank() * rows, run.layout.tp->size() * rows));
}

}  // namespace ring
