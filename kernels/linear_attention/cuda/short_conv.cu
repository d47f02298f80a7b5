// Thread x of a block owns a pack of channels and walks through some rows of a document. Inputs of a document's tokens
// -(K-1) to -1 are those of `initial`.

#include "kernels/attention/cuda/documents.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/linear_attention/cuda/outside.cuh"
#include "kernels/linear_attention/short_conv.h"
#include "kernels/matmul.h"

namespace ring::cuda {
namespace {

struct ConvDocument {
  std::int64_t first;
  int count, index;  // rows; which document of the call it is
};

template <class T>
struct ConvInput {
  const T *x, *w;  // w [C K]
  std::int64_t stride, channels;
  const float* initial;  // [documents,K-1,C]; null means zeros
  int taps, rows_per_block;
};

// Loads n channels of token t of a document, which may be a carried one.
template <int n, class T>
__device__ inline Floats<n> conv_token(const ConvInput<T>& a, const ConvDocument& d, int t, std::int64_t c) {
  if (t >= 0) return unpack(load_pack<T, n>(a.x + (d.first + t) * a.stride + c));
  Floats<n> f;
  const float* carried = a.initial + ((d.index + std::int64_t{1}) * (a.taps - 1) + t) * a.channels + c;
#pragma unroll
  for (int i = 0; i < n; ++i) f.v[i] = a.initial ? carried[i] : 0.0f;
  return f;
}

// The weights of a thread's channels: in registers if their number is known at compile time.
template <class T, int n, int taps>
struct ConvWeights {
  float v[n][taps];
  __device__ ConvWeights(const ConvInput<T>& a, std::int64_t c) {
#pragma unroll
    for (int i = 0; i < n; ++i)
#pragma unroll
      for (int j = 0; j < taps; ++j) v[i][j] = to_float(a.w[(c + i) * taps + j]);
  }
  __device__ float at(int i, int j) const { return v[i][j]; }
};
template <class T>
struct ConvWeights<T, 1, 0> {
  const T* of_channel;
  __device__ ConvWeights(const ConvInput<T>& a, std::int64_t c) : of_channel(a.w + c * a.taps) {}
  __device__ float at(int, int j) const { return to_float(of_channel[j]); }
};

// Returns the sums of token t before SiLU.
template <class T, int n, int taps>
__device__ inline Floats<n> convolve(const ConvInput<T>& a, const ConvWeights<T, n, taps>& w, const ConvDocument& d,
                                     int t, std::int64_t c) {
  const int count = taps ? taps : a.taps;
  Floats<n> sum{};
#pragma unroll
  for (int j = 0; j < count; ++j) {
    const Floats<n> x = conv_token<n>(a, d, t - count + 1 + j, c);
#pragma unroll
    for (int i = 0; i < n; ++i) sum.v[i] += w.at(i, j) * x.v[i];
  }
  return sum;
}

// Rows of a thread block: [begin, end) of document `d`.
struct ConvRows {
  ConvDocument d;
  int begin, end;
  __device__ ConvRows(const Documents<ConvDocument>& all, int rows_per_block) {
    const int of = all.find(static_cast<int>(blockIdx.x));
    d = all.rows[of];
    begin = (static_cast<int>(blockIdx.x) - all.before[of]) * rows_per_block;
    end = min(begin + rows_per_block, d.count);
  }
};

template <class T, int n, int taps>
__global__ void __launch_bounds__(kBlock)
    short_conv(ConvInput<T> a, T* y, std::int64_t y_stride, const __grid_constant__ Documents<ConvDocument> documents) {
  const std::int64_t c = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * n;
  if (c >= a.channels) return;
  const ConvRows rows(documents, a.rows_per_block);
  const ConvWeights<T, n, taps> w(a, c);
  for (int t = rows.begin; t < rows.end; ++t) {
    Floats<n> sum = convolve(a, w, rows.d, t, c);
#pragma unroll
    for (int i = 0; i < n; ++i) sum.v[i] *= sigmoid(sum.v[i]);
    store_pack(y + (rows.d.first + t) * y_stride + c, pack<T>(sum));
  }
}

// Copies the last K - 1 tokens of each document in ascending order, because `to` may be the memory of `initial`.
template <class T>
__global__ void __launch_bounds__(kBlock)
    conv_final(ConvInput<T> a, float* to, const __grid_constant__ Documents<ConvDocument> documents) {
  const std::int64_t c = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (c >= a.channels) return;
  const ConvDocument d = documents.rows[blockIdx.x];
  for (int i = 0; i < a.taps - 1; ++i)
    to[(std::int64_t{d.index} * (a.taps - 1) + i) * a.channels + c] =
        conv_token<1>(a, d, d.count - (a.taps - 1) + i, c).v[0];
}

template <class T>
struct ConvGradients {
  const T* dy;
  T* dx;                // null if not wanted
  const float* dfinal;  // null if there is none
  float* parts;         // [thread blocks of all launches, C K]: sums of dw; null if not wanted
  std::int64_t dy_stride, dx_stride;
  float beta_x;
  int first_part;  // of this launch
};

// Returns the gradients of the sums of token t before SiLU; 0 past the document's end.
template <class T, int n, int taps>
__device__ inline Floats<n> conv_sum_gradient(const ConvInput<T>& a, const ConvWeights<T, n, taps>& w, const T* dy,
                                              std::int64_t dy_stride, const ConvDocument& d, int t, std::int64_t c) {
  if (t < 0 || t >= d.count) return {};
  Floats<n> sum = convolve(a, w, d, t, c);
  const Floats<n> g = unpack(load_pack<T, n>(dy + (d.first + t) * dy_stride + c));
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const float s = sigmoid(sum.v[i]);
    sum.v[i] = g.v[i] * s * (1 + sum.v[i] * (1 - s));
  }
  return sum;
}

// Stores beta * dx + gradient of token t, and the gradient of `final` if t is one of its tokens.
template <class T, int n>
__device__ inline void store_conv_gradient(const ConvInput<T>& a, const ConvGradients<T>& g, const ConvDocument& d,
                                           int t, std::int64_t c, Floats<n> dx) {
  const int kept = a.taps - 1, i = t - (d.count - kept);
  T* to = g.dx + (d.first + t) * g.dx_stride + c;
  Floats<n> old{};
  if (g.beta_x != 0) old = unpack(load_pack<T, n>(to));
#pragma unroll
  for (int k = 0; k < n; ++k) {
    if (g.dfinal && i >= 0) dx.v[k] += g.dfinal[(std::int64_t{d.index} * kept + i) * a.channels + c + k];
    if (g.beta_x != 0) dx.v[k] += g.beta_x * old.v[k];
  }
  store_pack(to, pack<T>(dx));
}

template <class T, int n, int taps>
__global__ void __launch_bounds__(kBlock)
    short_conv_backward(ConvInput<T> a, ConvGradients<T> g, const __grid_constant__ Documents<ConvDocument> documents) {
  const std::int64_t c = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * n;
  if (c >= a.channels) return;
  const ConvRows rows(documents, a.rows_per_block);
  const ConvWeights<T, n, taps> w(a, c);
  Floats<n> ahead[taps], dw[taps] = {};  // ahead[i]: gradient of the sums of token t + i
#pragma unroll
  for (int i = 1; i < taps; ++i) ahead[i] = conv_sum_gradient(a, w, g.dy, g.dy_stride, rows.d, rows.begin + i - 1, c);
  for (int t = rows.begin; t < rows.end; ++t) {
#pragma unroll
    for (int i = 0; i + 1 < taps; ++i) ahead[i] = ahead[i + 1];
    ahead[taps - 1] = conv_sum_gradient(a, w, g.dy, g.dy_stride, rows.d, t + taps - 1, c);
    Floats<n> dx{};
#pragma unroll
    for (int j = 0; j < taps; ++j) {
      const Floats<n> x = conv_token<n>(a, rows.d, t - taps + 1 + j, c);
#pragma unroll
      for (int i = 0; i < n; ++i) {
        dw[j].v[i] += ahead[0].v[i] * x.v[i];
        dx.v[i] += w.at(i, j) * ahead[taps - 1 - j].v[i];
      }
    }
    if (g.dx) store_conv_gradient(a, g, rows.d, t, c, dx);
  }
  if (!g.parts) return;
  float* part = g.parts + (g.first_part + std::int64_t{blockIdx.x}) * a.channels * taps + c * taps;
#pragma unroll
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int j = 0; j < taps; ++j) part[i * taps + j] = dw[j].v[i];
}

// Like short_conv_backward, for any number of taps: slow, because it computes each sum again for each tap.
template <class T>
__global__ void __launch_bounds__(kBlock)
    short_conv_backward_any(ConvInput<T> a, ConvGradients<T> g,
                            const __grid_constant__ Documents<ConvDocument> documents) {
  const std::int64_t c = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (c >= a.channels) return;
  const ConvRows rows(documents, a.rows_per_block);
  const ConvWeights<T, 1, 0> w(a, c);
  for (int j = 0; j < a.taps; ++j) {
    float dw = 0;
    for (int t = rows.begin; t < rows.end; ++t)
      dw += conv_sum_gradient(a, w, g.dy, g.dy_stride, rows.d, t, c).v[0] *
            conv_token<1>(a, rows.d, t - a.taps + 1 + j, c).v[0];
    if (g.parts) g.parts[((g.first_part + std::int64_t{blockIdx.x}) * a.channels + c) * a.taps + j] = dw;
  }
  for (int t = rows.begin; g.dx && t < rows.end; ++t) {
    Floats<1> dx{};
    for (int j = 0; j < a.taps; ++j)
      dx.v[0] += w.at(0, j) * conv_sum_gradient(a, w, g.dy, g.dy_stride, rows.d, t + a.taps - 1 - j, c).v[0];
    store_conv_gradient(a, g, rows.d, t, c, dx);
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    conv_initial_gradient(ConvInput<T> a, ConvGradients<T> g, float* to, float beta,
                          const __grid_constant__ Documents<ConvDocument> documents) {
  const std::int64_t c = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (c >= a.channels) return;
  const ConvDocument d = documents.rows[blockIdx.x];
  const ConvWeights<T, 1, 0> w(a, c);
  const int kept = a.taps - 1;
  to += std::int64_t{d.index} * kept * a.channels + c;
  for (int t = -kept; t < 0; ++t) {
    float sum = 0;
    for (int j = 0; j < a.taps; ++j)
      sum += w.at(0, j) * conv_sum_gradient(a, w, g.dy, g.dy_stride, d, t + kept - j, c).v[0];
    const int i = t - (d.count - kept);
    if (g.dfinal && i >= 0) sum += g.dfinal[(std::int64_t{d.index} * kept + i) * a.channels + c];
    float& x = to[(t + kept) * a.channels];
    x = beta == 0 ? sum : beta * x + sum;
  }
}

std::vector<ConvDocument> conv_documents(const std::vector<Span>& spans) {
  std::vector<ConvDocument> all;
  for (const Span& s : spans) all.push_back({s.first, s.count, static_cast<int>(all.size())});
  return all;
}

// Blocks of `lanes` threads that together have one thread for each of `items` items of a row.
Launch conv_grid(std::int64_t blocks, std::int64_t items) {
  unsigned lanes = kWarp;
  while (lanes < items && lanes < kBlock) lanes *= 2;
  return {grid_of(blocks, divide_up(items, lanes)), lanes};
}

template <class T, class Args>
ConvInput<T> conv_input(const char* op, const Args& a) {
  RING_CHECK(a.x.defined() && a.x.shape().size() == 2 && a.w.defined() && a.w.numel() % a.x.dim(1) == 0 &&
                 a.w.is_contiguous() && a.w.numel() > 0,
             op, ": x is ", describe(a.x), ", w is ", describe(a.w), ", expected [N,C] and [C K]");
  if (a.initial.defined())
    check_numel(op, "initial", a.initial, std::ssize(a.documents) * (a.kernel() - 1) * a.x.dim(1));
  const RowsOf<T> x = device_rows<T>(op, "x", a.x);
  return {x.data,  device_data<T>(a.w),           x.outer_stride,
          x.width, device_data<float>(a.initial), static_cast<int>(a.kernel()),
          0};
}

// Calls fn(documents, blocks) for each table of documents that fits into a kernel's arguments. blocks: its number of
// thread blocks, each of rows_per_block rows of one document.
template <class Fn>
void for_conv_rows(const std::vector<Span>& spans, int rows_per_block, const Fn& fn) {
  const auto blocks = [rows_per_block](const ConvDocument& d) {
    return (d.count + rows_per_block - 1) / rows_per_block;
  };
  for_documents(conv_documents(spans), blocks,
                [&](const Documents<ConvDocument>& some) { fn(some, some.before[some.count]); });
}
// Calls fn(documents) with one thread block for each document, also for empty ones.
template <class Fn>
void for_each_conv_document(const std::vector<Span>& spans, const Fn& fn) {
  for_documents(
      conv_documents(spans), [](const ConvDocument&) { return 1; }, fn);
}

void run_short_conv(const ShortConv& args, const ExecContext& ctx) {
  constexpr const char* op = "short_conv";
  visit_float(op, args.x.dtype(), [&]<class T>() {
    ConvInput<T> a = conv_input<T>(op, args);
    check_shape(op, "y", args.y, args.x.shape());
    const RowsOf<T> x = device_rows<T>(op, "x", args.x), y = device_rows<T>(op, "y", args.y);
    const auto run = [&]<int n, int taps>() {
      a.rows_per_block = static_cast<int>(conv_rows_per_part(x.count, a.channels / n));
      for_conv_rows(args.documents, a.rows_per_block, [&](const Documents<ConvDocument>& some, int blocks) {
        launch(ctx, conv_grid(blocks, a.channels / n), short_conv<T, n, taps>, a, y.data, y.outer_stride, some);
      });
    };
    scale_rows_outside(op, args.y, 0, args.documents, ctx);
    if (a.taps == 4 && made_of_packs(x) && made_of_packs(y))
      run.template operator()<kPack<T>, 4>();
    else
      run.template operator()<1, 0>();
    if (args.final.defined() && a.taps > 1)
      for_each_conv_document(args.documents, [&](const Documents<ConvDocument>& some) {
        launch(ctx, conv_grid(some.count, a.channels), conv_final<T>, a, args.final.data<float>(), some);
      });
  });
}

// Launches the kernels for one type. Returns the partial sums of dw, one row per thread block: [blocks, C K].
template <class T, int n, int taps>
Tensor launch_conv_backward(ConvInput<T> a, ConvGradients<T> g, const ShortConvBackward& args, const ExecContext& ctx) {
  a.rows_per_block = static_cast<int>(conv_rows_per_part(args.x.dim(0), a.channels / n));
  std::int64_t parts = 0;
  for (const Span& s : args.documents) parts += divide_up(s.count, a.rows_per_block);
  const Tensor sums = ctx.empty({std::max<std::int64_t>(parts, 1), args.w.numel()});
  if (parts == 0) fill_zero(sums, ctx.stream);
  if (args.dw.defined()) g.parts = sums.data<float>();
  for_conv_rows(args.documents, a.rows_per_block, [&](const Documents<ConvDocument>& some, int blocks) {
    if constexpr (taps > 0)
      launch(ctx, conv_grid(blocks, a.channels / n), short_conv_backward<T, n, taps>, a, g, some);
    else
      launch(ctx, conv_grid(blocks, a.channels), short_conv_backward_any<T>, a, g, some);
    g.first_part += blocks;
  });
  return sums;
}

void run_short_conv_backward(const ShortConvBackward& args, const ExecContext& ctx) {
  constexpr const char* op = "short_conv_backward";
  visit_float(op, args.x.dtype(), [&]<class T>() {
    const ConvInput<T> a = conv_input<T>(op, args);
    check_shape(op, "dy", args.dy, args.x.shape());
    if (args.dx.defined()) check_shape(op, "dx", args.dx, args.x.shape());
    const RowsOf<T> x = device_rows<T>(op, "x", args.x), dy = device_rows<T>(op, "dy", args.dy),
                    dx = args.dx.defined() ? device_rows<T>(op, "dx", args.dx) : x;
    const ConvGradients<T> g{dy.data,
                             args.dx.defined() ? dx.data : nullptr,
                             device_data<float>(args.dfinal),
                             nullptr,
                             dy.outer_stride,
                             dx.outer_stride,
                             args.beta_x,
                             0};
    scale_rows_outside(op, args.dx, args.beta_x, args.documents, ctx);
    const bool packs = a.taps == 4 && made_of_packs(x) && made_of_packs(dy) && made_of_packs(dx);
    const Tensor sums =
        packs ? launch_conv_backward<T, 4, 4>(a, g, args, ctx) : launch_conv_backward<T, 1, 0>(a, g, args, ctx);
    if (args.dw.defined()) column_sum_kernel({sums, args.dw, args.beta_w}, ctx);
    if (args.dinitial.defined() && a.taps > 1)
      for_each_conv_document(args.documents, [&](const Documents<ConvDocument>& some) {
        launch(ctx, conv_grid(some.count, a.channels), conv_initial_gradient<T>, a, g, args.dinitial.data<float>(),
               args.beta_initial, some);
      });
  });
}

const bool added_short_conv[] = {short_conv_kernel.add(Backend::cuda, {"channels", run_short_conv}),
                                 short_conv_backward_kernel.add(Backend::cuda, {"channels", run_short_conv_backward})};

}  // namespace
}  // namespace ring::cuda
