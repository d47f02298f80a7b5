#pragma once
#include "kernels/attention/dropout.h"
#include "kernels/attention/pairs.h"
#include "kernels/attention/pattern.h"
#include "kernels/attention/selection.h"
#include "kernels/kernel.h"

namespace ring {

// Exact softmax attention in O(S) memory (Dao et al. 2022/2023; blocked, log-sum-exp kept) over the pairs of a pattern,
// one call for many documents. q, out [N,Hq,D]; k, v [M,Hk,D]; any strides with unit last dim; D a multiple of 8. Query
// head h reads KV head h * Hk / Hq. The queries of span queries[b] see keys of span keys[b] only (the whole of a
// document, or the parts that lie on two devices). lse [Hq,N] f32, natural logarithm. A row with no key or of no span:
// out 0, lse -inf, gradients 0; what it holds must be finite, since a kernel may read it with a weight of 0. q, k, v:
// one type, f32 or bf16; scores and sums are f32. out: that type, or f32.
//
// With a carry (f32 [N,Hq,D], used up; it may be `out` itself), carry and lse hold the result over other keys, and this
// call's is merged into them in f32: lse = log(exp(a) + exp(b)), out weighted alike. Rows of no span keep what is
// carried.
//
// A pattern that selects needs a selection; the spans are then whole documents, the same ones of queries and keys,
// unless the selection says which rows are whose.
//
// With dropout, a weight P counts in `out` as 0 or as P / (1 - rate); lse is that of all pairs, so that results over
// other keys merge as without. A pair that counts m times is dropped as one.
struct Attention {
  Tensor q, k, v, out, lse;
  std::vector<Span> queries, keys;
  float scale = 1;
  Pattern pattern;
  Tensor carry;
  AttentionDropout dropout{};
  BlockSelection selection{};
};
// FLOPs of kept pairs: 4 Hq D per pair forward, 10 Hq D backward.
inline double attention_flops(double per_pair, const Tensor& q, const Tensor& k, const Pattern& pattern,
                              const std::vector<Span>& queries, const std::vector<Span>& keys) {
  return per_pair * static_cast<double>(q.dim(1) * q.dim(2)) * kept_pairs(pattern, queries, keys, k.dim(1));
}
inline Cost cost(const Attention& a) {
  return cost_of(a.q, {a.q, a.k, a.v, a.out, a.lse}, attention_flops(4, a.q, a.k, a.pattern, a.queries, a.keys));
}
std::size_t scratch_bytes(const Attention&, const ExecContext&);
// The fastest kernel for the shape, once measured; for calls with a carry as for those without.
const Kernel<Attention>::Candidate& choose_fastest(const Kernel<Attention>&, const Attention&, const ExecContext&);
inline constinit Kernel<Attention> attention_kernel{"attention", choose_fastest};

// dq, dk, dv: shapes of q, k, v, any strides with unit last; of their type or f32; overwritten. P = exp(scale q.k -
// lse), D = rowsum(dout * out), dS = P * (dP - D), with out and lse over all keys of a query, also where this call sees
// a part of them. A pair that counts m times has m P. With the same dropout as in the forward, dP is what comes through
// it, and dv has the weights that were kept. With a carry (f32, used up; it may be the gradient itself) its
// values are added to its gradient in f32. Deterministic for a given thread count where the context asks for it (CPU:
// always).
struct AttentionBackward {
  Tensor q, k, v, out, lse, dout;
  Tensor dq, dk, dv;
  std::vector<Span> queries, keys;
  float scale = 1;
  Pattern pattern;
  Tensor carry_dq, carry_dk, carry_dv;  // each or none, but those of dk and dv go together
  AttentionDropout dropout{};
  BlockSelection selection{};  // as in the forward
};
inline Cost cost(const AttentionBackward& a) {
  return cost_of(a.q, {a.q, a.k, a.v, a.out, a.lse, a.dout, a.dq, a.dk, a.dv},
                 attention_flops(10, a.q, a.k, a.pattern, a.queries, a.keys));
}
std::size_t scratch_bytes(const AttentionBackward&, const ExecContext&);
const Kernel<AttentionBackward>::Candidate& choose_fastest(const Kernel<AttentionBackward>&, const AttentionBackward&,
                                                           const ExecContext&);
inline constinit Kernel<AttentionBackward> attention_backward_kernel{"attention_backward", choose_fastest};

// Rows first, first + stride, .. of a cache.
struct CacheRows {
  std::int32_t first = 0, count = 0, stride = 1;
  bool operator==(const CacheRows&) const = default;
};
// One new query per sequence against a cache, for generation: q, out [B,Hq,D]; k, v [B,capacity,Hk,D]. Sequence b and
// KV head h attend over the rows of rows[starts[b Hk + h]] .. rows[starts[b Hk + h + 1]]; a row that stands in several
// of them counts as often.
struct AttentionDecode {
  Tensor q, k, v, out;
  std::vector<CacheRows> rows;
  std::vector<std::int32_t> starts;  // B Hk + 1
  float scale = 1;
};
inline Cost cost(const AttentionDecode& a) { return cost_of(a.q, {a.q, a.k, a.v, a.out}); }
inline constinit Kernel<AttentionDecode> attention_decode_kernel{"attention_decode"};

// --- for kernels ---

// Shapes, types, spans and pattern. Errors name the tensor.
void check(const Attention&);
void check(const AttentionBackward&);
void check(const AttentionDecode&);

// What their speed depends on, for measured choices. Calls that differ in the lengths of their documents share a key
// where these have much the same work.
std::string pattern_key(const Pattern&);  // names the pairs that it keeps, but for `shift`
std::string choice_key(const Attention&);
std::string choice_key(const AttentionBackward&);

// A long call of dense attention cut to the first rows of its spans, so that about this many FLOPs are left: as good to
// compare kernels. Other patterns stay as they are: what they keep may lie anywhere.
void shorten(Attention&, double flops);
void shorten(AttentionBackward&, double flops);

// fn(first, count) for the rows of no span.
template <class Fn>
void for_rows_outside(const std::vector<Span>& spans, std::int64_t rows, const Fn& fn) {
  std::int64_t next = 0;
  for (const Span& s : sorted_by_row(spans)) {
    if (s.first > next) fn(next, s.first - next);
    next = s.first + s.count;
  }
  if (next < rows) fn(next, rows - next);
}

}  // namespace ring
