// The geometry that all kernels of the family share, against the number of times that each pair counts as defined.

#include <gtest/gtest.h>

#include "kernels/attention/head_segment.h"
#include "kernels/attention/pairs.h"
#include "tests/cases/attention_oracle.h"

namespace ring::test {
namespace {

struct Arrangement {
  std::string name;
  std::vector<Span> queries, keys;
};

struct NamedPattern {
  std::string name;
  Pattern pattern;
};

std::int32_t rows_of(const std::vector<Span>& spans) {
  std::int32_t rows = 0;
  for (const Span& s : spans) rows = std::max(rows, s.first + s.count);
  return rows;
}

// count[t][u] for rows t of the queries and u of the keys.
struct Counts {
  std::int32_t rows, columns;
  std::vector<int> values;
  explicit Counts(const Arrangement& a)
      : rows(rows_of(a.queries)), columns(rows_of(a.keys)), values(static_cast<std::size_t>(rows * columns)) {}
  int& at(std::int32_t t, std::int32_t u) { return values.at(static_cast<std::size_t>(t * columns + u)); }
};

Counts definition(const Pattern& p, std::int32_t kv_head, const Arrangement& a) {
  Counts m(a);
  for (std::size_t b = 0; b < a.queries.size(); ++b) {
    const Span &q = a.queries[b], &k = a.keys[b];
    for (std::int32_t t = 0; t < q.count; ++t)
      for (std::int32_t u = 0; u < k.count; ++u)
        m.at(q.first + t, k.first + u) += multiplicity(p, kv_head, q.position + t, k.position + u, q.document);
  }
  return m;
}

bool listed(const Pattern& p, const BranchPass& pass, std::int32_t kv_head, std::int32_t q, std::int32_t k) {
  return !pass.listed || p.blocks->keeps(kv_head, q / p.blocks->block(), k / p.blocks->block());
}

// Returns the counts that kernels find, walking from the queries or from the keys.
template <Stationary owner>
Counts found(const Pattern& p, std::int32_t kv_head, const Arrangement& a) {
  constexpr bool queries = owner == Stationary::q;
  Counts m(a);
  for (const BranchPass& pass : passes_of(p))
    for (const SegmentPair& piece : segment_pairs_of(pass, p, a.queries, a.keys)) {
      const HeadSegment s(pass, piece, pass.offset(kv_head));
      constexpr Stationary other = queries ? Stationary::kv : Stationary::q;
      for (std::int32_t j = s.first<owner>(); j < s.end<owner>(); ++j) {
        const Columns columns = s.columns<owner>(j);
        EXPECT_GE(columns.first, s.first<other>());
        EXPECT_LE(columns.end, s.end<other>());
        for (std::int32_t c = s.first<other>(); c < s.end<other>(); ++c) {
          const std::int32_t q = queries ? j : c, k = queries ? c : j;
          if (columns.has(c) && listed(p, pass, kv_head, q, k)) ++m.at(s.q_row + q * s.rate, s.k_row + k * s.rate);
        }
      }
    }
  return m;
}

template <Stationary owner>
void expect_reach(const HeadSegment& s, std::int32_t row, std::int32_t row_end, std::int32_t c, std::int32_t width) {
  bool none = true, all = true;
  for (std::int32_t j = row; j < row_end; ++j)
    for (std::int32_t u = c; u < c + width; ++u) (s.columns<owner>(j).has(u) ? none : all) = false;
  const TileBounds r = s.bounds<owner>(row, row_end);
  // Over several rows in finer segments, `none` may miss an empty tile.
  EXPECT_TRUE(r.none(c, width) == none || (s.finer > 0 && none))
      << "rows " << row << " to " << row_end << ", columns from " << c << ", " << width;
  EXPECT_EQ(r.all(c, width), all) << "rows " << row << " to " << row_end << ", columns from " << c << ", " << width;
}

// Tests blocks of rows and tiles of columns of many sizes.
template <Stationary owner>
void expect_reaches(const Pattern& p, std::int32_t kv_head, const Arrangement& a) {
  constexpr Stationary other = owner == Stationary::q ? Stationary::kv : Stationary::q;
  for (const BranchPass& pass : passes_of(p))
    for (const SegmentPair& piece : segment_pairs_of(pass, p, a.queries, a.keys)) {
      const HeadSegment s(pass, piece, pass.offset(kv_head));
      for (std::int32_t height : {1, 7, 16, 64})
        for (std::int32_t row = s.first<owner>(); row < s.end<owner>(); row += height)
          for (std::int32_t width : {1, 5, 16, 64})
            for (std::int32_t c = s.first<other>(); c < s.end<other>(); c += width)
              expect_reach<owner>(s, row, std::min(row + height, s.end<owner>()), c,
                                  std::min(width, s.end<other>() - c));
    }
}

void expect_geometry(const Pattern& p, const Arrangement& a, bool reaches) {
  constexpr std::int32_t kv_heads = 3;
  double pairs = 0;
  for (std::int32_t h = 0; h < kv_heads; ++h) {
    const Counts want = definition(p, h, a);
    EXPECT_EQ(found<Stationary::q>(p, h, a).values, want.values) << "KV head " << h << ", by queries";
    EXPECT_EQ(found<Stationary::kv>(p, h, a).values, want.values) << "KV head " << h << ", by keys";
    for (int m : want.values) pairs += m;
    if (!reaches) continue;
    expect_reaches<Stationary::q>(p, h, a);
    expect_reaches<Stationary::kv>(p, h, a);
  }
  EXPECT_DOUBLE_EQ(kept_pairs(p, a.queries, a.keys, kv_heads), pairs / kv_heads);
}

// Single documents; documents packed in rows; parts of one document that two devices hold.
std::vector<Arrangement> arrangements() {
  std::vector<Arrangement> all;
  const auto same = [&](const std::string& name, const std::vector<Span>& spans) {
    all.push_back({name, spans, spans});
  };
  same("one", spans_of({0, 97}));
  same("ragged", spans_of(offsets_of({1, 40, 0, 33})));
  same("packed", spans_of(offsets_of({13, 37, 24, 50, 0, 7}), {0, 50}));
  same("not_from_the_first_row", spans_of({5, 40, 71}, {5}));
  const auto shard = [](std::int32_t first, std::int32_t count, std::int32_t position, std::int32_t document = 0) {
    return Span{first, count, position, document};
  };
  all.push_back({"earlier_keys", {shard(0, 40, 48)}, {shard(0, 48, 0)}});
  all.push_back({"later_keys", {shard(3, 30, 10)}, {shard(0, 30, 40)}});
  all.push_back({"overlap", {shard(0, 50, 20)}, {shard(2, 60, 33)}});
  all.push_back({"two_shards", {shard(0, 20, 20), shard(20, 20, 100)}, {shard(5, 30, 0), shard(40, 33, 80)}});
  all.push_back(
      {"shards_of_packed", {shard(0, 20, 30, 25), shard(20, 9, 70, 61)}, {shard(4, 12, 25, 25), shard(16, 0, 61, 61)}});
  all.push_back({"no_queries", {shard(0, 0, 10), shard(0, 9, 0)}, {shard(0, 12, 4), shard(12, 9, 0)}});
  return all;
}

std::vector<NamedPattern> named_patterns() {
  std::vector<NamedPattern> all;
  for (bool causal : {true, false}) {
    const auto add = [&](const std::string& name, const Pattern& p) {
      all.push_back({name + (causal ? "_causal" : "_full"), p});
    };
    add("dense", dense(causal));
    for (std::int32_t w : {1, 2, 9, 64, 1000})
      for (std::int32_t sinks : {0, 1, 4, 40, 2000}) add(str("window", w, "_sinks", sinks), window(w, sinks, causal));
    add("dilated_one", dilated({{1000, 1}}, false, 0, causal));
    add("dilated_short", dilated({{8, 1}}, false, 0, causal));
    add("dilated_chain", dilated({{8, 1}, {16, 2}, {32, 4}}, false, 1, causal));
    add("dilated_chain_dedup", dilated({{8, 1}, {16, 2}, {32, 4}}, true, 1, causal));
    add("dilated_wide_dedup", dilated({{4, 1}, {12, 3}, {48, 6}, {96, 6}}, true, 0, causal));
    add("dilated_same_segment_dedup", dilated({{12, 1}, {12, 2}, {24, 4}}, true, 5, causal));
    add("dilated_ragged", dilated({{7, 1}, {20, 3}, {33, 5}, {50, 7}}, false, 2, causal));
    add("dilated_rate_is_segment", dilated({{5, 1}, {6, 6}, {11, 10}}, false, 0, causal));
    add("dilated_more_offsets_than_heads", dilated({{16, 1}, {64, 16}}, false, 9, causal));
    add("scales", scales(causal));
    add("chunks", chunks(causal));
  }
  return all;
}

void PrintTo(const NamedPattern& p, std::ostream* out) { *out << p.name; }

class AttentionGeometry : public testing::TestWithParam<NamedPattern> {};
INSTANTIATE_TEST_SUITE_P(All, AttentionGeometry, testing::ValuesIn(named_patterns()),
                         [](const auto& info) { return info.param.name; });

TEST_P(AttentionGeometry, EveryPairIsFoundAsOftenAsItCounts) {
  for (const Arrangement& a : arrangements()) {
    SCOPED_TRACE(a.name);
    expect_geometry(GetParam().pattern, a, true);
  }
}

// Each query sees all earlier keys, regardless of how parts of a document are spread over devices.
TEST(AttentionGeometryParts, KeysInPartsAddUpToTheWhole) {
  for (const NamedPattern& n : named_patterns()) {
    SCOPED_TRACE(n.name);
    const Arrangement whole{"whole", spans_of({0, 90}), spans_of({0, 90})};
    const Counts want = definition(n.pattern, 1, whole);
    for (std::int32_t parts : {2, 3, 7}) {
      Counts sum(whole);
      for (std::int32_t i = 0; i < parts; ++i) {
        const std::int32_t first = 90 * i / parts, end = 90 * (i + 1) / parts;
        const Counts part = found<Stationary::q>(n.pattern, 1, {"", whole.queries, {{0, end - first, first, 0}}});
        for (std::int32_t t = 0; t < 90; ++t)
          for (std::int32_t u = first; u < end; ++u)
            sum.at(t, u) += part.values[static_cast<std::size_t>(t * (end - first) + u - first)];
      }
      EXPECT_EQ(sum.values, want.values) << parts;
    }
  }
}

TEST(AttentionGeometryParts, DedupCountsSharedPairsOnce) {
  const Arrangement a{"", spans_of({0, 64}), spans_of({0, 64})};
  const std::vector<Branch> chain = {{16, 1}, {32, 2}, {64, 4}};
  int most = 0;
  for (int m : definition(dilated(chain), 0, a).values) most = std::max(most, m);
  EXPECT_EQ(most, 3);
  for (int m : definition(dilated(chain, true), 0, a).values) EXPECT_LE(m, 1);
}

// The widest window must not overflow.
TEST(AttentionGeometryParts, TheWidestWindowIsDense) {
  const Arrangement a{"", spans_of({0, 40}), spans_of({0, 40})};
  for (bool causal : {true, false})
    for (std::int32_t sinks : {0, 3}) {
      const Pattern p = window(std::numeric_limits<std::int32_t>::max(), sinks, causal);
      EXPECT_EQ(found<Stationary::q>(p, 0, a).values, definition(dense(causal), 0, a).values);
      EXPECT_EQ(found<Stationary::kv>(p, 0, a).values, definition(dense(causal), 0, a).values);
    }
}

// Pairs of a long document are counted by formula: walking over them would take too long.
TEST(AttentionGeometryParts, PairsOfLongDocumentsAreCounted) {
  const std::int32_t n = 1 << 20;
  const std::vector<Span> spans = spans_of({0, n});
  EXPECT_EQ(kept_pairs(dense(), spans, spans, 2), 0.5 * n * (n + 1.0));
  EXPECT_EQ(kept_pairs(window(1024), spans, spans, 2), 1024.0 * n - 512.0 * 1023);
  EXPECT_EQ(kept_pairs(dilated({{2048, 1}, {4096, 2}}), spans, spans, 2), 512 * 1024.0 * 2049 + 256 * 1024.0 * 2049);
}

std::vector<NamedPattern> block_patterns() {
  using K = BlockRuleKind;
  const std::vector<std::uint32_t> bits = {0b00001, 0b00011, 0b00100, 0b01010, 0b10001, 0b100110};
  std::vector<NamedPattern> all;
  for (bool causal : {true, false})
    for (std::int32_t block : {64, 128}) {
      const auto add = [&](const std::string& name, const std::vector<BlockRule>& rules) {
        all.push_back({str(name, block, causal ? "_causal" : "_full"), block_sparse(block, rules, causal, bits)});
      };
      add("local", {{.kind = K::local_global, .local = 2, .first = 1}});
      add("per_head", {{.kind = K::strided, .local = 1, .every = 2}, {.kind = K::hierarchical, .local = 1}});
      add("random", {{.kind = K::random, .threshold = 1u << 31, .seed = 5}});
      add("drawn", {{.kind = K::drawn, .rows = 6, .words = 1}});
    }
  return all;
}

TEST(AttentionGeometryParts, EveryBlockRuleCountsItsPairs) {
  const std::vector<Arrangement> all = {{"one", spans_of({0, 333}), spans_of({0, 333})},
                                        {"packed", spans_of(offsets_of({100, 60, 140, 30}), {0, 160}),
                                         spans_of(offsets_of({100, 60, 140, 30}), {0, 160})},
                                        {"shards", {{0, 90, 170, 0}}, {{4, 150, 60, 0}}}};
  for (const NamedPattern& n : block_patterns())
    for (const Arrangement& a : all) {
      SCOPED_TRACE(n.name + " " + a.name);
      expect_geometry(n.pattern, a, false);
    }
}

}  // namespace
}  // namespace ring::test
