// Samples of packed documents.
#include "data/packing.h"

#include <map>
#include <ostream>
#include <set>

#include "packed_documents.h"

namespace ring {

void PrintTo(const PackingConfig& p, std::ostream* out) { *out << "align_" << p.align << "_best_fit_" << p.best_fit; }

namespace {

const std::vector<std::int32_t> kLengths = {5, 1, 200, 0, 0, 31, 32, 33, 1, 1, 64, 7, 90, 2, 0};

TEST(Packing, WindowsKeepTheirTokensAndCutTheirDocuments) {
  TempFolder folder;
  std::vector<std::int32_t> lengths = kLengths;
  for (std::int32_t n : random_lengths(60, 4, 40)) lengths.push_back(n);
  const Corpora corpora = open_corpus(write_documents(folder / "c.h5", {lengths, {}}));
  const std::vector<int> document = document_of(lengths);
  LoaderOptions options{.context = kContext, .rows = 3, .seed = 5};
  Loader plain(corpora, options);
  options.packing.documents = true;
  Loader packed(corpora, options);
  std::map<int, int> inputs, targets;
  for (int i = 0; i < 100; ++i) {
    const Batch a = plain.next(), b = packed.next();
    ASSERT_EQ(a.inputs, b.inputs);
    ASSERT_EQ(a.sample_indices, b.sample_indices);
    EXPECT_TRUE(a.starts.empty() && a.positions.empty());
    check_batch(b, options, document, inputs, targets);
    std::int32_t held = 0;
    for (std::int32_t n : b.lengths) held += n;
    EXPECT_EQ(held, 3 * kContext);  // rows have no gaps
  }
}

// Sequences begin at documents and at multiples of the length. The test derives starts, lengths and positions itself.
TEST(Sequences, AreCutAtMultiplesOfTheirLengthAndAtDocuments) {
  TempFolder folder;
  const Corpora corpora = open_corpus(write_documents(folder / "c.h5", {random_lengths(60, 4, 40), {}}));
  const std::vector<int> document = document_of(random_lengths(60, 4, 40));
  for (const bool documents : {false, true}) {
    LoaderOptions options{.context = kContext, .rows = 3, .seed = 5};
    options.packing.documents = documents;
    Loader whole(corpora, options), cut(corpora, options);
    for (int i = 0; i < 40; ++i) {
      const std::int64_t length = i < 20 ? 8 : kContext;  // changes between batches
      cut.set_sequence(length);
      const Batch a = whole.next(), b = cut.next();
      EXPECT_EQ(a.inputs, b.inputs);
      EXPECT_EQ(a.targets, b.targets) << "a cut within a document takes no target";
      EXPECT_EQ(a.valid_targets, b.valid_targets);
      EXPECT_EQ(a.sample_indices, b.sample_indices);
      std::vector<std::int32_t> starts, lengths, positions;
      for (std::int32_t t = 0; t < 3 * kContext; ++t) {
        const bool begins = t % length == 0 || (documents && a.positions[static_cast<std::size_t>(t)] == 0);
        if (begins) starts.push_back(t), lengths.push_back(0);
        positions.push_back(lengths.back()++);
      }
      EXPECT_EQ(b.starts, starts) << "batch " << i;
      EXPECT_EQ(b.lengths, lengths);
      EXPECT_EQ(b.positions, positions);
    }
  }
}

TEST(Packing, WithGapsAnEpochPredictsEveryTokenOnce) {
  TempFolder folder;
  std::vector<std::int32_t> lengths = kLengths;
  for (std::int32_t n : random_lengths(200, 9, 70)) lengths.push_back(n);
  const Corpora corpora = open_corpus(write_documents(folder / "c.h5", {lengths, {}}));
  const std::vector<int> document = document_of(lengths);
  for (std::int64_t align : {2, 7, 8, 32, 100}) {
    LoaderOptions options{.context = kContext, .rows = 1, .seed = 5};
    options.packing = {true, align};
    Loader loader(corpora, options);
    const std::uint64_t rows = loader.map().windows(0);
    EXPECT_GE(loader.map().rows()[0]->filled_share(), 1.0 * (document.size() - 1) / (rows * kContext) - 1e-12);
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::map<int, int> inputs, targets;
      std::set<std::int32_t> begins;
      for (std::uint64_t i = 0; i < rows; ++i) {
        const Batch b = loader.next();
        check_batch(b, options, document, inputs, targets);
        ASSERT_FALSE(b.starts.empty());
        EXPECT_EQ(b.starts[0], 0);
        begins.insert(b.inputs[0]);
        // Packing is greedy: the next document would not have fit, except in the last row.
        const std::int64_t used = b.starts.back() + b.lengths.back();
        const bool end = b.inputs[static_cast<std::size_t>(used) - 1] + 2 == static_cast<int>(document.size());
        EXPECT_TRUE(end || (used + align - 1) / align * align >= kContext) << used;
      }
      EXPECT_EQ(begins.size(), rows);
      expect_every_target_once(inputs, targets, document);
    }
  }
}

TEST(Packing, ABoundedTableFindsEveryRow) {
  TempFolder folder;
  const std::vector<std::int32_t> lengths = random_lengths(900, 2, 60);
  const Corpora corpora = open_corpus(write_documents(folder / "c.h5", {lengths, {}}));
  const TokenSplit& split = corpora.stores[0]->train();
  const RowTable whole(split, kContext, 8);
  ASSERT_EQ(whole.kept(), whole.rows());
  for (std::size_t most : {2, 3, 7, 64}) {
    const RowTable some(split, kContext, 8, most);
    EXPECT_LE(some.kept(), most);
    EXPECT_GE(2 * some.kept(), most);
    ASSERT_EQ(some.rows(), whole.rows());
    for (std::uint64_t row = 0; row < whole.rows(); ++row)
      ASSERT_EQ(some.first_token(row), whole.first_token(row)) << row;
  }
  EXPECT_THROW(whole.first_token(whole.rows()), Error);
}

bool same_batch(const Batch& a, const Batch& b) {
  return a.inputs == b.inputs && a.targets == b.targets && a.positions == b.positions && a.starts == b.starts &&
         a.lengths == b.lengths && a.sample_indices == b.sample_indices && a.valid_targets == b.valid_targets;
}

class PackedMixture : public testing::TestWithParam<PackingConfig> {
 protected:
  PackedMixture()
      : corpora_(open_corpora(
            {.path = "",
             .mixture = {
                 {write_documents(folder_ / "a.h5", {random_lengths(150, 1, 50), random_lengths(9, 2, 60)}), 2},
                 {write_documents(folder_ / "b.h5", {random_lengths(40, 3, 99), random_lengths(5, 4, 9)}), 1}}})) {
    options_.packing = GetParam();
  }
  TempFolder folder_;
  Corpora corpora_;
  LoaderOptions options_{.context = kContext, .rows = 4, .seed = 3};
};

TEST_P(PackedMixture, SeekingEqualsReading) {
  Loader whole(corpora_, options_);
  std::vector<Batch> batches;
  for (int i = 0; i < 80; ++i) batches.push_back(whole.next());
  for (std::int64_t prefetch : {0, 3}) {
    options_.prefetch = prefetch;
    Loader late(corpora_, options_, 60 * 4);
    for (std::size_t i = 60; i < 80; ++i) ASSERT_TRUE(same_batch(late.next(), batches[i])) << i;
    late.seek(7 * 4);
    for (std::size_t i = 7; i < 12; ++i) ASSERT_TRUE(same_batch(late.next(), batches[i])) << i;
  }
}

TEST_P(PackedMixture, RanksOnlySelectASlice) {
  Loader whole(corpora_, options_);
  options_.rows = 1;
  options_.world = 2;
  options_.rank = 1;
  Loader second(corpora_, options_);
  options_.rank = 0;
  Loader first(corpora_, options_);
  for (int i = 0; i < 30; ++i) {
    const Batch b = whole.next();
    for (std::int64_t row = 0; row < 4; ++row) {
      const Batch part = (row % 2 ? second : first).next();
      ASSERT_EQ(part.sample_indices[0], b.sample_indices[static_cast<std::size_t>(row)]);
      const auto slice = [&](const std::vector<std::int32_t>& all) {
        return std::vector<std::int32_t>(all.begin() + row * kContext, all.begin() + (row + 1) * kContext);
      };
      EXPECT_EQ(part.inputs, slice(b.inputs));
      EXPECT_EQ(part.targets, slice(b.targets));
      EXPECT_EQ(part.positions, slice(b.positions));
      std::vector<std::int32_t> starts, lengths;
      for (std::size_t d = 0; d < b.starts.size(); ++d) {
        if (b.starts[d] / kContext != row) continue;
        starts.push_back(b.starts[d] - static_cast<std::int32_t>(row * kContext));
        lengths.push_back(b.lengths[d]);
      }
      EXPECT_EQ(part.starts, starts);
      EXPECT_EQ(part.lengths, lengths);
    }
  }
}

TEST_P(PackedMixture, ValidationReadsEveryTargetOnce) {
  for (std::size_t c = 0; c < 2; ++c) {
    const Corpora one = open_corpus(corpora_.stores[c]->path());
    const std::vector<int> document = document_of(c == 0 ? random_lengths(9, 2, 60) : random_lengths(5, 4, 9));
    std::map<int, int> inputs, targets;
    for (int rank = 0; rank < 3; ++rank) {
      options_.rank = rank;
      options_.world = 3;
      const ValidationSet set(one, options_);
      for (std::int64_t i = 0; i < set.batches(); ++i) {
        const Batch b = set.batch(i);
        check_batch(b, options_, document, inputs, targets);
        for (std::int32_t start : b.starts)
          EXPECT_GE(b.sample_indices[static_cast<std::size_t>(start / kContext)], 0);  // empty rows have no documents
      }
    }
    inputs[static_cast<int>(document.size()) - 2] = 1;  // without gaps, no window begins at the very last token
    expect_every_target_once(inputs, targets, document);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, PackedMixture,
                         testing::Values(PackingConfig{true, 1}, PackingConfig{true, 8}, PackingConfig{true, 1, 16},
                                         PackingConfig{true, 8, 1000}),
                         testing::PrintToStringParamName());

TEST(Packing, ContradictorySettingsAreRefused) {
  std::vector<SettingProblem> errors;
  PackingConfig{false, 8}.validate(errors);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(errors[0].text.find("align: 8 requires documents: true"), std::string::npos);
  errors.clear();
  PackingConfig{true, 8}.validate(errors);
  EXPECT_TRUE(errors.empty());
  TempFolder folder;
  const Corpora none = open_corpus(write_documents(folder / "none.h5", {{}, {30}}));
  expect_error([&] { SampleMap(none, 8, 1, {true, 4}); }, {"none.h5", "no training tokens"});
  const Corpora small = open_corpus(write_documents(folder / "small.h5", {{3, 4}, {}}));
  EXPECT_EQ(SampleMap(small, 8, 1, {true, 4}).windows(0), 1u);  // a row need not be full
  expect_error(
      [&] {
        ValidationSet(small, {.context = 8, .packing = {true, 4}});
      },
      {"small.h5", "no validation split"});
}

}  // namespace
}  // namespace ring
