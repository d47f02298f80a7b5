// Mixtures whose weights change during a run.
#include <cmath>

#include "core/fields.h"
#include "corpus_case.h"
#include "data/loader.h"

namespace ring {
namespace {

// Each corpus continues where it was, and follows the weights of each stage within 1.
TEST(MixtureSchedule, CorporaContinueAcrossChanges) {
  const std::vector<MixtureSchedule::Stage> stages = {
      {0, {0.7, 0.3, 0}}, {101, {1, 1, 2}}, {101, {2, 1, 0}}, {150, {0, 1, 3}}, {1000, {0.31, 0.17, 0.52}}};
  const MixtureSchedule schedule(stages);
  std::vector<std::uint64_t> count(3), at_change(3);
  for (std::uint64_t g = 0; g < 3000; ++g) {
    std::size_t s = 0;
    for (std::size_t i = 0; i < stages.size(); ++i)
      if (stages[i].first_sample <= g) s = i;
    if (stages[s].first_sample == g) at_change = count;
    const Mixture::Location place = schedule(g);
    ASSERT_EQ(place.index, count[place.corpus]) << "sample " << g;
    ++count[place.corpus];
    double sum = 0;
    for (const double w : stages[s].weights) sum += w;
    for (std::size_t c = 0; c < 3; ++c) {
      const double want = static_cast<double>(g + 1 - stages[s].first_sample) * stages[s].weights[c] / sum;
      ASSERT_LT(std::abs(static_cast<double>(count[c] - at_change[c]) - want), 1) << "corpus " << c << ", sample " << g;
    }
  }
}

TEST(MixtureSchedule, WithoutChangesItEqualsTheMixture) {
  const std::vector<double> weights{0.6, 0.4};
  const Mixture plain(weights);
  const MixtureSchedule schedule({{0, weights}});
  for (std::uint64_t g = 0; g < 500; ++g) {
    EXPECT_EQ(schedule(g).corpus, plain(g).corpus);
    EXPECT_EQ(schedule(g).index, plain(g).index);
  }
  const std::vector<std::uint64_t> counts = plain.sample_counts(123);
  EXPECT_EQ(counts[0] + counts[1], 123u);
  EXPECT_EQ(plain(123).index, counts[plain(123).corpus]);
  expect_error([] { MixtureSchedule({{0, {1, 1}}, {5, {0, 0}}}); }, {"all corpora", "are 0"});
}

class ScheduledCorpora : public testing::Test {
 protected:
  DataConfig config(const std::string& mixture) const {
    DataConfig c;
    load_config_text(c, "mixture: " + mixture, "run.yaml");
    return c;
  }
  std::string first() const { return "{path: " + folder_ / "first.h5"; }
  std::string second() const { return "{path: " + folder_ / "second.h5"; }
  TempFolder folder_;
};

TEST_F(ScheduledCorpora, ChangeAtTheFirstSampleAfterTheToken) {
  write_corpus(folder_ / "first.h5", counting(5000), {});
  write_corpus(folder_ / "second.h5", counting(3000), {});
  const Corpora corpora =
      open_corpora(config("[" + first() + "}, " + second() + ", weight: [[0, 0], [100, 1], [1e3, 3]]}]"));
  LoaderOptions options{.context = 16, .rows = 2, .seed = 3};
  std::vector<Batch> all;
  Loader loader(corpora, options);
  for (int i = 0; i < 100; ++i) all.push_back(loader.next());
  std::vector<std::int32_t> sources;
  for (const Batch& b : all) sources.insert(sources.end(), b.sources.begin(), b.sources.end());
  const auto of_second = [&](std::size_t begin, std::size_t end) {
    return std::count(sources.begin() + static_cast<std::ptrdiff_t>(begin),
                      sources.begin() + static_cast<std::ptrdiff_t>(end), 1);
  };
  EXPECT_EQ(of_second(0, 7), 0);      // 7 * 16 = 112 tokens: the first sample that begins at or after token 100
  EXPECT_EQ(of_second(7, 63), 28);    // half, up to token 1008
  EXPECT_EQ(of_second(63, 163), 75);  // three quarters
  for (std::size_t g = 0; g < sources.size(); ++g)
    EXPECT_EQ(loader.map()(g).corpus, static_cast<std::uint32_t>(sources[g]));
  for (const std::size_t from : {2, 3, 4, 30, 31, 32, 90}) {  // also next to the changes
    Loader late(corpora, options, from * 2);
    for (std::size_t i = from; i < all.size(); ++i) {
      const Batch b = late.next();
      ASSERT_EQ(b.inputs, all[i].inputs) << "micro-batch " << i << " from " << from;
      ASSERT_EQ(b.sources, all[i].sources);
    }
  }
}

TEST_F(ScheduledCorpora, NamesComeFromTheFilesOrTheSettings) {
  for (const char* name : {"a/text.h5", "b/text.h5", "c.d.h5", "text_2.h5"}) {
    std::filesystem::create_directories(std::filesystem::path(folder_ / name).parent_path());
    write_corpus(folder_ / name, counting(50), {});
  }
  const std::string at = "{path: " + folder_.path() + "/";
  const Corpora corpora = open_corpora(
      config("[" + at + "a/text.h5}, " + at + "b/text.h5}, " + at + "c.d.h5, name: code}, " + at + "text_2.h5}]"));
  EXPECT_EQ(corpora.names, (std::vector<std::string>{"text", "text_2", "code", "text_2_2"}));
  EXPECT_EQ(open_corpus(folder_ / "c.d.h5").names, std::vector<std::string>{"c.d"});
}

TEST_F(ScheduledCorpora, MistakesNameTheirKeys) {
  const auto refused = [&](const std::string& mixture, const std::vector<std::string>& parts) {
    expect_error([&] { config(mixture); }, parts);
  };
  refused("[{path: a.h5, weight: -1}]", {"run.yaml:1", "mixture[0].weight", "[0, 1e9]"});
  refused("[{path: a.h5}, {path: b.h5, weight: [[1, 2]]}]", {"mixture[1].weight: must begin at 0 tokens"});
  refused("[{path: a.h5}, {path: b.h5, weight: [[0, 1], [9, .nan]]}]", {"mixture[1].weight: expected a number"});
  refused("[{path: a.h5}, {path: b.h5, weight: [[0, 1], [9, -0.5]]}]",
          {"mixture[1].weight: must be in [0, 1e9], is -0.5"});
  refused("[{path: a.h5}, {path: b.h5, weight: [[0, 3], [9, 1], [9, 2]]}]", {"mixture[1].weight: tokens must ascend"});
  refused("[{path: a.h5}, {path: b.h5, weight: [[0, 0], [9, 0]]}]", {"mixture[1]: weight: is 0", "[[0, 0], [1e9, 1]]"});
  refused("[{path: a.h5}, {path: b.h5, weight: 0}]", {"mixture[1]: weight: is 0", "Remove the corpus"});
  refused("[{path: a.h5, weight: [[0, 1], [9, 0]]}, {path: b.h5, weight: [[0, 1], [5, 0]]}]",
          {"mixture: from token 9 on"});
  refused("[{path: a.h5, name: x}, {path: b.h5, name: x}]", {"mixture: two corpora", "name x"});
}

}  // namespace
}  // namespace ring
