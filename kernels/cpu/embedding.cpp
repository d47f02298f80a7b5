#include "kernels/embedding.h"

#include <cstring>

#include "kernels/cpu/rows.h"

namespace ring::cpu {
namespace {

void check_ids(const Tensor& ids, std::int64_t rows) {
  const std::int32_t* id = ids.data<std::int32_t>();
  for (std::int64_t n = 0; n < ids.numel(); ++n)
    if (id[n] < 0 || id[n] >= rows)
      fail("embedding: id ", id[n], " at position ", n, " is outside of the table's ", rows, " rows");
}

void check_args(const char* op, const Tensor& ids, const Tensor& table, const Tensor& out, std::int64_t first_id,
                std::int64_t all_rows) {
  RING_CHECK(table.shape().size() == 2 && table.is_contiguous(), op, ": the table is ", describe(table));
  RING_CHECK(ids.is_contiguous(), op, ": ids are strided");
  check_shape(op, "out", out, {ids.numel(), table.dim(1)});
  check_numel(op, "out", out, ids.numel() * table.dim(1));
  check_ids(ids, rows_of_whole(op, table, first_id, all_rows));
}

// Returns the row of an id, or null if the row is in another shard of the table.
template <class T>
T* row_of(T* table, std::int64_t id, std::int64_t first_id, std::int64_t rows, std::int64_t width) {
  const std::int64_t at = id - first_id;
  return at >= 0 && at < rows ? table + at * width : nullptr;
}

void run_embedding(const Embedding& args, const ExecContext& ctx) {
  check_args("embedding", args.ids, args.table, args.out, args.first_id, args.all_rows);
  const std::int32_t* ids = args.ids.data<std::int32_t>();
  const float* table = args.table.data<float>();
  float* out = args.out.data<float>();
  const std::int64_t rows = args.table.dim(0), width = args.table.dim(1), first_id = args.first_id;
  const bool add = args.add;
  ctx.stream.pool().parallel_for(args.ids.numel(), row_grain(width), [=](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t n = begin; n < end; ++n) {
      const float* row = row_of(table, ids[n], first_id, rows, width);
      float* to = out + n * width;
      if (!row) {
        if (!add) std::fill(to, to + width, 0.0f);
      } else if (add) {
        for (std::int64_t c = 0; c < width; ++c) to[c] += row[c];
      } else {
        std::memcpy(to, row, static_cast<std::size_t>(width) * sizeof(float));
      }
    }
  });
}

// Divides the work by columns: every thread processes all ids. Each row is thus summed in the order of the tokens for
// any number of threads, and frequent ids do not unbalance the work.
void run_embedding_backward(const EmbeddingBackward& args, const ExecContext& ctx) {
  check_args("embedding_backward", args.ids, args.dtable, args.dout, args.first_id, args.all_rows);
  const std::int32_t* ids = args.ids.data<std::int32_t>();
  const float* dout = args.dout.data<float>();
  float* dtable = args.dtable.data<float>();
  const std::int64_t tokens = args.ids.numel(), rows = args.dtable.dim(0), width = args.dtable.dim(1);
  const std::int64_t first_id = args.first_id;
  const float beta = args.beta;
  const std::int64_t grain = std::max<std::int64_t>(16, row_grain(tokens + (beta == 1 ? 0 : rows)));
  ctx.stream.pool().parallel_for(
      width, grain,
      [=](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t r = 0; beta != 1 && r < rows; ++r)
          for (std::int64_t c = begin; c < end; ++c)
            dtable[r * width + c] = beta == 0 ? 0.0f : beta * dtable[r * width + c];
        for (std::int64_t n = 0; n < tokens; ++n) {
          float* to = row_of(dtable, ids[n], first_id, rows, width);
          if (!to) continue;
          const float* from = dout + n * width;
          for (std::int64_t c = begin; c < end; ++c) to[c] += from[c];
        }
      },
      16);
}

const bool added = embedding_kernel.add(Backend::cpu, {"rows", run_embedding});
const bool backward_added = embedding_backward_kernel.add(Backend::cpu, {"columns", run_embedding_backward});

}  // namespace
}  // namespace ring::cpu
