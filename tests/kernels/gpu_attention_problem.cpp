#include "tests/kernels/gpu_attention_problem.h"

#include "tests/kernels/poison_allocator.h"

namespace ring::test {

std::string text(const GpuProblem& p) {
  const Pattern& a = p.pattern;
  std::string lengths;
  for (std::size_t b = 1; b < p.offsets.size(); ++b) lengths += str(b > 1 ? "," : "", p.offsets[b] - p.offsets[b - 1]);
  return str("lengths ", lengths, ", heads ", p.heads, "/", p.kv_heads, ", D ", p.dim, ", ", pattern_key(a), ", shift ",
             a.shift, ", ", p.dtype, p.fused ? ", fused" : "", p.wide ? ", to f32" : "",
             p.deterministic ? "" : ", any order", p.dropout.rate > 0 ? str(", dropout ", p.dropout.rate) : "");
}

Values rounded(Values v, DType type) {
  for (double& x : v) {
    const auto f = static_cast<float>(x);
    x = type == DType::bf16 ? to_float(to_bf16(f)) : f;
  }
  return v;
}

Tensor upload(const Values& v, const Shape& shape, DType type, const ExecContext& ctx) {
  std::vector<float> wide(v.begin(), v.end());
  if (type == DType::f32) return from_host(wide, ctx.stream).view(shape);
  std::vector<bf16> narrow;
  for (float x : wide) narrow.push_back(to_bf16(x));
  return from_host(narrow, ctx.stream).view(shape);
}

Values download(const Tensor& t, const ExecContext& ctx) {
  if (t.dtype() == DType::f32) {
    const std::vector<float> host = to_host<float>(t, ctx.stream);
    return {host.begin(), host.end()};
  }
  Values v;
  for (bf16 x : to_host<bf16>(t, ctx.stream)) v.push_back(to_float(x));
  return v;
}

AttentionProblem GpuProblem::problem() const {
  AttentionProblem a = problem_of(pattern, offsets, rows, after);
  a.heads = heads, a.kv_heads = kv_heads, a.dim = dim, a.dropout = dropout;
  return a;
}

AttentionInputs gpu_inputs(const GpuProblem& p) {
  AttentionInputs in = random_inputs(p.problem(), p.dtype);
  if (p.size != 1)
    for (Values* v : {&in.q, &in.k}) {
      for (double& x : *v) x *= p.size;
      *v = rounded(*v, p.dtype);
    }
  return in;
}

GpuOperands::GpuOperands(const GpuProblem& p, DType type, const ExecContext& ctx) : tokens(p.tokens()), shift(p.shift) {
  q_width = p.heads * p.dim, k_width = p.kv_heads * p.dim;
  if (p.fused) all = ctx.empty({tokens, shift + q_width + 2 * k_width}, type);
  for (int i = 0; i < 3; ++i)
    parts[i] = (p.fused ? all.narrow(1, first(i), width(i)) : ctx.empty({tokens, width(i)}, type)).split_dim(1, p.dim);
}

void GpuOperands::write(const AttentionInputs& in, const ExecContext& ctx) {
  const Values* v[] = {&in.q, &in.k, &in.v};
  if (!all.defined()) {
    for (int i = 0; i < 3; ++i) copy(parts[i], upload(*v[i], parts[i].shape(), parts[i].dtype(), ctx), ctx.stream);
    return;
  }
  Values wide(static_cast<std::size_t>(all.numel()), 7.0);
  for (int i = 0; i < 3; ++i)
    for (std::int64_t n = 0; n < tokens; ++n)
      std::copy_n(v[i]->begin() + n * width(i), width(i), wide.begin() + n * all.dim(1) + first(i));
  copy(all, upload(wide, all.shape(), all.dtype(), ctx), ctx.stream);
}

Values GpuOperands::read(int i, const ExecContext& ctx) const {
  if (!all.defined()) return download(parts[i], ctx);
  const Values wide = download(all, ctx);
  Values v;
  for (std::int64_t n = 0; n < tokens; ++n) {
    const auto from = wide.begin() + n * all.dim(1) + first(i);
    v.insert(v.end(), from, from + width(i));
  }
  return v;
}

namespace {

// Returns the dropout of the queries from row `first` on.
AttentionDropout dropout_of(const OracleDropout& d, std::int64_t first = 0) {
  return {.rate = d.rate, .site = d.site, .first_row = d.first_row + first, .first_head = d.first_head};
}

// A range of tokens: [first, first + count).
struct Stretch {
  std::int64_t first, count;
  Tensor of(const Tensor& t) const { return t.narrow(0, first, count); }
  std::vector<Span> of(const std::vector<Span>& spans) const { return part_of(spans, first, first + count); }
};

// Creates the arguments of the forward and the backward.
struct Call {
  const GpuProblem& p;
  ExecContext ctx;
  GpuOperands qkv, gradients;
  Tensor dout, out, rounded_out, lse;

  Call(const GpuProblem& problem, const ExecContext& context)
      : p(problem), ctx(context), qkv(p, p.dtype, ctx), gradients(p, p.results(), ctx) {
    ctx.deterministic = p.deterministic;
    const Shape shape{p.tokens(), p.heads, p.dim};
    dout = ctx.empty(shape, p.dtype);
    out = ctx.empty(shape, p.results());
    lse = ctx.empty({p.heads, p.tokens()});
    if (p.results() != p.dtype) rounded_out = ctx.empty(shape, p.dtype);  // the backward reads their type
  }
  Attention forward() const {
    return {.q = qkv.parts[0],
            .k = qkv.parts[1],
            .v = qkv.parts[2],
            .out = out,
            .lse = lse,
            .queries = p.spans(),
            .keys = p.spans(),
            .scale = static_cast<float>(p.problem().scale()),
            .pattern = p.pattern,
            .carry = {},
            .dropout = dropout_of(p.dropout)};
  }
  AttentionBackward backward() const {
    const Attention f = forward();
    return {.q = f.q,
            .k = f.k,
            .v = f.v,
            .out = rounded_out.defined() ? rounded_out : out,
            .lse = lse,
            .dout = dout,
            .dq = gradients.parts[0],
            .dk = gradients.parts[1],
            .dv = gradients.parts[2],
            .queries = f.queries,
            .keys = f.keys,
            .scale = f.scale,
            .pattern = f.pattern,
            .carry_dq = {},
            .carry_dk = {},
            .carry_dv = {},
            .dropout = f.dropout};
  }
};

template <class Args>
bool supported(const Kernel<Args>& kernel, const std::string& name, const Args& args, const ExecContext& ctx) {
  for (const auto& c : kernel.candidates(Backend::cuda))
    if (c.name == name) return !c.supports || c.supports(args, ctx);
  return false;
}

}  // namespace

AttentionResults run_gpu(const std::string& name, const GpuProblem& p, const AttentionInputs& in) {
  Call call(p, poisoned_device_context({Backend::cuda, 0}));
  call.qkv.write(in, call.ctx);
  copy(call.dout, upload(in.dout, call.dout.shape(), p.dtype, call.ctx), call.ctx.stream);
  run_candidate(attention_kernel, name, call.forward(), call.ctx);
  AttentionResults r{.out = download(call.out, call.ctx), .lse = download(call.lse, call.ctx)};
  if (call.rounded_out.defined())
    copy(call.rounded_out, upload(r.out, call.out.shape(), p.dtype, call.ctx), call.ctx.stream);
  run_candidate(attention_backward_kernel, name, call.backward(), call.ctx);
  r.dq = call.gradients.read(0, call.ctx);
  r.dk = call.gradients.read(1, call.ctx);
  r.dv = call.gradients.read(2, call.ctx);
  return r;
}

AttentionResults run_gpu_in_parts(const std::string& name, const GpuProblem& p, const AttentionInputs& in,
                                  std::int64_t query_cut, std::int64_t key_cut) {
  ExecContext ctx = poisoned_device_context({Backend::cuda, 0});
  ctx.deterministic = p.deterministic;
  GpuOperands qkv(p, p.dtype, ctx);
  qkv.write(in, ctx);
  const std::int64_t n = p.tokens();
  const Shape shape{n, p.heads, p.dim}, narrow{n, p.kv_heads, p.dim};
  const Tensor dout = upload(in.dout, shape, p.dtype, ctx), out = ctx.empty(shape, p.dtype), sum = ctx.empty(shape);
  const Tensor dq = ctx.zeros(shape), dk = ctx.zeros(narrow), dv = ctx.zeros(narrow);
  const auto scale = static_cast<float>(p.problem().scale());
  const std::vector<Span> spans = p.spans();
  const Stretch key_parts[] = {{0, key_cut}, {key_cut, n - key_cut}};
  Values lse(static_cast<std::size_t>(p.heads * n));
  for (const Stretch& q : {Stretch{0, query_cut}, Stretch{query_cut, n - query_cut}}) {
    const AttentionDropout dropout = dropout_of(p.dropout, q.first);
    const Tensor stats = ctx.empty({p.heads, q.count});
    for (const Stretch& k : key_parts) {
      const bool last = &k == &key_parts[1];
      run_candidate(attention_kernel, name,
                    Attention{q.of(qkv.parts[0]), k.of(qkv.parts[1]), k.of(qkv.parts[2]), q.of(last ? out : sum), stats,
                              q.of(spans), k.of(spans), scale, p.pattern, last ? q.of(sum) : Tensor{}, dropout},
                    ctx);
    }
    for (const Stretch& k : key_parts)
      run_candidate(attention_backward_kernel, name,
                    AttentionBackward{q.of(qkv.parts[0]), k.of(qkv.parts[1]), k.of(qkv.parts[2]), q.of(out), stats,
                                      q.of(dout), q.of(dq), k.of(dk), k.of(dv), q.of(spans), k.of(spans), scale,
                                      p.pattern, q.of(dq), k.of(dk), k.of(dv), dropout},
                    ctx);
    const Values part = download(stats, ctx);
    for (std::int64_t h = 0; h < p.heads; ++h)
      std::copy_n(part.begin() + h * q.count, q.count, lse.begin() + h * n + q.first);
  }
  return {download(out, ctx), lse, download(dq, ctx), download(dk, ctx), download(dv, ctx)};
}

void expect_close(const GpuProblem& p, const AttentionResults& got, const AttentionResults& want) {
  expect_close(got, want, tolerance_of({.backend = Backend::cuda, .dtype = p.dtype}));
}

void expect_right(const std::vector<std::string>& names, const GpuProblem& p) {
  const AttentionInputs in = gpu_inputs(p);
  const AttentionResults want = reference(p.problem(), in);
  for (const std::string& name : names) {
    SCOPED_TRACE(name + ": " + text(p));
    expect_close(p, run_gpu(name, p, in), want);
  }
}

std::vector<std::string> on_tensor_cores(const GpuProblem& p) {
  const Call call(p, poisoned_device_context({Backend::cuda, 0}));
  if (supported(attention_kernel, "own_sm90", call.forward(), call.ctx) &&
      supported(attention_backward_kernel, "own_sm90", call.backward(), call.ctx))
    return {"own_mma", "own_sm90"};
  return {"own_mma"};
}

std::vector<std::string> own_candidates(const GpuProblem& p) {
  std::vector<std::string> names = {"own_simt"};
  if (p.dtype == DType::bf16)
    for (const std::string& name : on_tensor_cores(p)) names.push_back(name);
  return names;
}

}  // namespace ring::test
