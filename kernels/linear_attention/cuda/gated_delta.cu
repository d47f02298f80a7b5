// The gated delta rule for heads of any width: a thread block computes the chunks of one value head of one document,
// one after another (delta_chunk.cuh).

#include "kernels/linear_attention/cuda/gated_delta.cuh"

#include "kernels/attention/cuda/documents.cuh"
#include "kernels/linear_attention/cuda/delta_gradients.cuh"
#include "kernels/linear_attention/cuda/outside.cuh"

namespace ring::cuda {
namespace {

struct DeltaDocument {
  std::int64_t first;
  int count, index;  // rows; which document of the call it is
};

// Returns the state of a head in [documents or slots,Hv,Dk,Dv]; null if there is none.
__device__ inline float* state_at(float* all, std::int64_t index, int head, int heads, int floats) {
  return all ? all + (index * heads + head) * floats : nullptr;
}

__device__ inline void copy_or_clear(float* to, const float* from, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kBlock) to[i] = from ? from[i] : 0.0f;
  __syncthreads();
}

template <class T>
struct DeltaForward {
  DeltaInputs<T> in;
  HeadsOf3<T> out;
  float *initial, *final, *states;  // null if undefined
  float* scratch;
  std::int64_t scratch_floats;  // of a thread block
};

template <class T>
__device__ inline void delta_head(const DeltaForward<T>& p, DeltaRowNumbers& numbers, const DeltaDocument& d,
                                  int head) {
  const int floats = p.in.state_floats(), heads = p.in.value_heads;
  DeltaMemory memory{p.scratch + blockIdx.x * p.scratch_floats};
  DeltaChunk<T> chunk(p.in, numbers, head, memory);
  float* state = memory.take(floats);
  copy_or_clear(state, state_at(p.initial, d.index, head, heads, floats), floats);
  for (int t = 0; t < d.count; t += kMaxChunk) {
    if (p.states && t > 0 && t % kStateTokens == 0)
      copy_or_clear(state_at(p.states, (d.first + t) / kStateTokens, head, heads, floats), state, floats);
    chunk.load(d.first + t, min(kMaxChunk, d.count - t), state);
    chunk.write_output(p.out, state);
    chunk.advance(state, state);
  }
  if (p.final) copy_or_clear(state_at(p.final, d.index, head, heads, floats), state, floats);
  __syncthreads();
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    gated_delta_chunks(DeltaForward<T> p, const __grid_constant__ Documents<DeltaDocument> documents) {
  __shared__ DeltaRowNumbers numbers;
  const int heads = p.in.value_heads;
  for (int task = static_cast<int>(blockIdx.x); task < documents.count * heads; task += static_cast<int>(gridDim.x))
    delta_head(p, numbers, documents.rows[task / heads], task % heads);
}

template <class T>
struct DeltaBackward {
  DeltaInputs<T> in;
  HeadsOf3<const T> dout;
  DeltaSinks<T> to;
  float *initial, *states, *dfinal, *dinitial;  // null if undefined
  float beta_initial;
  float* scratch;
  std::int64_t scratch_floats;  // of a thread block
};

template <class T>
__device__ inline void delta_head_backward(const DeltaBackward<T>& p, DeltaRowNumbers& numbers,
                                           DeltaRowGradients& row_gradients, const DeltaDocument& d, int head) {
  constexpr int state_tokens = static_cast<int>(kStateTokens);
  const int floats = p.in.state_floats(), heads = p.in.value_heads;
  DeltaMemory memory{p.scratch + blockIdx.x * p.scratch_floats};
  DeltaChunk<T> chunk(p.in, numbers, head, memory);
  DeltaGradients<T> gradients(chunk, row_gradients, memory);
  float *dstate = memory.take(floats), *states = memory.take((1 + state_tokens / kMaxChunk) * floats);
  copy_or_clear(dstate, state_at(p.dfinal, d.index, head, heads, floats), floats);
  const int last = d.count == 0 ? -1 : (d.count - 1) / state_tokens * state_tokens;
  for (int begin = last; begin >= 0; begin -= state_tokens) {
    const float* saved = begin > 0 ? state_at(p.states, (d.first + begin) / kStateTokens, head, heads, floats)
                                   : state_at(p.initial, d.index, head, heads, floats);
    const int end = min(d.count, begin + state_tokens);
    copy_or_clear(states, saved, floats);
    float* state = states;
    for (int t = begin; t + kMaxChunk < end; t += kMaxChunk) {  // states before all chunks but the first
      chunk.load(d.first + t, kMaxChunk, state);
      chunk.advance(state, state + floats);
      state += floats;
    }
    for (int t = begin + (end - begin - 1) / kMaxChunk * kMaxChunk; t >= begin; t -= kMaxChunk) {
      chunk.load(d.first + t, min(kMaxChunk, d.count - t), state);
      gradients.compute(p.dout, state, dstate);
      gradients.store(p.to);
      state -= floats;
    }
  }
  if (float* to = state_at(p.dinitial, d.index, head, heads, floats))
    for (int i = static_cast<int>(threadIdx.x); i < floats; i += kBlock)
      to[i] = p.beta_initial == 0 ? dstate[i] : p.beta_initial * to[i] + dstate[i];
  __syncthreads();
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    gated_delta_chunks_backward(DeltaBackward<T> p, const __grid_constant__ Documents<DeltaDocument> documents) {
  __shared__ DeltaRowNumbers numbers;
  __shared__ DeltaRowGradients row_gradients;
  const int heads = p.in.value_heads;
  for (int task = static_cast<int>(blockIdx.x); task < documents.count * heads; task += static_cast<int>(gridDim.x))
    delta_head_backward(p, numbers, row_gradients, documents.rows[task / heads], task % heads);
}

// Adds the gradients of the value heads that share a key head, in ascending order: x [N,Hv,D] f32 -> to [N,Hk,D].
template <class T>
__global__ void __launch_bounds__(kBlock) add_value_heads(const float* x, HeadsOf3<T> to, std::int64_t rows,
                                                          int key_heads, int group, int width, float beta) {
  const std::int64_t items = std::int64_t{key_heads} * width;
  for (std::int64_t i = thread_x(); i < rows * items; i += threads_x()) {
    const std::int64_t row = i / items;
    const int head = static_cast<int>(i - row * items) / width, c = static_cast<int>(i - row * items) % width;
    const float* from = x + ((row * key_heads + head) * group) * width + c;
    float sum = 0;
    for (int g = 0; g < group; ++g) sum += from[g * width];
    T& at = to.at(row, head)[c];
    at = from_float<T>(beta == 0 ? sum : beta * to_float(at) + sum);
  }
}

template <class Fn>
void for_delta_documents(const std::vector<Span>& spans, const Fn& fn) {
  std::vector<DeltaDocument> all;
  for (const Span& s : spans) all.push_back({s.first, s.count, static_cast<int>(all.size())});
  for_documents(
      all, [](const DeltaDocument&) { return 1; }, fn);
}

void run_chunks(const GatedDelta& args, const ExecContext& ctx) {
  check(args);
  scale_rows_outside("gated_delta", args.out, 0, args.documents, ctx);
  visit_float("gated_delta", args.q.dtype(), [&]<class T>() {
    DeltaForward<T> p{delta_inputs<T>(args),
                      heads_of3<T>(args.out),
                      device_data<float>(args.initial),
                      device_data<float>(args.final),
                      device_data<float>(args.states),
                      nullptr,
                      0};
    const std::int64_t blocks = delta_blocks(args.documents, args.v.dim(1));
    p.scratch_floats = delta_floats(args.q.dim(2), args.v.dim(2), false);
    const Shape shape{blocks, p.scratch_floats};
    const Tensor scratch = ctx.empty(shape);
    p.scratch = scratch.data<float>();
    for_delta_documents(args.documents, [&](const Documents<DeltaDocument>& some) {
      launch(ctx, {grid_of(std::min<std::int64_t>(blocks, some.count * args.v.dim(1)))}, gated_delta_chunks<T>, p,
             some);
    });
  });
}

void run_chunks_backward(const GatedDeltaBackward& args, const ExecContext& ctx) {
  constexpr const char* op = "gated_delta_backward";
  check(args);
  const std::int64_t rows = args.q.dim(0), heads = args.v.dim(1), key_heads = args.q.dim(1), width = args.q.dim(2);
  scale_rows_outside(op, args.dv, args.beta_qkv, args.documents, ctx);
  for (const Tensor& t : {args.ddecay, args.dbeta}) scale_rows_outside(op, t, args.beta_gates, args.documents, ctx);
  const Shape each_shape{2, rows, heads, width};  // gradients of q and k for each value head
  const Tensor each = ctx.zeros(each_shape);
  visit_float(op, args.q.dtype(), [&]<class T>() {
    DeltaBackward<T> p{};
    p.in = delta_inputs<T>(args);
    p.dout = heads_of3<const T>(args.dout);
    p.to = {each.data<float>(),
            each.data<float>() + rows * heads * width,
            heads_of3<T>(args.dv),
            heads_of3<float>(args.ddecay),
            heads_of3<float>(args.dbeta),
            args.beta_qkv,
            args.beta_gates};
    p.initial = device_data<float>(args.initial), p.states = device_data<float>(args.states);
    p.dfinal = device_data<float>(args.dfinal), p.dinitial = device_data<float>(args.dinitial);
    p.beta_initial = args.beta_initial;
    const std::int64_t blocks = delta_blocks(args.documents, heads);
    p.scratch_floats = delta_floats(width, args.v.dim(2), true);
    const Shape shape{blocks, p.scratch_floats};
    const Tensor scratch = ctx.empty(shape);
    p.scratch = scratch.data<float>();
    for_delta_documents(args.documents, [&](const Documents<DeltaDocument>& some) {
      launch(ctx, {grid_of(std::min<std::int64_t>(blocks, some.count * heads))}, gated_delta_chunks_backward<T>, p,
             some);
    });
    const auto add = [&](const Tensor& to, const float* from) {
      if (to.defined())
        launch(ctx, elements(ctx, rows * key_heads * width, 1), add_value_heads<T>, from, heads_of3<T>(to), rows,
               static_cast<int>(key_heads), static_cast<int>(heads / key_heads), static_cast<int>(width),
               args.beta_qkv);
    };
    add(args.dq, p.to.dq);
    add(args.dk, p.to.dk);
  });
}

const bool added_gated_delta[] = {
    gated_delta_kernel.add(Backend::cuda, {"chunks", run_chunks}),
    gated_delta_backward_kernel.add(Backend::cuda, {"chunks", run_chunks_backward}),
};

}  // namespace
}  // namespace ring::cuda
