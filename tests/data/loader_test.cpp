#include "data/loader.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/files.h"
#include "corpus_case.h"
#include "data/permutation.h"

namespace ring {
namespace {

TEST(Permutation, VisitsEveryPositionOnce) {
  for (std::uint64_t size : {1, 2, 3, 4, 5, 16, 17, 255, 1000, 4097}) {
    const Permutation p(size, 7, 1, 2);
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < size; ++i) seen.insert(p(i));
    EXPECT_EQ(seen.size(), size);
    EXPECT_EQ(*seen.rbegin(), size - 1);
  }
}

TEST(Permutation, KeysChangeTheOrder) {
  const std::uint64_t size = 1000;
  const Permutation a(size, 1, 0, 0), b(size, 2, 0, 0), c(size, 1, 1, 0), d(size, 1, 0, 1);
  int same_seed = 0, same_high = 0, same_low = 0, fixed = 0;
  for (std::uint64_t i = 0; i < size; ++i) {
    same_seed += a(i) == b(i);
    same_high += a(i) == c(i);
    same_low += a(i) == d(i);
    fixed += a(i) == i;
  }
  for (int n : {same_seed, same_high, same_low, fixed}) EXPECT_LT(n, 10);  // 1 is expected by chance
}

// The image of position 0 over many keys is uniform: chi-squared with 9 degrees of freedom, 99.99 % quantile 33.7.
TEST(Permutation, IsUniformOverKeys) {
  std::array<int, 10> count{};
  for (std::uint32_t key = 0; key < 10000; ++key) ++count[Permutation(10, 3, key, 0)(0)];
  double chi = 0;
  for (int n : count) chi += (n - 1000.0) * (n - 1000.0) / 1000.0;
  EXPECT_LT(chi, 33.7);
}

TEST(Permutation, RefusesPositionsOutside) {
  EXPECT_THROW(Permutation(5, 0, 0, 0)(5), Error);
  EXPECT_THROW(Permutation(0, 0, 0, 0), Error);
}

void expect_tracks(const std::vector<double>& weights, double tolerance) {
  const Mixture mixture(weights);
  std::vector<std::uint64_t> count(weights.size());
  double sum = 0;
  for (double w : weights) sum += w;
  for (std::uint64_t g = 0; g < 3 * mixture.period() + 17; ++g) {
    const auto place = mixture(g);
    ASSERT_EQ(place.index, count[place.corpus]) << "sample " << g;
    ++count[place.corpus];
    for (std::size_t c = 0; c < count.size(); ++c) {
      const double target = static_cast<double>(g + 1) * weights[c] / sum;
      ASSERT_LT(std::abs(static_cast<double>(count[c]) - target), tolerance) << "corpus " << c << " after " << g + 1;
    }
  }
}

TEST(Mixture, CountsTrackTheWeightsWithinOne) {
  expect_tracks({1}, 1);
  expect_tracks({1, 1}, 1);
  expect_tracks({0.7, 0.2, 0.1}, 1);
  expect_tracks({3, 1, 1, 1, 7, 2}, 1);
  expect_tracks({100, 1, 1, 1}, 1);
  expect_tracks({0.31, 0.17, 0.52}, 1);
}

TEST(Mixture, WeightsWithoutASmallDenominatorAreRounded) {
  const std::vector<double> weights{std::sqrt(2.0), std::exp(1.0), std::acos(-1.0), 1e-9};
  const Mixture mixture(weights);
  EXPECT_EQ(mixture.period(), 65536u);
  double sum = 0;
  for (double w : weights) sum += w;
  for (std::size_t c = 0; c < 3; ++c) EXPECT_NEAR(mixture.weight(c), weights[c] / sum, 1.5 / 65536);
  EXPECT_EQ(mixture.weight(3), 1.0 / 65536);  // every corpus keeps some weight
  expect_tracks({mixture.weight(0), mixture.weight(1), mixture.weight(2), mixture.weight(3)}, 1);
}

TEST(Mixture, RefusesBadWeights) {
  expect_error([] { Mixture({}); }, {"at least one corpus"});
  expect_error([] { Mixture({0, 0}); }, {"all corpora", "are 0"});
  expect_error([] { Mixture({1, -2}); }, {"corpus 1", "is -2", "at least 0"});
  expect_error([] { Mixture({std::nan(""), 1}); }, {"corpus 0"});
}

TEST(SampleMap, AnEpochVisitsEveryWindowOnceAndThePhaseMoves) {
  TempFolder folder;
  const Corpora corpora = open_corpus(write_corpus(folder / "c.h5", counting(1003), {}));
  const std::int64_t context = 10;
  const SampleMap map(corpora, context, 5);
  ASSERT_EQ(map.windows(0), 99u);
  std::set<std::uint64_t> phases;
  for (std::uint64_t epoch = 0; epoch < 40; ++epoch) {
    std::set<std::uint64_t> begins;
    for (std::uint64_t i = 0; i < 99; ++i) {
      const SampleLocation place = map(epoch * 99 + i);
      ASSERT_LE(place.begin + 11, 1003u);
      begins.insert(place.begin);
    }
    ASSERT_EQ(begins.size(), 99u);
    const std::uint64_t phase = *begins.begin();
    ASSERT_LT(phase, 10u);
    ASSERT_EQ(*begins.rbegin(), phase + 98 * 10);
    phases.insert(phase);
  }
  EXPECT_GE(phases.size(), 8u);  // of 10 phases, over 40 epochs
}

TEST(SampleMap, DependsOnTheSeed) {
  TempFolder folder;
  const Corpora corpora = open_corpus(write_corpus(folder / "c.h5", counting(5000), {}));
  const SampleMap a(corpora, 10, 1), b(corpora, 10, 1), c(corpora, 10, 2);
  int same = 0;
  for (std::uint64_t g = 0; g < 400; ++g) {
    EXPECT_EQ(a(g).begin, b(g).begin);
    same += a(g).begin == c(g).begin;
  }
  EXPECT_LT(same, 20);
}

TEST(SampleMap, SmallCorporaReachEveryStart) {
  TempFolder folder;
  for (std::size_t n : {11, 12, 19, 20, 21, 29, 30, 31}) {
    const Corpora corpora = open_corpus(write_corpus(folder / "c.h5", counting(n), {}));
    const SampleMap map(corpora, 10, 1);
    std::set<std::uint64_t> begins;
    for (std::uint64_t g = 0; g < 200; ++g) {
      const std::uint64_t begin = map(g).begin;
      ASSERT_LE(begin + 11, n);
      begins.insert(begin);
    }
    EXPECT_GE(begins.size(), std::min<std::size_t>(n - 10, 9))
        << n;  // every start is reached; by chance, one of ten may be missing
  }
}

TEST(SampleMap, ACorpusShorterThanOneContextIsRefused) {
  TempFolder folder;
  const std::string path = write_corpus(folder / "short.h5", counting(10), {});
  expect_error([&] { SampleMap(open_corpus(path), 10, 1); },
               {"short.h5", "has 10 training tokens", "context + 1 = 11", "prepare more text", "at most 9"});
}

std::vector<Batch> read_all(const Corpora& corpora, LoaderOptions options, int micro_batches) {
  Loader loader(corpora, options);
  std::vector<Batch> out;
  for (int i = 0; i < micro_batches; ++i) out.push_back(loader.next());
  return out;
}

TEST(Loader, TargetsAreTheNextTokens) {
  TempFolder folder;
  const Corpora corpora = open_corpus(write_corpus(folder / "c.h5", counting(1000, 251), {}));
  for (const Batch& b : read_all(corpora, {.context = 16, .rows = 3, .seed = 9}, 50)) {
    ASSERT_EQ(b.inputs.size(), 48u);
    ASSERT_EQ(b.valid_targets, 48);
    for (std::size_t i = 0; i < 48; ++i) {
      ASSERT_EQ(b.targets[i], (b.inputs[i] + 1) % 251);
      if (i % 16 != 15) {
        ASSERT_EQ(b.targets[i], b.inputs[i + 1]);
      }
    }
  }
}

// The samples of a global batch, by sample number, do not depend on the number of ranks or on accumulation.
TEST(Loader, WorldSizeOnlySelectsASlice) {
  TempFolder folder;
  const Corpora corpora = open_corpora({.path = "",
                                        .mixture = {{write_corpus(folder / "a.h5", counting(2000), {}), 0.7},
                                                    {write_corpus(folder / "b.h5", counting(900, 97), {}), 0.3}}});
  const auto collect = [&](int world, std::int64_t rows, int micro_batches) {
    std::map<std::int64_t, std::vector<std::int32_t>> samples;
    for (int rank = 0; rank < world; ++rank) {
      for (const Batch& b :
           read_all(corpora, {.context = 8, .rows = rows, .seed = 3, .rank = rank, .world = world}, micro_batches)) {
        for (std::int64_t r = 0; r < rows; ++r) {
          auto& row = samples[b.sample_indices[static_cast<std::size_t>(r)]];
          EXPECT_TRUE(row.empty()) << "sample read twice";
          row.assign(b.inputs.begin() + r * 8, b.inputs.begin() + r * 8 + 8);
        }
      }
    }
    return samples;
  };
  const auto one = collect(1, 8, 12);
  ASSERT_EQ(one.size(), 96u);
  EXPECT_EQ(one.rbegin()->first, 95);
  EXPECT_EQ(collect(1, 2, 48), one);
  EXPECT_EQ(collect(2, 4, 12), one);
  EXPECT_EQ(collect(4, 1, 24), one);
}

TEST(Loader, SeekContinuesExactly) {
  TempFolder folder;
  const Corpora corpora = open_corpus(write_corpus(folder / "c.h5", counting(3000), {}));
  for (std::int64_t prefetch : {0, 1, 5}) {
    const LoaderOptions options{.context = 8, .rows = 4, .seed = 3, .prefetch = prefetch};
    Loader whole(corpora, options);
    std::vector<Batch> batches;
    for (int i = 0; i < 200; ++i) batches.push_back(whole.next());
    EXPECT_EQ(whole.next_sample(), 800u);
    Loader late(corpora, options, 150 * 4);
    EXPECT_EQ(late.next().inputs, batches[150].inputs);
    late.seek(20 * 4);
    EXPECT_EQ(late.next_sample(), 80u);
    for (std::size_t i = 20; i < 40; ++i) {
      const Batch b = late.next();
      EXPECT_EQ(b.inputs, batches[i].inputs);
      EXPECT_EQ(b.targets, batches[i].targets);
      EXPECT_EQ(b.sample_indices, batches[i].sample_indices);
    }
  }
}

TEST(Loader, DamageReachesTheCaller) {
  TempFolder folder;
  const std::string path = write_corpus(folder / "c.h5", std::vector<std::int32_t>(3000, 7), {});
  std::string bytes = read_file(path);
  std::size_t at = 0;  // every token 7 (07 00) becomes 7 + 256 * 7
  for (at = bytes.find(std::string("\x07\x00\x07\x00\x07\x00\x07\x00", 8)); at + 1 < bytes.size() && bytes[at] == 7;
       at += 2)
    bytes[at + 1] = 7;
  write_text(path, bytes);
  for (std::int64_t prefetch : {0, 3}) {
    Loader loader(open_corpus(path), {.context = 8, .rows = 4, .seed = 3, .prefetch = prefetch});
    for (int i = 0; i < 3; ++i) {
      expect_error([&] { loader.next(); }, {"c.h5: /train/tokens is damaged", "block 0 of 1", "data prepare"});
    }
  }
}

TEST(Loader, AFarSampleIsReachedDirectly) {
  TempFolder folder;
  const Corpora corpora = open_corpus(write_corpus(folder / "c.h5", counting(3000), {}));
  Loader loader(corpora, {.context = 8, .rows = 1, .seed = 3}, std::uint64_t{1} << 40);
  EXPECT_EQ(loader.next().sample_indices[0], std::int64_t{1} << 40);
}

// Returns the tokens of an unread row, read in parts of n.
std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>> read_in_parts(const Batch& b, std::size_t row,
                                                                              std::size_t n) {
  std::vector<std::int32_t> inputs(row), targets(row);
  for (std::size_t at = 0; at < row; at += n) {
    const std::size_t count = std::min(n, row - at);
    b.unread->read(static_cast<std::int64_t>(at), std::span(inputs).subspan(at, count),
                   std::span(targets).subspan(at, count));
  }
  return {inputs, targets};
}

TEST(Loader, UnreadRowsHaveTheTokensOfReadOnes) {
  TempFolder folder;
  const Corpora corpora = open_corpus(write_corpus(folder / "c.h5", counting(1000, 251), {}));
  const LoaderOptions options{.context = 64, .seed = 3, .prefetch = 2};
  LoaderOptions unread = options;
  unread.unread = true;
  Loader whole(corpora, options), parts(corpora, unread);
  for (int i = 0; i < 20; ++i) {
    const Batch a = whole.next(), b = parts.next();
    ASSERT_TRUE(b.unread);
    EXPECT_TRUE(b.inputs.empty());
    EXPECT_EQ(read_in_parts(b, 64, 17), std::pair(a.inputs, a.targets));
    EXPECT_EQ(b.valid_targets, a.valid_targets);
    EXPECT_EQ(b.sample_indices, a.sample_indices);
    EXPECT_EQ(count_targets_by_source(b, 1), count_targets_by_source(a, 1));
  }
}

TEST(ValidationSet, UnreadRowsHaveTheTokensOfReadOnes) {
  TempFolder folder;
  const Corpora corpora = open_corpus(write_corpus(folder / "c.h5", counting(50), counting(1000, 251)));
  LoaderOptions options{.context = 64, .rank = 1, .world = 2, .prefetch = 0};
  const ValidationSet whole(corpora, options);
  options.unread = true;
  const ValidationSet parts(corpora, options);
  for (std::int64_t i = 0; i < whole.batches(); ++i) {  // the last window is shorter, or missing on this rank
    const Batch a = whole.batch(i), b = parts.batch(i);
    EXPECT_EQ(read_in_parts(b, 64, 20), std::pair(a.inputs, a.targets)) << i;
    EXPECT_EQ(b.valid_targets, a.valid_targets);
  }
}

TEST(ValidationSet, VisitsEveryTargetOnceInOrder) {
  TempFolder folder;
  for (std::size_t n : {2, 9, 10, 11, 100, 101, 102, 109}) {
    const Corpora corpora = open_corpus(write_corpus(folder / "c.h5", counting(50), counting(n)));
    for (int world : {1, 2, 3}) {
      std::map<std::int64_t, std::vector<std::int32_t>> rows;
      std::int64_t valid = 0;
      for (int rank = 0; rank < world; ++rank) {
        const ValidationSet set(corpora, {.context = 10, .rows = 2, .rank = rank, .world = world});
        EXPECT_EQ(set.batches(), static_cast<std::int64_t>((set.windows() + 2 * world - 1) / (2 * world)));
        for (std::int64_t i = 0; i < set.batches(); ++i) {
          const Batch b = set.batch(i);
          valid += b.valid_targets;
          for (std::size_t r = 0; r < 2; ++r) {
            auto& row = rows[b.sample_indices[r]];
            for (std::size_t t = 10 * r; t < 10 * r + 10; ++t) {
              if (b.targets[t] != -100) row.push_back(b.targets[t]);
            }
            if (b.sample_indices[r] < 0) {
              EXPECT_TRUE(row.empty());
            }
          }
        }
      }
      std::vector<std::int32_t> targets;
      for (const auto& [window, row] : rows) targets.insert(targets.end(), row.begin(), row.end());
      const auto tokens = counting(n);
      EXPECT_EQ(targets, std::vector<std::int32_t>(tokens.begin() + 1, tokens.end()))
          << n << " tokens, " << world << " ranks";
      EXPECT_EQ(valid, static_cast<std::int64_t>(n) - 1);
    }
  }
}

TEST(ValidationSet, AFixedNumberOfWindowsIsSpreadOverAllCorpora) {
  TempFolder folder;
  const Corpora corpora = open_corpora({.path = "",
                                        .mixture = {{write_corpus(folder / "a.h5", counting(50), counting(1001)), 1},
                                                    {write_corpus(folder / "b.h5", counting(50), counting(501)), 1},
                                                    {write_corpus(folder / "none.h5", counting(50), {}), 1}}});
  const LoaderOptions options{.context = 10, .rows = 3};
  EXPECT_EQ(ValidationSet(corpora, options).windows(), 150);
  const ValidationSet some(corpora, options, 15);
  ASSERT_EQ(some.batches(), 5);
  std::vector<std::int64_t> windows;
  for (std::int64_t i = 0; i < 5; ++i) {
    for (std::int64_t w : some.batch(i).sample_indices) windows.push_back(w);
  }
  for (std::size_t i = 0; i < 15; ++i) EXPECT_EQ(windows[i], static_cast<std::int64_t>(10 * i));
  EXPECT_EQ(ValidationSet(corpora, options, 3000).windows(), 150);
}

TEST(ValidationSet, AMissingValidationSplitIsRefused) {
  TempFolder folder;
  const std::string path = write_corpus(folder / "c.h5", counting(50), {});
  expect_error([&] { ValidationSet(open_corpus(path), {.context = 10}); },
               {"c.h5", "no validation split", "--validation-fraction"});
}

TEST(DataConfig, CorporaOfDifferentTokenizersAreRefused) {
  TempFolder folder;
  const std::string a = write_corpus(folder / "a.h5", counting(50), {});
  const std::string b = write_corpus(folder / "b.h5", counting(50, 2), {}, chars_tokenizer("ab"));
  expect_error(
      [&] {
        open_corpora({.path = "", .mixture = {{a, 1}, {b, 1}}});
      },
      {"data.mixture", "a.h5", "b.h5", bytes_tokenizer()->hash(), chars_tokenizer("ab")->hash(), "same tokenizer"});
}

TEST(DataConfig, TokenizerMustFit) {
  TempFolder folder;
  const Corpora corpora = open_corpus(write_corpus(folder / "a.h5", counting(50), {}));
  check_tokenizer(corpora, bytes_tokenizer()->hash(), "run x");
  check_tokenizer(corpora, "", "run x");
  expect_error([&] { check_tokenizer(corpora, "0123456789abcdef", "run runs/x"); },
               {"a.h5", bytes_tokenizer()->hash(), "run runs/x", "0123456789abcdef", "prepare the corpus again"});
}

TEST(DataConfig, PathAndMixtureExcludeEachOther) {
  std::vector<SettingProblem> errors;
  DataConfig config;
  config.validate(errors);
  EXPECT_TRUE(errors.empty());  // planning needs no corpus
  config.path = "a.h5";
  config.validate(errors);
  EXPECT_TRUE(errors.empty());
  config.mixture.push_back({"b.h5", 1});
  config.validate(errors);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(errors[0].text.find("not both"), std::string::npos);
  expect_error([] { open_corpora({}); }, {"data.path", "ringmaster data prepare"});
}

}  // namespace
}  // namespace ring
