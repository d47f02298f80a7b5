#include <algorithm>

#include "autograd/ops.h"
#include "comm/communicator.h"

namespace ring {
namespace {

// Returns `run` narrowed to rows [first, first + count) of this rank's `own` rows, with the row numbers (for dropout)
// that they have in the unchunked call. An op assumes that rank r's rows start at r * count, but they start at r * own
// + first; `shift` is the difference.
Run run_of_rows(const Run& run, std::int64_t own, std::int64_t first, std::int64_t count) {
  const std::int64_t rank = is_tensor_parallel(run) ? run.layout.tp->rank() : 0,
                     ranks = is_tensor_parallel(run) ? run.layout.tp->size() : 1;
  const std::int64_t shift = first + rank * (own - count);
  Run chunk = run;
  if (run.layout.rows.defined())
    chunk.layout.rows = run.layout.rows.narrow(0, shift, ranks * count);
  else
    chunk.first_row += shift;
  return chunk;
}

// Returns x with a recipe that returns x, so that backward fetches an offloaded x once for all chunks.
Var kept_whole(Run& run, const Var& x) {
  if (x.recipe) return x;
  return recomputable(x, run.save(x), [](const ExecContext&, const Tensor& whole) { return whole; });
}

// Returns a chunk of x with its own slot, which is bound to the rows of x's gradient when backward begins.
Var cut(Run& run, const Var& x, std::int64_t first, std::int64_t count) {
  const Var rows{x.value.narrow(0, first, count), x.slot ? std::make_shared<GradSlot>() : nullptr};
  if (!run.tape) return rows;
  return recomputable(rows, run.save(x), [first, count](const ExecContext&, const Tensor& whole) {
    return whole.narrow(0, first, count);
  });
}

void write_to(GradSlot& slot, const Sink& sink) {
  slot.grad = sink.dst;
  slot.bound = true;
  slot.written = sink.beta != 0;
}

struct Chunk {
  SlotPtr in, out;
};

struct ChunkInputs {
  SlotPtr x;
  std::vector<Chunk> chunks;
};

// Runs before the backward of the chunks. Binds their input slots to rows of x's gradient, to which they then write
// directly, and passes each chunk its rows of dy.
void chunks_backward(const Backward& back, const ChunkInputs& inputs, const Shape& shape, std::int64_t rows) {
  const Tensor& dy = back.grad();
  const Sink dx = back.sink(inputs.x, shape, dy.dtype());
  std::int64_t first = 0;
  for (const Chunk& chunk : inputs.chunks) {
    const std::int64_t count = std::min(rows, shape[0] - first);
    if (chunk.in) write_to(*chunk.in, {dx.dst.narrow(0, first, count), dx.beta});
    if (chunk.out) back.accumulate(chunk.out, dy.narrow(0, first, count));
    first += count;
  }
}

}  // namespace

Var map_chunks(Run& run, const Var& x, std::int64_t rows, const RowsFn& f) {
  const std::int64_t own = x.value.dim(0), ranks = is_tensor_parallel(run) ? run.layout.tp->size() : 1;
  const std::int64_t at_once = rows / ranks + (rows % ranks > 0);
  if (rows == 0 || own <= at_once) return f(run, x);
  const Var whole = run.tape ? kept_whole(run, x) : x;
  ChunkInputs inputs{x.slot, {}};
  Tensor y;
  for (std::int64_t first = 0; first < own; first += at_once) {
    const std::int64_t count = std::min(at_once, own - first);
    Run chunk = run_of_rows(run, own, first, count);
    const Var in = cut(chunk, whole, first, count), out = f(chunk, in);
    RING_CHECK(out.value.shape().size() == 2 && out.value.dim(0) == count, "map_chunks: ", count, " rows became ",
               describe(out.value));
    if (!y.defined()) y = run.ctx.empty({own, out.value.dim(1)}, out.value.dtype());
    copy(y.narrow(0, first, count), out.value, run.ctx.stream);
    inputs.chunks.push_back({in.slot, out.slot});
  }
  bool wanted = false;
  visit_all<SlotPtr>(inputs, [&](const SlotPtr& slot) { wanted = wanted || slot; });
  if (!run.tape || !wanted) return {y, nullptr};
  return run.record("chunks", y, inputs,
                    [shape = x.value.shape(), rows = at_once](const Backward& back, const ChunkInputs& of) {
                      chunks_backward(back, of, shape, rows);
                    });
}

}  // namespace ring
