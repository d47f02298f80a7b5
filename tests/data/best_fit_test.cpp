// Packing of documents by best fit.
#include "data/best_fit.h"

#include <set>

#include "packed_documents.h"

namespace ring {
namespace {

std::vector<PackedPiece> pieces_of(const std::vector<std::int32_t>& lengths) {
  std::vector<PackedPiece> out;
  std::uint64_t begin = 0;
  for (const std::int32_t n : lengths) {
    out.push_back({begin, 0, n, true});
    begin += static_cast<std::uint64_t>(n);
  }
  return out;
}

std::vector<std::int32_t> draw_lengths(std::size_t pieces, std::uint64_t seed) {
  std::vector<std::int32_t> lengths = random_lengths(pieces, seed, static_cast<std::int32_t>(kContext) - 1);
  for (std::int32_t& n : lengths) ++n;
  return lengths;
}

// Packs by definition, checking every row for every piece. Returns the beginnings of the pieces of each row.
std::vector<std::vector<std::uint64_t>> by_definition(std::vector<PackedPiece> pieces, std::int64_t align) {
  std::vector<std::vector<std::uint64_t>> rows;
  std::vector<std::int64_t> used;
  for (std::int64_t length = kContext; length > 0; --length)
    for (const PackedPiece& p : pieces) {
      if (p.length != length) continue;
      std::size_t best = rows.size();
      for (std::size_t r = 0; r < rows.size(); ++r)
        if (used[r] + length <= kContext && (best == rows.size() || used[r] > used[best])) best = r;
      if (best == rows.size()) rows.emplace_back(), used.push_back(0);
      rows[best].push_back(p.begin);
      for (used[best] += length; used[best] % align;) ++used[best];
    }
  return rows;
}

TEST(BestFit, MatchesItsDefinition) {
  for (std::uint64_t seed = 0; seed < 60; ++seed)
    for (const std::int64_t align : {1, 3, 8, 32, 50}) {
      const std::vector<PackedPiece> pieces = pieces_of(draw_lengths(1 + seed * 2, seed));
      const auto rows = best_fit(pieces, kContext, align);
      const auto want = by_definition(pieces, align);
      ASSERT_EQ(rows.size(), want.size()) << "seed " << seed << ", align " << align;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        std::vector<std::uint64_t> begins;
        std::int64_t free_from = 0;
        for (const PackedPiece& p : rows[r]) {
          begins.push_back(p.begin);
          EXPECT_GE(p.at, free_from);
          EXPECT_LT(p.at - free_from, align);
          EXPECT_EQ(p.at % align, 0);
          free_from = p.at + p.length;
        }
        EXPECT_LE(free_from, kContext);
        ASSERT_EQ(begins, want[r]) << "seed " << seed << ", align " << align;
      }
    }
}

// Returns the minimum number of rows, by trying every packing.
std::size_t min_rows(const std::vector<std::int32_t>& lengths, std::size_t next, std::vector<std::int64_t>& used,
                     std::size_t bound) {
  if (used.size() >= bound) return bound;
  if (next == lengths.size()) return used.size();
  for (std::size_t r = 0; r < used.size(); ++r) {
    if (used[r] + lengths[next] > kContext) continue;
    used[r] += lengths[next];
    bound = min_rows(lengths, next + 1, used, bound);
    used[r] -= lengths[next];
  }
  used.push_back(lengths[next]);
  bound = min_rows(lengths, next + 1, used, bound);
  used.pop_back();
  return bound;
}

// First fit decreasing needs at most 11/9 of the optimum and 6/9 of a row (Dosa 2007): one row more, if the optimum is
// at most 4.
TEST(BestFit, NeedsAtMostOneRowMoreThanTheOptimum) {
  std::size_t all = 0, optimal = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<std::int32_t> lengths = draw_lengths(8, 1000 + seed);
    std::vector<std::int64_t> used;
    const std::size_t least = min_rows(lengths, 0, used, 9), rows = best_fit(pieces_of(lengths), kContext, 1).size();
    EXPECT_GE(rows, least);
    EXPECT_LE(rows, least + 1);
    ++all;
    optimal += rows == least;
  }
  EXPECT_GT(10 * optimal, 9 * all);
}

std::vector<std::int32_t> mixed_lengths(std::size_t documents) {
  std::vector<std::int32_t> lengths = {5, 1, 200, 0, 0, 31, 32, 33, 1, 1, 64, 65, 7, 90, 2, 0};
  for (const std::int32_t n : random_lengths(documents, 11, 70)) lengths.push_back(n);
  return lengths;
}

TEST(BestFit, RowsHoldEveryTokenOnceAndCutOnlyDocumentsLongerThanARow) {
  TempFolder folder;
  const std::vector<std::int32_t> lengths = mixed_lengths(300);
  const Corpora corpora = open_corpus(write_documents(folder / "c.h5", {lengths, {}}));
  const TokenSplit& split = corpora.stores[0]->train();
  const std::vector<int> document = document_of(lengths);
  const auto longer = static_cast<std::uint64_t>(std::ranges::count_if(lengths, [](auto n) { return n > kContext; }));
  double least = 0;
  for (const std::int64_t group : {1, 2, 7, 64, 65536}) {
    const BestFitRows rows(split, kContext, 1, group);
    std::vector<int> seen(document.size() - 1);
    std::map<int, int> pieces;
    for (std::uint64_t row = 0; row < rows.rows(); ++row)
      for (const PackedPiece& p : rows.pieces(row)) {
        ++pieces[document[p.begin]];
        for (std::int64_t i = 0; i < p.length; ++i) ++seen[p.begin + static_cast<std::uint64_t>(i)];
        EXPECT_EQ(p.ends, document[p.begin] != document[p.begin + static_cast<std::uint64_t>(p.length)]);
      }
    for (std::size_t t = 0; t < seen.size(); ++t) ASSERT_EQ(seen[t], 1) << "token " << t;
    for (const auto& [d, n] : pieces)
      EXPECT_EQ(n, (lengths[static_cast<std::size_t>(d)] + kContext - 1) / kContext) << "document " << d;
    EXPECT_EQ(rows.cut_documents(), longer);
    EXPECT_GE(rows.filled_share(), least) << "more to choose from, fewer gaps";
    least = rows.filled_share();
  }
  EXPECT_GT(least, 0.98);
  std::uint64_t across = 0;  // documents that cross a border of windows
  for (std::size_t d = 0, begin = 0; d < lengths.size(); begin += static_cast<std::size_t>(lengths[d++]))
    across += lengths[d] > 0 && begin / 32 != (begin + static_cast<std::size_t>(lengths[d]) - 1) / 32;
  EXPECT_EQ(RowTable(split, kContext, 1).cut_documents(), across);
  EXPECT_GT(across, longer);
}

TEST(BestFit, GroupsThatAreNotKeptArePackedAgain) {
  TempFolder folder;
  const Corpora corpora = open_corpus(write_documents(folder / "c.h5", {mixed_lengths(300), {}}));
  const TokenSplit& split = corpora.stores[0]->train();
  const BestFitRows whole(split, kContext, 4, 50);
  EXPECT_GT(whole.kept(), 8u);
  for (const std::size_t most : {0, 50, 130}) {
    const BestFitRows some(split, kContext, 4, 50, most);
    EXPECT_EQ(some.kept(), most / 50);
    ASSERT_EQ(some.rows(), whole.rows());
    for (std::uint64_t row = 0; row < whole.rows(); ++row) {
      const auto a = some.pieces(row), b = whole.pieces(row);
      ASSERT_EQ(a.size(), b.size());
      for (std::size_t i = 0; i < a.size(); ++i)
        ASSERT_TRUE(a[i].begin == b[i].begin && a[i].at == b[i].at && a[i].length == b[i].length &&
                    a[i].ends == b[i].ends);
    }
  }
  EXPECT_THROW(whole.pieces(whole.rows()), Error);
}

TEST(BestFit, AnEpochPredictsEveryTokenOnceInANewOrder) {
  TempFolder folder;
  const std::vector<std::int32_t> lengths = mixed_lengths(200);
  const Corpora corpora = open_corpus(write_documents(folder / "c.h5", {lengths, {}}));
  const std::vector<int> document = document_of(lengths);
  const LoaderOptions options{.context = kContext, .rows = 1, .seed = 5, .packing = {true, 1, 32}};
  Loader loader(corpora, options);
  const std::uint64_t rows = loader.map().windows(0);
  std::set<std::vector<std::int32_t>> orders;
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::map<int, int> inputs, targets;
    std::vector<std::int32_t> order;
    for (std::uint64_t i = 0; i < rows; ++i) {
      const Batch b = loader.next();
      check_batch(b, options, document, inputs, targets);
      order.push_back(b.inputs[0]);
    }
    expect_every_target_once(inputs, targets, document);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 2u);
}

// Without documents, attention may cross them, but targets do not.
TEST(BestFit, WithoutDocumentsTheRowsAreTheSame) {
  TempFolder folder;
  const Corpora corpora = open_corpus(write_documents(folder / "c.h5", {mixed_lengths(100), {40, 9, 70}}));
  LoaderOptions options{.context = kContext, .rows = 3, .seed = 5, .packing = {true, 1, 32}};
  Loader isolated(corpora, options);
  const Batch validation = ValidationSet(corpora, options).batch(0);
  options.packing.documents = false;
  Loader joined(corpora, options);
  for (int i = 0; i < 30; ++i) {
    const Batch a = isolated.next(), b = joined.next();
    EXPECT_EQ(a.inputs, b.inputs);
    EXPECT_EQ(a.targets, b.targets);
    EXPECT_EQ(a.valid_targets, b.valid_targets);
    EXPECT_TRUE(b.positions.empty() && b.starts.empty());
  }
  EXPECT_EQ(ValidationSet(corpora, options).batch(0).targets, validation.targets);
}

}  // namespace
}  // namespace ring
