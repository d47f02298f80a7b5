#include "kernels/attention/sink.h"

#include <cmath>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec.h"

namespace ring::cpu {
namespace {

// Calls fn for every query and head, with the index of its row in `out`, its index in lse, its head, and
// exp(sink - lse).
template <class Args, class Fn>
void for_query_heads(const Args& args, std::int64_t width, const ExecContext& ctx, const Fn& fn) {
  const std::int64_t rows = args.out.dim(0), heads = args.out.dim(1);
  const float *lse = args.lse.template data<float>(), *sinks = args.sinks.template data<float>();
  ctx.stream.pool().parallel_for(rows, row_grain(heads * width), [=](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t at = h * rows + n;
        fn(n * heads + h, at, h, std::exp(sinks[h] - lse[at]));
      }
  });
}

void run_attention_sink(const AttentionSink& args, const ExecContext& ctx) {
  check(args);
  const Rows out = rows_of("attention_sink", "out", args.out);
  float* const lse = args.lse.data<float>();
  const float* const sinks = args.sinks.data<float>();
  for_query_heads(args, out.width, ctx, [=](std::int64_t row, std::int64_t at, std::int64_t h, float odds) {
    const float factor = 1 / (1 + odds), less = -std::abs(sinks[h] - lse[at]);
    for (std::int64_t i = 0; i < out.width; ++i) out[row][i] *= factor;
    lse[at] = std::max(sinks[h], lse[at]) + std::log1p(std::exp(less));
  });
}

void run_attention_sink_backward(const AttentionSinkBackward& args, const ExecContext& ctx) {
  check(args);
  constexpr const char* op = "attention_sink_backward";
  const Rows out = rows_of(op, "out", args.out), dout = rows_of(op, "dout", args.dout);
  float* const terms = args.terms.data<float>();
  for_query_heads(args, out.width, ctx, [=](std::int64_t row, std::int64_t, std::int64_t, float probability) {
    terms[row] = -probability * dot(dout[row], out[row], out.width);
  });
}

const bool added_sink[] = {attention_sink_kernel.add(Backend::cpu, {"rows", run_attention_sink}),
                           attention_sink_backward_kernel.add(Backend::cpu, {"rows", run_attention_sink_backward})};

}  // namespace
}  // namespace ring::cpu
