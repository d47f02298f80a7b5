#include "tests/kernels/attention_problem.h"
#include "tests/kept_blocks.h"

#include <gtest/gtest.h>

#include <Eigen/Core>

#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/step_state_tensor.h"

namespace ring::test {
double norm_of(const Values& v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}
double distance_of(const Values& a, const Values& b) {
  if (a.size() != b.size()) return INFINITY;
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

namespace {

Values rounded_to(DType type, Values v) {
  for (double& x : v) x = type == DType::bf16 ? to_float(to_bf16(static_cast<float>(x))) : static_cast<float>(x);
  return v;
}

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Array = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Column = Eigen::ArrayXd;

// Rows [first, first + count) of one head of x [N,heads,dim].
struct Rows {
  std::int64_t first, count, heads, head, dim;
  Eigen::OuterStride<> stride() const { return Eigen::OuterStride<>(heads * dim); }
  std::int64_t start() const { return (first * heads + head) * dim; }
  auto of(const Values& x) const {
    return Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>(x.data() + start(), count, dim, stride());
  }
  auto of(Values& x) const {
    return Eigen::Map<Matrix, 0, Eigen::OuterStride<>>(x.data() + start(), count, dim, stride());
  }
};

// Softmax attention and its gradients as defined, with matrix products: some queries of a span at a time, over the keys
// that at least one of these queries sees.
struct Reference {
  const AttentionProblem& p;
  const AttentionInputs& in;
  AttentionResults& to;

  struct Pairs {
    std::vector<int> keys;  // offsets in the span
    Array counts;           // [queries, keys]: number of times that each query sees each key
  };

  Pairs pairs(std::size_t b, std::int64_t kv, std::int32_t first, std::int32_t count) const {
    const Span &q = p.queries[b], &k = p.keys[b];
    Array all(count, k.count);
    for (std::int32_t t = 0; t < count; ++t)
      for (std::int32_t u = 0; u < k.count; ++u)
        all(t, u) = p.selection.empty() ? multiplicity(p.pattern, static_cast<std::int32_t>(kv), q.position + first + t,
                                                       k.position + u, q.document)
                                        : p.selects(b, kv, first + t, u);
    std::vector<int> seen;
    for (int u = 0; u < k.count; ++u)
      if ((all.col(u) > 0).any()) seen.push_back(u);
    return {seen, all(Eigen::all, seen)};
  }

  // Returns the factors by which dropout multiplies the weights.
  Array factors(std::int64_t query, std::int64_t head, std::int32_t position, const Pairs& pairs) const {
    Array all = Array::Ones(pairs.counts.rows(), pairs.counts.cols());
    if (p.dropout.rate == 0) return all;
    for (std::int64_t t = 0; t < all.rows(); ++t)
      for (std::int64_t i = 0; i < all.cols(); ++i)
        if (pairs.counts(t, i) > 0)
          all(t, i) = p.dropout.factor(query + t, head, position + pairs.keys[static_cast<std::size_t>(i)]);
    return all;
  }

  void run_head(const Rows& queries, const Rows& keys, const Pairs& pairs, const Array& kept) const {
    const Matrix q = queries.of(in.q), dout = queries.of(in.dout);
    const Matrix k = keys.of(in.k)(pairs.keys, Eigen::all), v = keys.of(in.v)(pairs.keys, Eigen::all);
    const Array scores = p.scale() * (q * k.transpose()).array();
    const Array seen = (pairs.counts > 0).select(scores, -INFINITY);
    const Column most = seen.rowwise().maxCoeff(), largest = (most > -INFINITY).select(most, 0);
    const Array terms = pairs.counts * (scores.colwise() - largest).min(0).exp();  // masked scores may be larger
    const Column total = terms.rowwise().sum(), lse = largest + total.log();
    const Column divisors = (total > 0).select(total, 1);
    const Array weights = terms.colwise() / divisors;
    const Matrix dropped = weights * kept, out = dropped * v;
    const Array dweights = kept * (dout * v.transpose()).array();
    const Column delta = (dout.array() * out.array()).rowwise().sum();
    const Matrix dscores = p.scale() * weights * (dweights.colwise() - delta);
    queries.of(to.out) += out;
    queries.of(to.dq) += dscores * k;
    keys.of(to.dk)(pairs.keys, Eigen::all) += dscores.transpose() * q;
    keys.of(to.dv)(pairs.keys, Eigen::all) += dropped.transpose() * dout;
    std::copy(lse.begin(), lse.end(), to.lse.begin() + queries.head * p.query_rows + queries.first);
  }

  void run(std::size_t b, std::int32_t first, std::int32_t count) const {
    const Span &q = p.queries[b], &k = p.keys[b];
    const std::int64_t group = p.heads / p.kv_heads;
    for (std::int64_t kv = 0; kv < p.kv_heads; ++kv) {
      const Pairs seen = pairs(b, kv, first, count);
      if (seen.keys.empty()) continue;
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h)
        run_head({q.first + first, count, p.heads, h, p.dim}, {k.first, k.count, p.kv_heads, kv, p.dim}, seen,
                 factors(q.first + first, h, k.position, seen));
    }
  }
};

ExecContext context_of(const AttentionTarget& t) {
  return t.backend == Backend::cpu ? poisoned_context(t.threads) : poisoned_device_context({t.backend, 0});
}

Shape query_shape(const AttentionProblem& p) { return {p.query_rows, p.heads, p.dim}; }
Shape key_shape(const AttentionProblem& p) { return {p.key_rows, p.kv_heads, p.dim}; }

// All tensors of one problem. If queries and keys have the same rows, q | k | v and their gradients are columns of
// matrices, as in the output of a fused product.
struct Tensors {
  Tensor q, k, v, dout, out, lse, dq, dk, dv;
  Tensor gradients;  // matrix of dq, dk and dv if they share one
  AttentionDropout dropout;
  BlockSelection selection;

  Tensors(const AttentionProblem& p, const AttentionInputs& in, DType type, const ExecContext& ctx) {
    dout = make_tensor(query_shape(p), type, in.dout, ctx);
    out = ctx.empty(query_shape(p), type);
    lse = ctx.empty({p.heads, p.query_rows});
    if (!p.selection.empty()) selection.kept = kept_of_bits(p.selection, p.kv_heads, p.words(), ctx);
    selection.rows = p.selection_rows;
    const OracleDropout& d = p.dropout;
    dropout = {.rate = d.rate, .site = d.site, .first_row = d.first_row, .first_head = d.first_head};
    if (d.step > 0) dropout.rows = from_host(d.rows(p.query_rows), ctx.stream);
    if (d.in_state) dropout.site.step = 0, dropout.state = state_tensor({.step = d.site.step}, ctx);
    if (p.query_rows != p.key_rows) {
      q = make_tensor(query_shape(p), type, in.q, ctx);
      k = make_tensor(key_shape(p), type, in.k, ctx), v = make_tensor(key_shape(p), type, in.v, ctx);
      dq = ctx.empty(query_shape(p), type);
      dk = ctx.empty(key_shape(p), type), dv = ctx.empty(key_shape(p), type);
      return;
    }
    const std::int64_t wide = p.heads * p.dim, narrow = p.kv_heads * p.dim, width = wide + 2 * narrow;
    Values all;
    for (std::int64_t n = 0; n < p.query_rows; ++n) {
      all.insert(all.end(), in.q.begin() + n * wide, in.q.begin() + (n + 1) * wide);
      for (const Values* x : {&in.k, &in.v})
        all.insert(all.end(), x->begin() + n * narrow, x->begin() + (n + 1) * narrow);
    }
    const Tensor qkv = make_tensor({p.query_rows, width}, type, all, ctx);
    gradients = ctx.empty(qkv.shape(), type);
    const auto part = [&](const Tensor& t, std::int64_t first, std::int64_t count) {
      return t.narrow(1, first, count).split_dim(1, p.dim);
    };
    q = part(qkv, 0, wide), k = part(qkv, wide, narrow), v = part(qkv, wide + narrow, narrow);
    dq = part(gradients, 0, wide), dk = part(gradients, wide, narrow), dv = part(gradients, wide + narrow, narrow);
  }

  Attention forward(const AttentionProblem& p) const {
    return {q, k, v, out, lse, p.queries, p.keys, static_cast<float>(p.scale()), p.pattern, {}, dropout, selection};
  }
  AttentionBackward backward(const AttentionProblem& p) const {
    return {q,         k,  v,  out, lse,     dout,     dq, dk, dv, p.queries, p.keys, static_cast<float>(p.scale()),
            p.pattern, {}, {}, {},  dropout, selection};
  }
  AttentionResults results(const ExecContext& ctx) const {
    AttentionResults r{read_values(out, ctx), read_values(lse, ctx), {}, {}, {}};
    if (!gradients.defined()) {
      r.dq = read_values(dq, ctx), r.dk = read_values(dk, ctx), r.dv = read_values(dv, ctx);
      return r;
    }
    const Values all = read_values(gradients, ctx);
    auto from = all.begin();
    for (std::int64_t n = 0; n < gradients.dim(0); ++n)
      for (auto [to, t] : {std::pair{&r.dq, &dq}, {&r.dk, &dk}, {&r.dv, &dv}}) {
        to->insert(to->end(), from, from + t->dim(1) * t->dim(2));
        from += t->dim(1) * t->dim(2);
      }
    return r;
  }
};

template <class Args>
const typename Kernel<Args>::Candidate& candidate_of(const Kernel<Args>& kernel, const AttentionTarget& t) {
  for (const auto& c : kernel.candidates(t.backend))
    if (c.name == t.candidate) return c;
  fail(kernel.name(), ": no candidate ", t.candidate);
}
template <class Args>
void call(const Kernel<Args>& kernel, const AttentionTarget& t, const Args& args, const ExecContext& ctx) {
  const auto& c = candidate_of(kernel, t);
  ASSERT_TRUE(!c.supports || c.supports(args, ctx)) << t.candidate;
  c.fn(args, ctx);
}

}  // namespace

std::vector<Span> part_of(std::vector<Span> spans, std::int64_t first, std::int64_t end) {
  for (Span& s : spans) {
    const std::int64_t from = std::clamp<std::int64_t>(first, s.first, s.first + s.count);
    const std::int64_t to = std::clamp<std::int64_t>(end, from, s.first + s.count);
    s.position += static_cast<std::int32_t>(from - s.first);
    s.first = static_cast<std::int32_t>(from - first);
    s.count = static_cast<std::int32_t>(to - from);
    if (s.count == 0) s.first = 0;
  }
  return spans;
}

AttentionProblem problem_of(const Pattern& pattern, const std::vector<std::int32_t>& offsets,
                            const std::vector<std::int32_t>& rows, std::int64_t after) {
  AttentionProblem p{.pattern = pattern, .queries = spans_of(offsets, rows)};
  p.keys = p.queries;
  p.query_rows = p.key_rows = offsets.back() + after;
  return p;
}

std::int64_t AttentionProblem::words() const {
  if (selection_words > 0) return selection_words;
  std::int32_t most = 0;
  for (const Span& s : queries) most = std::max(most, blocks_of(pattern, s));
  return (most + 31) / 32;
}

bool AttentionProblem::selects(std::size_t b, std::int64_t kv_head, std::int32_t t, std::int32_t u) const {
  const std::int64_t origin = pattern.origin(queries[b].document);
  const auto q_at = static_cast<std::int32_t>(queries[b].position - origin) + t;
  const auto k_at = static_cast<std::int32_t>(keys[b].position - origin) + u;
  if (k_at > q_at) return false;
  const std::int32_t size = pattern.blocks->block(), k = k_at / size;
  const std::int64_t row = (selection_rows.empty() ? first_blocks(pattern, queries) : selection_rows)[b] + q_at / size;
  const auto at = static_cast<std::size_t>((row * kv_heads + kv_head) * words() + k / 32);
  return (static_cast<std::uint32_t>(selection[at]) >> (k % 32) & 1u) != 0;
}

AttentionProblem with_selection(AttentionProblem p) {
  const std::vector<std::int32_t> first = first_blocks(p.pattern, p.queries);
  const std::int64_t words = p.words(), rows = first.back();
  p.selection.assign(static_cast<std::size_t>(rows * p.kv_heads * words), 0);
  for (std::size_t b = 0; b < p.queries.size(); ++b)
    for (std::int32_t i = 0; i < first[b + 1] - first[b]; ++i)
      for (std::int64_t h = 0; h < p.kv_heads; ++h)
        for (std::int32_t k = 0; k <= i; ++k) {
          const std::int64_t row = (first[b] + i) * p.kv_heads + h;
          const std::uint32_t drawn = random_bits({5, 7, 3}, static_cast<std::uint64_t>(row * 4096 + k)) % 2;
          const auto at = static_cast<std::size_t>(row * words + k / 32);
          p.selection[at] |= static_cast<std::int32_t>((k == i ? 1u : drawn) << (k % 32));
        }
  return p;
}

AttentionProblem with_other_rows(AttentionProblem p, const std::vector<Span>& queries, const std::vector<Span>& keys) {
  p.selection_words = p.words();
  p.selection_rows = first_blocks(p.pattern, p.queries);
  p.selection_rows.pop_back();
  const auto rows_of = [](const std::vector<Span>& spans) {
    std::int64_t rows = 0;
    for (const Span& s : spans) rows = std::max<std::int64_t>(rows, s.first + s.count);
    return rows;
  };
  p.queries = queries, p.keys = keys;
  p.query_rows = rows_of(queries) + 3, p.key_rows = rows_of(keys) + 2;
  return p;
}

AttentionProblem without_earlier_rows(AttentionProblem p) {
  const Span& s = p.queries[0];
  const std::int64_t first = (s.position - p.pattern.origin(s.document)) / p.pattern.blocks->block();
  const std::int64_t missing = p.selection_rows[0] + first;
  p.selection.erase(p.selection.begin(), p.selection.begin() + missing * p.kv_heads * p.words());
  for (std::int32_t& row : p.selection_rows) row -= static_cast<std::int32_t>(missing);
  return p;
}

std::string name_of(const AttentionTarget& t) {
  return str(t.candidate, "_", t.dtype, t.min_dim > 8 ? str("_from_", t.min_dim) : "");
}
void PrintTo(const AttentionTarget& t, std::ostream* out) { *out << name_of(t); }

AttentionInputs random_inputs(const AttentionProblem& p, DType type) {
  const auto values = [&](const char* name, std::int64_t n) { return rounded_to(type, random_values(name, n)); };
  const std::int64_t wide = p.query_rows * p.heads * p.dim, narrow = p.key_rows * p.kv_heads * p.dim;
  return {values("q", wide), values("k", narrow), values("v", narrow), values("dout", wide)};
}

AttentionResults reference(const AttentionProblem& p, const AttentionInputs& in) {
  AttentionResults r{Values(in.q.size()), Values(static_cast<std::size_t>(p.heads * p.query_rows), -INFINITY),
                     Values(in.q.size()), Values(in.k.size()), Values(in.k.size())};
  constexpr std::int32_t kRows = 64;  // rows at a time: bounds the memory
  for (std::size_t b = 0; b < p.queries.size(); ++b)
    for (std::int32_t first = 0; first < p.queries[b].count; first += kRows)
      Reference{p, in, r}.run(b, first, std::min(kRows, p.queries[b].count - first));
  return r;
}

bool takes(const AttentionTarget& t, const AttentionProblem& p) {
  if (t.every) return true;
  const ExecContext ctx = context_of(t);
  const Tensors x(p, random_inputs(p, t.dtype), t.dtype, ctx);
  const auto& forward = candidate_of(attention_kernel, t);
  const auto& backward = candidate_of(attention_backward_kernel, t);
  return (!forward.supports || forward.supports(x.forward(p), ctx)) &&
         (!backward.supports || backward.supports(x.backward(p), ctx));
}

AttentionResults run(const AttentionTarget& t, const AttentionProblem& p, const AttentionInputs& in) {
  const ExecContext ctx = context_of(t);
  const Tensors x(p, in, t.dtype, ctx);
  call(attention_kernel, t, x.forward(p), ctx);
  call(attention_backward_kernel, t, x.backward(p), ctx);
  return x.results(ctx);
}

AttentionResults run_in_parts(const AttentionTarget& t, const AttentionProblem& p, const AttentionInputs& in, int parts,
                              Order order, bool idle) {
  const ExecContext ctx = context_of(t);
  Tensors x(p, in, t.dtype, ctx);
  if (!p.selection.empty() && p.selection_rows.empty()) {
    x.selection.rows = first_blocks(p.pattern, p.queries);
    x.selection.rows.pop_back();
  }
  const Tensor sum = ctx.empty(x.out.shape()), dq = ctx.empty(x.q.shape());
  const auto keys_like = [&] {
    return idle ? ctx.zeros(key_shape(p))
                : make_tensor(key_shape(p), DType::f32, random_values("before", key_shape(p).numel()), ctx);
  };
  const Tensor dk = keys_like(), dv = keys_like();
  int calls = 0;
  // Calls fn(rows, keys, first, last) for each part; rows(x) returns the part's rows of tensor x.
  const auto for_parts = [&](const auto& fn) {
    for (int i = 0; i < parts; ++i) {
      const int part = order == Order::ascending ? i : parts - 1 - i;
      const std::int64_t first = p.key_rows * part / parts, end = p.key_rows * (part + 1) / parts;
      const auto rows = [&](const Tensor& all) { return all.narrow(0, first, end - first); };
      fn(rows, part_of(p.keys, first, end), i == 0, i + 1 == parts);
      if (idle && i + 1 < parts) fn(rows, part_of(p.keys, p.key_rows, p.key_rows), false, false);
    }
  };
  for_parts([&](const auto& rows, const std::vector<Span>& keys, bool first, bool last) {
    Attention a = x.forward(p);
    a.k = rows(x.k), a.v = rows(x.v), a.keys = keys;
    a.carry = first ? Tensor{} : sum;
    a.out = last ? x.out : sum;
    call(attention_kernel, t, a, ctx);
  });
  for_parts([&](const auto& rows, const std::vector<Span>& keys, bool first, bool) {
    AttentionBackward a = x.backward(p);
    a.k = rows(x.k), a.v = rows(x.v), a.keys = keys;
    a.dq = dq, a.dk = rows(dk), a.dv = rows(dv);
    if (!first) a.carry_dq = dq;  // the first call overwrites dq, and every second call its gradients of keys
    const bool adds = idle || calls++ % 2 == parts % 2;
    if (adds && !idle) {
      fill_zero(a.dk, ctx.stream);
      fill_zero(a.dv, ctx.stream);
    }
    if (adds) a.carry_dk = a.dk, a.carry_dv = a.dv;
    call(attention_backward_kernel, t, a, ctx);
  });
  return {read_values(x.out, ctx), read_values(x.lse, ctx), read_values(dq, ctx), read_values(dk, ctx),
          read_values(dv, ctx)};
}

AttentionTolerance tolerance_of(const AttentionTarget& t) {
  if (t.dtype == DType::bf16) return {5e-3, 1e-5, 1e-2};
  if (t.backend == Backend::cpu) return {1e-6, 1e-6, 2e-6};
  return {1e-5, 1e-5, 1e-5};
}

// Conditions are written so that NaN fails them. Gradients of q and k are differences that cancel (completely if a
// query sees one key): their bound is relative to dv as well.
void expect_close(const AttentionResults& got, const AttentionResults& want, const AttentionTolerance& tolerance) {
  EXPECT_LE(distance_of(got.out, want.out), tolerance.out * norm_of(want.out)) << "out";
  ASSERT_EQ(got.lse.size(), want.lse.size());
  for (std::size_t i = 0; i < want.lse.size(); ++i) {
    if (std::isinf(want.lse[i]))
      ASSERT_EQ(got.lse[i], want.lse[i]) << "lse " << i;
    else
      ASSERT_LE(std::abs(got.lse[i] - want.lse[i]), tolerance.lse * (1 + std::abs(want.lse[i]))) << "lse " << i;
  }
  const double floor = 0.1 * norm_of(want.dv);
  EXPECT_LE(distance_of(got.dq, want.dq), tolerance.gradient * (norm_of(want.dq) + floor)) << "dq";
  EXPECT_LE(distance_of(got.dk, want.dk), tolerance.gradient * (norm_of(want.dk) + floor)) << "dk";
  EXPECT_LE(distance_of(got.dv, want.dv), tolerance.gradient * norm_of(want.dv)) << "dv";
}

void expect_right(const AttentionTarget& t, const AttentionProblem& p) {
  if (!takes(t, p)) return;
  const AttentionInputs in = random_inputs(p, t.dtype);
  expect_close(run(t, p, in), reference(p, in), tolerance_of(t));
}

}  // namespace ring::test
