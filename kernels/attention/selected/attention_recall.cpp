#include "kernels/attention/selected/attention_recall.h"

#include <algorithm>

#include "kernels/attention/blocks.h"
#include "kernels/rows.h"

namespace ring {

void check(const AttentionRecall& a) {
  constexpr const char* op = "attention_recall";
  RING_CHECK(a.kept.defined() && a.kept.shape().size() == 2, op, ": kept is ", describe(a.kept), ", expected [Hq,N]");
  check_shape(op, "dense", a.dense, a.kept.shape());
  check_shape(op, "out", a.out, {a.kept.dim(1), 2 * a.kept.dim(0)});
  for (const Tensor* t : {&a.kept, &a.dense, &a.out})
    RING_CHECK(t->dtype() == DType::f32 && t->is_contiguous(), op, ": ", describe(*t), " is not f32 and contiguous");
}

void check(const SelectedPairs& a) {
  constexpr const char* op = "selected_pairs";
  RING_CHECK(a.selection.kept.defined() && a.selection.kept.shape().size() == 3, op, ": the selection is ",
             describe(a.selection.kept));
  check(a.selection, a.pattern, a.queries, a.keys, a.selection.kept.dim(1), op);
  RING_CHECK(a.queries.size() == a.keys.size(), op, ": ", a.queries.size(), " spans of queries, ", a.keys.size(),
             " of keys");
  for (std::size_t b = 0; b < a.queries.size(); ++b) {
    const Span &q = a.queries[b], &k = a.keys[b];
    RING_CHECK(k.position == k.document && q.document == k.document && q.position >= k.position &&
                   q.position + q.count <= k.position + k.count,
               op, ": positions ", q.position, " .. ", q.position + q.count, " are not of the document at ", k.position,
               " of ", k.count, " tokens");
  }
  check_shape(op, "out", a.out, {a.selection.kept.dim(0), 2});
  RING_CHECK(a.out.dtype() == DType::f32 && a.out.is_contiguous(), op, ": ", describe(a.out),
             " is not f32 and contiguous");
}

std::vector<QuerySample> sample_blocks(const Pattern& pattern, const std::vector<Span>& documents, std::int64_t max) {
  const std::vector<std::int32_t> first = first_blocks(pattern, documents);
  const std::int64_t all = first.back(), taken = std::min(all, max), size = pattern.blocks->block();
  std::vector<QuerySample> calls;
  for (std::size_t b = 0; b < documents.size(); ++b) {
    const Span& d = documents[b];
    const std::int64_t start =
        pattern.origin(d.document) - d.position;  // first row of the document's block 0, minus d.first; at most 0
    std::size_t stretches = 0;                    // number of runs of sampled blocks so far
    bool goes_on = false;                         // true if the previous block was sampled
    for (std::int64_t r = first[b]; r < first[b + 1]; ++r) {
      const bool takes = (r + 1) * taken / all > r * taken / all;
      const auto begin = static_cast<std::int32_t>(std::max<std::int64_t>(0, start + (r - first[b]) * size));
      const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(d.count, start + (r - first[b] + 1) * size));
      if (takes && !goes_on) {
        if (stretches++ == calls.size()) calls.emplace_back();
        calls[stretches - 1].queries.push_back({d.first + begin, 0, d.position + begin, d.document});
        calls[stretches - 1].keys.push_back(d);
      }
      if (takes) calls[stretches - 1].queries.back().count += end - begin;
      goes_on = takes;
    }
  }
  return calls;
}

}  // namespace ring
