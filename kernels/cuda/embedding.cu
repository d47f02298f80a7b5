#include "kernels/embedding.h"

#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

struct Table {
  const float* data;
  std::int64_t rows, width;
};

__global__ void embedding_f32(const std::int32_t* ids, Table table, float* out, std::int64_t tokens, bool add) {
  for (std::int64_t n = thread_y(); n < tokens; n += threads_y()) {
    const std::int64_t id = ids[n];
    const bool known = id >= 0 && id < table.rows;
    const float unknown = __int_as_float(0x7fffffff);  // NaN: the step is found not finite, its weights stay
    for (std::int64_t c = 4 * thread_x(); c < table.width; c += 4 * threads_x()) {
      const Quad row =
          known ? load(table.data + id * table.width, c, table.width) : Quad{{unknown, unknown, unknown, unknown}};
      accumulate(out + n * table.width, c, table.width, add ? 1.0f : 0.0f, row);
    }
  }
}

void run_embedding(const Embedding& args, const Context& ctx) {
  const Tensor& table = args.table;
  RING_CHECK(table.shape().size() == 2 && table.contiguous(), "embedding: the table is ", describe(table));
  RING_CHECK(args.ids.contiguous(), "embedding: ids are strided");
  const std::int64_t tokens = args.ids.numel(), width = table.dim(1);
  check_shape("embedding", "out", args.out, {tokens, width});
  check_numel("embedding", "out", args.out, tokens * width);
  launch(ctx, rows_by(tokens, divide_up(width, 4)), embedding_f32, args.ids.data<std::int32_t>(),
         Table{table.data<float>(), table.dim(0), width}, args.out.data<float>(), tokens, args.add);
}

const bool added = embedding_kernel.add(Backend::cuda, {"f32", run_embedding});

}  // namespace
}  // namespace ring::cuda
