#pragma once
#include "kernels/attention/dropout.h"
#include "kernels/attention/pairs.h"
#include "kernels/attention/pattern.h"
#include "kernels/attention/selection.h"
#include "kernels/kernel.h"

namespace ring {

// Exact softmax attention in O(S) memory (Dao et al. 2022/2023: blocked, saves the log-sum-exp) over the query-key
// pairs of a pattern. One call covers many documents.
//   q, out  [N,Hq,D]; k, v [M,Hk,D]: any strides with unit last dim; D a multiple of 8. q, k and v have one type, f32
//           or bf16; out has the same type or f32. Scores and accumulators are f32.
//   lse     [Hq,N] f32: log-sum-exp, as a natural logarithm.
// Query head h reads KV head h * Hk / Hq. Queries of span queries[b] see only keys of span keys[b]: both are one whole
// document, or parts of it on two devices. A query that has no keys or is in no span gets out 0, lse -inf and gradients
// 0. Rows in no span must still be finite, since a kernel may multiply them by a probability of 0.
//
// carry (f32 [N,Hq,D], may be `out`; its contents are destroyed): on entry, carry and lse hold a result a over other
// keys. The call merges its own result b into result a in f32: lse = log(exp(lse_a) + exp(lse_b)), and out is the mean
// of both outputs with the weights exp(lse_a) and exp(lse_b). Rows in no span keep the carried result.
//
// selection: required if the pattern selects blocks. Unless the selection has `rows`, queries and keys must then be the
// same spans, each a whole document.
//
// dropout: a probability P contributes 0 or P / (1 - rate) to `out`. lse ignores dropout, so that results over
// different keys merge as without dropout. If the pattern counts a pair m times, the pair is still dropped or kept as a
// whole.
struct Attention {
  Tensor q, k, v, out, lse;
  std::vector<Span> queries, keys;
  float scale = 1;
  Pattern pattern;
  Tensor carry;
  AttentionDropout dropout{};
  BlockSelection selection{};
  float soft_cap = 0;  // a score s = scale q.k becomes soft_cap * tanh(s / soft_cap); 0: no cap
};
// Returns the FLOPs of the kept pairs. per_pair: FLOPs per pair, head and element of D: 4 forward, 10 backward.
inline double attention_flops(double per_pair, const Tensor& q, const Tensor& k, const Pattern& pattern,
                              const std::vector<Span>& queries, const std::vector<Span>& keys) {
  return per_pair * static_cast<double>(q.dim(1) * q.dim(2)) * kept_pairs(pattern, queries, keys, k.dim(1));
}
// Counts the bytes that GPU kernels move. With several branches, each branch reads its own samples and merges its
// result into a carry in f32.
Cost cost(const Attention&);
std::size_t scratch_bytes(const Attention&, const ExecContext&);
// Returns the size in bytes of the block lists that GPUs build from the call's selection; 0 without a selection.
// scratch_bytes() includes this size.
std::size_t list_bytes(const Attention&);
// Returns the fastest kernel for the shape, measured at the first call. A carry does not affect the choice.
const Kernel<Attention>::Candidate& choose_fastest(const Kernel<Attention>&, const Attention&, const ExecContext&);
inline constinit Kernel<Attention> attention_kernel{"attention", choose_fastest};

// Backward of Attention: P = exp(scale q.k - lse), D = rowsum(dout * out), dS = P * (dP - D). If the pattern counts a
// pair m times, the pair has m P.
//   dq, dk, dv  the shapes of q, k and v, any strides with unit last dim, of their type or f32; overwritten.
//   out, lse    the final results over all keys of a query, even if this call covers only some of the keys.
//   dropout     as in the forward: dP is masked and scaled by 1 / (1 - rate), and so is the P that dv uses.
//   carry_*     f32, may be the gradient itself; the carry is added to the gradient in f32, and then destroyed.
// Results are bit-identical from run to run if ctx.deterministic is set. On CPUs they always are, per thread count.
struct AttentionBackward {
  Tensor q, k, v, out, lse, dout;
  Tensor dq, dk, dv;
  std::vector<Span> queries, keys;
  float scale = 1;
  Pattern pattern;
  Tensor carry_dq, carry_dk, carry_dv;  // each may be undefined; carry_dk and carry_dv only together
  AttentionDropout dropout{};
  BlockSelection selection{};
  float soft_cap = 0;
};
// Counts the bytes that GPU kernels move. They accumulate dq in f32 (clear, add, round), and with
// several branches also dk and dv.
Cost cost(const AttentionBackward&);
std::size_t scratch_bytes(const AttentionBackward&, const ExecContext&);
std::size_t list_bytes(const AttentionBackward&);  // size of the query lists or of the key lists, whichever is larger
const Kernel<AttentionBackward>::Candidate& choose_fastest(const Kernel<AttentionBackward>&, const AttentionBackward&,
                                                           const ExecContext&);
inline constinit Kernel<AttentionBackward> attention_backward_kernel{"attention_backward", choose_fastest};

// Rows of a cache: `count` rows first, first + stride, ...
struct CacheRows {
  std::int32_t first = 0, count = 0, stride = 1;
  bool operator==(const CacheRows&) const = default;
};
// Attention of one new query per sequence over a KV cache, for generation: q, out [B,Hq,D]; k, v [B,capacity,Hk,D].
// KV head h of sequence b attends over the cache rows of rows[i] for starts[b Hk + h] <= i < starts[b Hk + h + 1]. A
// row counts once for each entry that contains it.
//
// k_scales, v_scales: either both are undefined, and k and v have the type of q; or k and v are u8 with e4m3 codes, and
// the scales, [B,capacity,Hk] and contiguous, belong to the codes' rows of heads (kernels/row_encoding.h).
//
// sinks: [Hq], contiguous and of q's type: one more logit per head, whose probability is dropped (sink.h). Undefined
// means that there are no sinks.
struct AttentionDecode {
  Tensor q, k, v, out;
  std::vector<CacheRows> rows;
  std::vector<std::int32_t> starts;  // B Hk + 1 indices into `rows`
  float scale = 1;
  Tensor k_scales{}, v_scales{};
  float soft_cap = 0;
  Tensor sinks{};
};
inline Cost cost(const AttentionDecode& a) { return cost_of(a.q, {a.q, a.k, a.v, a.out, a.k_scales, a.v_scales}); }
inline constinit Kernel<AttentionDecode> attention_decode_kernel{"attention_decode"};

// --- for kernels ---

// Throws Error, naming the tensor, if shapes, types, spans or the pattern do not fit.
void check(const Attention&);
void check(const AttentionBackward&);
void check(const AttentionDecode&);

// Return the key under which a measured choice of kernel is stored (choice_key), and the pattern's part of this key
// (pattern_key). The key contains everything that the speed depends on, so the pattern's `shift` is left out. Document
// lengths are bucketed, so that packed batches with about the same work share a key.
std::string pattern_key(const Pattern&);
std::string choice_key(const Attention&);
std::string choice_key(const AttentionBackward&);

// Truncates the spans of a long dense call to their first rows, so that about `flops` remain: measuring is quicker, and
// kernels rank the same. Leaves other patterns unchanged, because their kept pairs may be anywhere.
void limit_work(Attention&, double flops);
void limit_work(AttentionBackward&, double flops);

// Calls fn(first, count) for each run of the rows [0, rows) that is in no span.
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
