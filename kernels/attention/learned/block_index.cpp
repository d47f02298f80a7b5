#include "kernels/attention/learned/block_index.h"

#include <algorithm>
#include <cmath>

#include "core/checked.h"
#include "kernels/attention/blocks.h"
#include "kernels/rows.h"

namespace ring {
namespace {

// Returns the FLOPs of the dot products between all heads' queries and the keys of all earlier blocks, and
// of applying the head weights.
double products(const IndexShape& s, const std::vector<SelectedRows>& documents) {
  double pairs = 0;
  for (const SelectedRows& d : documents)
    pairs += 0.5 * (static_cast<double>(d.begin) + d.end - 1) * (static_cast<double>(d.end) - d.begin);
  return 2 * pairs * static_cast<double>(s.heads * (s.dim + s.count));
}

void check_projected(const char* op, const Tensor& t, const IndexShape& s) {
  RING_CHECK(s.heads > 0 && s.heads <= kMaxIndexHeads && s.dim > 0 && s.dim <= kMaxIndexDim, op, ": ", s.heads,
             " heads of ", s.dim, ", expected at most ", kMaxIndexHeads, " of ", kMaxIndexDim);
  RING_CHECK(s.first_head >= 0 && s.count > 0 && s.first_head + s.count <= s.kv_heads, op, ": ", s.count,
             " KV heads from ", s.first_head, " on, of ", s.kv_heads);
  RING_CHECK(t.defined() && t.is_contiguous() && t.shape().size() == 2 && t.dim(1) == s.width(), op, ": projected is ",
             describe(t), ", expected ", s.width(), " columns for ", s.heads, " heads of ", s.dim, " and ", s.kv_heads,
             " KV heads");
}

void check_biases(const char* op, const char* name, const Tensor& t, const IndexShape& s) {
  RING_CHECK(s.distances >= 0 && s.distances <= kMaxDistanceBuckets, op, ": ", s.distances,
             " buckets of distances, expected at most ", kMaxDistanceBuckets);
  RING_CHECK(t.defined() == (s.distances > 0), op, ": ", name, " is ", describe(t), " for ", s.distances,
             " buckets of distances");
  if (t.defined()) check_numel(op, name, t, s.biases());
}

void check_scores(const char* op, const char* name, const Tensor& t, std::int64_t heads) {
  RING_CHECK(t.defined() && t.dtype() == DType::f32 && t.is_contiguous() && t.shape().size() == 3 && t.dim(1) == heads,
             op, ": ", name, " is ", describe(t), ", expected f32[blocks, ", heads, ", blocks]");
}

// Checks that dscores has the shape of the kept blocks.
void check_kept(const char* op, const Tensor& kept, const Tensor& dscores) {
  RING_CHECK(kept.defined() && kept.dtype() == DType::i32 && kept.is_contiguous() && kept.shape() == dscores.shape(),
             op, ": kept blocks are ", describe(kept), " for ", describe(dscores));
}

void check_rows(const char* op, const Tensor& projected, const Tensor& scores, const SelectedRows& d) {
  RING_CHECK(
      d.begin >= 0 && d.begin <= d.end &&
          has_rows(scores, std::int64_t{d.kept} + d.begin, std::int64_t{d.kept} + d.end) &&
          has_rows(projected, d.keys, std::int64_t{d.keys} + d.end - 1) &&
          has_rows(projected, std::int64_t{d.queries} + std::max(0, d.begin - 1), std::int64_t{d.queries} + d.end - 1),
      op, ": blocks ", d.begin, " to ", d.end, " with rows ", d.queries, ", ", d.keys, " and ", d.kept,
      " do not fit projected ", describe(projected), " and scores ", describe(scores));
}

constexpr std::int64_t kMinScoredRows = 32;  // minimum number of query blocks per chunk of scores

// Returns the parts of the documents whose query blocks have rows [first, end) in scores and lists. In the result,
// these rows are counted from `first`.
std::vector<SelectedRows> with_rows(const std::vector<SelectedRows>& documents, std::int64_t first, std::int64_t end) {
  std::vector<SelectedRows> some;
  for (SelectedRows d : documents) {
    d.kept = narrow<std::int32_t>(d.kept - first);
    d.begin = narrow<std::int32_t>(std::max<std::int64_t>(d.begin, -std::int64_t{d.kept}));
    d.end = narrow<std::int32_t>(std::min<std::int64_t>(d.end, end - first - d.kept));
    if (d.begin < d.end) some.push_back(d);
  }
  return some;
}

}  // namespace

float IndexShape::scale() const { return 1 / std::sqrt(static_cast<float>(heads * dim)); }

Cost cost(const IndexScores& a) {
  return cost_of(a.projected, {a.projected, a.scores, a.biases}, products(a.shape, a.documents));
}

Cost cost(const IndexScoresBackward& a) {
  return cost_of(a.projected, {a.projected, a.kept, a.dscores, a.dprojected, a.beta != 0 ? a.dprojected : Tensor{}},
                 3 * products(a.shape, a.documents));
}

void check(const IndexScores& a) {
  constexpr const char* op = "index_scores";
  check_projected(op, a.projected, a.shape);
  check_scores(op, "scores", a.scores, a.shape.count);
  check_biases(op, "biases", a.biases, a.shape);
  RING_CHECK(!a.biases.defined() || a.biases.dtype() == a.projected.dtype(), op, ": biases are ", describe(a.biases),
             " for projected ", describe(a.projected));
  for (const SelectedRows& d : a.documents) {
    check_rows(op, a.projected, a.scores, d);
    RING_CHECK(d.end <= a.scores.dim(2), op, ": a document of ", d.end, " blocks for scores ", describe(a.scores));
  }
}

void check(const IndexScoresBackward& a) {
  constexpr const char* op = "index_scores_backward";
  check_projected(op, a.projected, a.shape);
  check_scores(op, "dscores", a.dscores, a.shape.count);
  check_kept(op, a.kept, a.dscores);
  RING_CHECK(a.dprojected.defined() && a.dprojected.shape() == a.projected.shape() && a.dprojected.is_contiguous() &&
                 a.dprojected.dtype() == a.projected.dtype(),
             op, ": dprojected is ", describe(a.dprojected), " for ", describe(a.projected));
  for (const SelectedRows& d : a.documents) {
    RING_CHECK(d.queries == d.keys && has_rows(a.projected, d.keys, std::int64_t{d.keys} + d.end), op,
               ": a document of ", d.end, " blocks has queries in rows from ", d.queries, " and keys in rows from ",
               d.keys, " on, for projected ", describe(a.projected));
    check_rows(op, a.projected, a.dscores, d);
  }
}

void check(const IndexDistancesBackward& a) {
  constexpr const char* op = "index_distances_backward";
  check_scores(op, "dscores", a.dscores, a.shape.count);
  check_kept(op, a.kept, a.dscores);
  RING_CHECK(a.dbiases.defined(), op, ": no dbiases");
  check_biases(op, "dbiases", a.dbiases, a.shape);
  for (const SelectedRows& d : a.documents)
    RING_CHECK(d.begin >= 0 && d.begin <= d.end &&
                   has_rows(a.dscores, std::int64_t{d.kept} + d.begin, std::int64_t{d.kept} + d.end),
               op, ": blocks ", d.begin, " to ", d.end, " from row ", d.kept, " on do not fit dscores ",
               describe(a.dscores));
}

void check(const IndexLoss& a) {
  constexpr const char* op = "index_loss";
  RING_CHECK(a.blocks, op, ": no block pattern");
  RING_CHECK(a.scores.defined() && a.scores.shape().size() == 3, op, ": scores are ", describe(a.scores));
  const std::int64_t rows = a.scores.dim(0), heads = a.scores.dim(1);
  check_scores(op, "scores", a.scores, heads);
  check_scores(op, "mass", a.mass, heads);
  check_shape(op, "mass", a.mass, a.scores.shape());
  if (a.gradient.defined()) {
    check_scores(op, "gradient", a.gradient, heads);
    check_shape(op, "gradient", a.gradient, a.scores.shape());
  }
  check_kept(op, a.kept, a.scores);
  check_numel(op, "loss", a.loss, rows);
  for (const PoolSegment& d : a.documents) {
    const std::int32_t begin = d.leading_gap / a.blocks->block(), end = d.blocks(a.blocks->block());
    RING_CHECK(end == 0 || has_rows(a.scores, std::int64_t{d.out} + begin, std::int64_t{d.out} + end), op, ": blocks ",
               begin, " to ", end, " from row ", d.out, " on do not fit scores ", describe(a.scores));
  }
}

std::vector<SelectedRows> whole_documents(const std::vector<std::int32_t>& counts) {
  std::vector<SelectedRows> documents;
  std::int32_t first = 0;
  for (const std::int32_t count : counts) {
    documents.push_back({.queries = first, .keys = first, .kept = first, .begin = 0, .end = count});
    first += count;
  }
  return documents;
}

IndexSelection select_by_index(const Tensor& projected, const Tensor& biases, const IndexShape& shape,
                               const std::vector<SelectedRows>& documents, std::int64_t rows,
                               const std::shared_ptr<const BlockPattern>& blocks, const ExecContext& ctx) {
  std::int32_t max = 0;
  for (const SelectedRows& d : documents) max = std::max(max, d.end);
  const std::int64_t row_bytes = std::max<std::int64_t>(1, shape.count * max * std::int64_t{sizeof(float)});
  const std::int64_t chunk = std::min(rows, std::max(kMinScoredRows, kScoreBytes / row_bytes));
  const Shape lists{rows, shape.count, max_kept_blocks(*blocks, shape.count, max)};
  const IndexSelection made{{ctx.empty(lists, DType::i32)}, ctx.empty(lists)};
  const Tensor scores = ctx.empty({chunk, shape.count, max});
  for (std::int64_t first = 0; first < rows; first += chunk) {
    const std::int64_t count = std::min(chunk, rows - first);
    const std::vector<SelectedRows> some = with_rows(documents, first, first + count);
    index_scores_kernel({projected, scores, shape, some, biases}, ctx);
    block_select_kernel({.queries = {},
                         .keys = {},
                         .kept = made.selection.kept.narrow(0, first, count),
                         .documents = some,
                         .blocks = blocks,
                         .scores = scores.narrow(0, 0, count),
                         .kept_scores = made.scores.narrow(0, first, count)},
                        ctx);
  }
  return made;
}

}  // namespace ring
