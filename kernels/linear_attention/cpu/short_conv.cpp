#include "kernels/linear_attention/short_conv.h"

#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec.h"

namespace ring::cpu {
namespace {

// One document. Its tokens -(K-1) to -1 are the K - 1 rows before it, which `initial` holds.
struct ConvDocument {
  std::int64_t first, count;  // rows
  float* carried;             // [K-1,C]: this document's part of `initial` or of its gradient; null means zeros
};

template <class Args>
void check_conv(const char* op, const Args& a) {
  RING_CHECK(a.x.defined() && a.x.shape().size() == 2 && a.w.defined() && a.w.numel() % a.x.dim(1) == 0 &&
                 a.w.is_contiguous() && a.w.numel() > 0,
             op, ": x is ", describe(a.x), ", w is ", describe(a.w), ", expected [N,C] and [C K]");
  if (a.initial.defined())
    check_numel(op, "initial", a.initial, std::ssize(a.documents) * (a.kernel() - 1) * a.x.dim(1));
}

float* carried_of(const Tensor& all, std::int64_t document, std::int64_t numel) {
  return all.defined() ? all.data<float>() + document * numel : nullptr;
}

// Returns the weights as [K,C], so that loops over channels vectorize.
Tensor by_taps(const Tensor& w, std::int64_t channels, const ExecContext& ctx) {
  const std::int64_t taps = w.numel() / channels;
  Tensor t = ctx.empty({taps, channels});
  for (std::int64_t c = 0; c < channels; ++c)
    for (std::int64_t j = 0; j < taps; ++j) t.data<float>()[j * channels + c] = w.data<float>()[c * taps + j];
  return t;
}

// Returns the inputs of token t of a document; if t < 0, those of a token before it, from `carried`. Returns null if
// there is no `carried`: these inputs are then 0.
const float* token_of(const Rows& x, const ConvDocument& d, std::int64_t t, std::int64_t taps) {
  if (t >= 0) return x[d.first + t];
  return d.carried ? d.carried + (taps - 1 + t) * x.width : nullptr;
}

// Stores the output of the convolution for token t, before SiLU.
void convolve(const Rows& x, const ConvDocument& d, std::int64_t t, const Tensor& weights, float* to) {
  const std::int64_t taps = weights.dim(0);
  std::fill_n(to, x.width, 0.0f);
  for (std::int64_t j = 0; j < taps; ++j) {
    const float *in = token_of(x, d, t - taps + 1 + j, taps), *w = weights.data<float>() + j * x.width;
    if (!in) continue;
#pragma GCC ivdep
    for (std::int64_t c = 0; c < x.width; ++c) to[c] += w[c] * in[c];
  }
}

// Calls fn(document, token, thread) for all tokens.
template <class Fn>
void for_tokens(const std::vector<Span>& documents, std::int64_t grain, const ExecContext& ctx, const Fn& fn) {
  for (std::size_t b = 0; b < documents.size(); ++b)
    ctx.stream.pool().parallel_for(documents[b].count, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
      for (std::int64_t t = begin; t < end; ++t) fn(b, t, thread);
    });
}

std::vector<ConvDocument> documents_of(const std::vector<Span>& spans, const Tensor& carried, std::int64_t numel) {
  std::vector<ConvDocument> all;
  for (std::size_t b = 0; b < spans.size(); ++b)
    all.push_back({spans[b].first, spans[b].count, carried_of(carried, static_cast<std::int64_t>(b), numel)});
  return all;
}

// Copies the last K - 1 tokens of each document to `final`, in ascending order: if `final` is the memory of `carried`,
// rows move towards the beginning.
void write_final(const Tensor& final, const Rows& x, const std::vector<ConvDocument>& documents, std::int64_t taps) {
  for (std::size_t b = 0; b < documents.size(); ++b) {
    float* to = carried_of(final, static_cast<std::int64_t>(b), (taps - 1) * x.width);
    for (std::int64_t i = 0; i < taps - 1; ++i) {
      const float* from = token_of(x, documents[b], documents[b].count - (taps - 1) + i, taps);
      if (from)
        std::copy_n(from, x.width, to + i * x.width);
      else
        std::fill_n(to + i * x.width, x.width, 0.0f);
    }
  }
}

void run_short_conv(const ShortConv& args, const ExecContext& ctx) {
  constexpr const char* op = "short_conv";
  check_conv(op, args);
  check_shape(op, "y", args.y, args.x.shape());
  const Rows x = rows_of(op, "x", args.x), y = rows_of(op, "y", args.y);
  const std::int64_t taps = args.kernel();
  const std::vector<ConvDocument> documents = documents_of(args.documents, args.initial, (taps - 1) * x.width);
  const Tensor weights = by_taps(args.w, x.width, ctx);
  for_rows_outside(args.documents, x.count, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t n = first; n < first + count; ++n) std::fill_n(y[n], x.width, 0.0f);
  });
  for_tokens(args.documents, row_grain((taps + 8) * x.width), ctx, [&](std::size_t b, std::int64_t t, int) {
    float* out = y[documents[b].first + t];
    convolve(x, documents[b], t, weights, out);
#pragma GCC ivdep
    for (std::int64_t c = 0; c < x.width; ++c) out[c] *= sigmoid_fast(out[c]);
  });
  if (args.final.defined()) write_final(args.final, x, documents, taps);
}

// Adds the gradient of the inputs of token t; if t < 0, of a token before the document. These inputs enter the
// convolution's outputs for tokens t to t + K - 1, whose gradients are in `sums`.
void add_token_gradient(const Rows& sums, const ConvDocument& d, std::int64_t t, const Tensor& weights, float* to) {
  const std::int64_t taps = weights.dim(0);
  for (std::int64_t j = 0; j < taps; ++j) {
    const std::int64_t of = t + taps - 1 - j;
    if (of < 0 || of >= d.count) continue;
    const float *w = weights.data<float>() + j * sums.width, *ds = sums[d.first + of];
#pragma GCC ivdep
    for (std::int64_t c = 0; c < sums.width; ++c) to[c] += w[c] * ds[c];
  }
}

// Computes to = beta * to + gradient of the inputs of token t.
void store_token_gradient(const ShortConvBackward& args, const Rows& sums, const ConvDocument& d, std::size_t document,
                          std::int64_t t, const Tensor& weights, float beta, float* to) {
  const std::int64_t width = sums.width, kept = weights.dim(0) - 1, i = t - (d.count - kept);
  for (std::int64_t c = 0; c < width; ++c) to[c] = beta == 0 ? 0 : beta * to[c];
  add_token_gradient(sums, d, t, weights, to);
  if (!args.dfinal.defined() || i < 0) return;
  const float* dfinal = carried_of(args.dfinal, static_cast<std::int64_t>(document), kept * width) + i * width;
  for (std::int64_t c = 0; c < width; ++c) to[c] += dfinal[c];
}

// Returns the gradients of the convolution's outputs before SiLU. Adds the gradients of the weights to `dw`, [K,C] for
// each thread.
Tensor sum_gradients(const ShortConvBackward& args, const std::vector<ConvDocument>& documents, const Tensor& weights,
                     const Partials& dw, std::int64_t grain, const ExecContext& ctx) {
  constexpr const char* op = "short_conv_backward";
  const Rows x = rows_of(op, "x", args.x), dy = rows_of(op, "dy", args.dy);
  const std::int64_t taps = weights.dim(0);
  Tensor all = ctx.empty(args.x.shape());
  for_tokens(args.documents, grain, ctx, [&](std::size_t b, std::int64_t t, int thread) {
    const ConvDocument& d = documents[b];
    float* sum = all.data<float>() + (d.first + t) * x.width;
    const float* g = dy[d.first + t];
    convolve(x, d, t, weights, sum);
#pragma GCC ivdep
    for (std::int64_t c = 0; c < x.width; ++c) {
      const float s = sigmoid_fast(sum[c]);
      sum[c] = g[c] * s * (1 + sum[c] * (1 - s));
    }
    for (std::int64_t j = 0; j < taps; ++j)
      if (const float* in = token_of(x, d, t - taps + 1 + j, taps)) {
        float* to = dw[thread] + j * x.width;
#pragma GCC ivdep
        for (std::int64_t c = 0; c < x.width; ++c) to[c] += sum[c] * in[c];
      }
  });
  return all;
}

void store_weight_gradient(const ShortConvBackward& args, const Partials& partials, std::int64_t channels,
                           const ExecContext& ctx) {
  const std::int64_t taps = args.kernel();
  const Tensor all = ctx.empty({args.w.numel()});
  partials.add_to(all.data<float>(), 0, 0, args.w.numel());
  float* to = args.dw.data<float>();
  for (std::int64_t c = 0; c < channels; ++c)
    for (std::int64_t j = 0; j < taps; ++j, ++to) {
      const float value = all.data<float>()[j * channels + c];
      *to = args.beta_w == 0 ? value : args.beta_w * *to + value;
    }
}

void run_short_conv_backward(const ShortConvBackward& args, const ExecContext& ctx) {
  constexpr const char* op = "short_conv_backward";
  check_conv(op, args);
  check_shape(op, "dy", args.dy, args.x.shape());
  const std::int64_t width = args.x.dim(1), taps = args.kernel(), grain = row_grain((4 * taps + 16) * width);
  const std::vector<ConvDocument> documents = documents_of(args.documents, args.initial, (taps - 1) * width);
  const Tensor weights = by_taps(args.w, width, ctx);
  const Partials dw(ctx, ctx.stream.pool().size(), args.w.numel());
  const Tensor gradients = sum_gradients(args, documents, weights, dw, grain, ctx);
  const Rows sums = rows_of(op, "sums", gradients);
  if (args.dx.defined()) {
    const Rows dx = rows_of(op, "dx", args.dx);
    for_rows_outside(args.documents, dx.count, [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t n = first; n < first + count; ++n)
        for (std::int64_t c = 0; c < width; ++c) dx[n][c] = args.beta_x == 0 ? 0 : args.beta_x * dx[n][c];
    });
    for_tokens(args.documents, grain, ctx, [&](std::size_t b, std::int64_t t, int) {
      store_token_gradient(args, sums, documents[b], b, t, weights, args.beta_x, dx[documents[b].first + t]);
    });
  }
  if (args.dinitial.defined())
    for (std::size_t b = 0; b < documents.size(); ++b) {
      float* to = carried_of(args.dinitial, static_cast<std::int64_t>(b), (taps - 1) * width);
      for (std::int64_t i = 0; i < taps - 1; ++i)
        store_token_gradient(args, sums, documents[b], b, i - (taps - 1), weights, args.beta_initial, to + i * width);
    }
  if (args.dw.defined()) store_weight_gradient(args, dw, width, ctx);
}

const bool added_short_conv[] = {short_conv_kernel.add(Backend::cpu, {"channels", run_short_conv}),
                                 short_conv_backward_kernel.add(Backend::cpu, {"channels", run_short_conv_backward})};

}  // namespace
}  // namespace ring::cpu
