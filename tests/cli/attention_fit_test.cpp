// `ringmaster attention fit`: its choices, and the command on runs.
#include <numeric>
#include <regex>
#include <sstream>

#include "cli/fit_choices.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

using Json = nlohmann::json;

TEST(FitChoices, AreAWindowAndTwoSelections) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(default_choices(8192, false, 0),
            (Texts{"{kind: window, window: 128, sinks: 4}",
                   "{kind: block_sparse, block: 64, rules: [{pattern: content, local: 5, first: 1, keep: 16}]}",
                   "{kind: block_sparse, block: 64, rules: [{pattern: content, local: 25, first: 1, keep: 48}]}"}));
  EXPECT_EQ(default_choices(131072, true, 700)[1],
            "{kind: block_sparse, block: 128, rules: [{pattern: learned, local: 5, first: 1, keep: 128}], "
            "index_distances: 32, index_warmup_steps: 800}");
  // At context 256 there are 4 blocks. 8 blocks do not fit, and 3 are the query's own block, the first one and a
  // selected one.
  EXPECT_EQ(default_choices(256, false, 0),
            (Texts{"{kind: window, window: 64, sinks: 4}",
                   "{kind: block_sparse, block: 64, rules: [{pattern: content, local: 1, first: 1, keep: 3}]}"}));
  EXPECT_TRUE(default_choices(64, false, 0).empty());
}

// Settings accept the choices for every context.
TEST(FitChoices, SettingsAcceptThemForEveryContext) {
  for (std::int64_t context = 1; context < 40'000; context += context < 1500 ? 13 : 1111)
    for (const bool learned : {false, true}) {
      ModelConfig run;
      run.context = context;
      const FitChoice own = choice_of_run(run.resolved(), "run");
      EXPECT_EQ(own.density(), 1);
      double before = 0;
      for (const FitChoice& c : fit_choices(run, own, {}, learned, 5)) {
        EXPECT_LT(c.density(), 1) << context;
        EXPECT_GE(c.density(), before) << context;
        before = c.density();
      }
    }
}

class AttentionFitRuns : public Runs {
 protected:
  void train_run(const std::string& name, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> settings = {"model.context=256", "train.steps=4", "train.eval_interval=0"};
    trained(name, settings, more);
  }
  Finished fit(const std::string& run, std::vector<std::string> more) const {
    more.insert(more.begin(), {"attention", "fit", path(run), "--device", "cpu", "--threads", "2"});
    return ring(more);
  }
  Json json_of(const std::string& run, std::vector<std::string> more) const {
    more.emplace_back("--json");
    const Finished f = fit(run, more);
    EXPECT_EQ(f.code, 0) << f.output;
    return Json::parse(f.output, nullptr, false);
  }
  // Trains two more steps with the printed settings.
  void train_on(const std::string& run, const Json& settings) const {
    std::vector<std::string> words = {"train", path(run), "--allow-changes", "train.steps=6"};
    for (const std::string setting : settings) words.push_back(setting);
    const Finished f = ring(words);
    EXPECT_EQ(f.code, 0) << f.output;
  }
  // Returns the densities of the run's own layers, which `attention fit` lists as the last choice.
  std::vector<double> own_densities(const std::string& run) const {
    const Json fit = json_of(run, {"{kind: window, window: 1}"});
    std::vector<double> out;
    for (const Json& of : fit.at("densities")) out.push_back(of.back());
    return out;
  }
};

std::vector<double> chosen_densities(const Json& fit) {
  std::vector<double> out;
  for (std::size_t i = 0; i < fit.at("chosen").size(); ++i)
    out.push_back(fit.at("densities")[i][fit.at("chosen")[i].get<std::size_t>()]);
  return out;
}

double mean(const std::vector<double>& of) {
  return std::accumulate(of.begin(), of.end(), 0.0) / static_cast<double>(of.size());
}

TEST_F(AttentionFitRuns, ARunResumesWithTheSettings) {
  train_run("run");
  const double loss = loss_of("run");
  for (const char* most : {"0.5", "0.75"}) {
    const Json fit = json_of("run", {"--density", most, "--batches", "0"});
    EXPECT_NEAR(fit.at("loss").get<double>(), loss, 1e-9) << "as eval has it";
    EXPECT_EQ(fit.at("choices").size(), 3u);
    EXPECT_EQ(fit.at("rises").size(), 2u);
    const double density = fit.at("density");
    EXPECT_LE(density, std::stod(most));
    EXPECT_NEAR(mean(chosen_densities(fit)), density, 1e-12);
    const std::string name = str("goes-on-", most);
    fs::copy(path("run"), path(name), fs::copy_options::recursive);
    train_on(name, fit.at("settings"));
    EXPECT_EQ(own_densities(name), chosen_densities(fit));
  }
}

TEST_F(AttentionFitRuns, PrintedSettingsAreThoseOfTheJson) {
  train_run("run", {"checkpoint.interval=2"});
  // The wider window does not fit in every layer, so that the settings have two sections.
  const std::vector<std::string> words = {
      "{kind: window, window: 99}", "{kind: window, window: 16, sinks: 4}", "--density", "0.5", "--batch-size", "2"};
  const Json json = json_of("run", words);
  const Finished f = fit("run", words);
  ASSERT_EQ(f.code, 0) << f.output;
  const std::size_t hint = f.output.find("ringmaster train " + path("run") + " --allow-changes");
  ASSERT_NE(hint, std::string::npos) << f.output;
  Json printed = Json::array();
  const std::string rest = f.output.substr(hint);
  const std::regex setting("'([^'\n]*)'");
  for (std::sregex_iterator at(rest.begin(), rest.end(), setting), end; at != end; ++at) printed.push_back((*at)[1]);
  EXPECT_EQ(printed, json.at("settings"));
  EXPECT_TRUE(rest.ends_with(" \\\n    train.steps=6\n")) << "the run has ended at step 4:\n" << rest;
  EXPECT_EQ(fit("run/checkpoints/step-000000002", words).output.find("train.steps"), std::string::npos);
  // The cheaper choice comes first, in whatever order they are given, and has its own row for each layer.
  EXPECT_EQ(json.at("choices")[0].at("attention"), "{kind: window, window: 16, sinks: 4}");
  EXPECT_LT(json.at("choices")[0].at("density"), json.at("choices")[1].at("density"));
  const std::string rise = " +-?[0-9.]+ \\+-[0-9.]+", rises = rise + rise + "\n";
  EXPECT_TRUE(std::regex_search(f.output, std::regex("\n    0" + rises + "    1" + rises))) << f.output;
}

// One batch has no spread. Several batches have the standard error of their rises.
TEST_F(AttentionFitRuns, RisesHaveAStandardErrorOverBatches) {
  train_run("run");
  const std::vector<std::string> words = {"{kind: window, window: 2}", "--density", "1", "--batch-size", "2"};
  const auto fitted = [&](const char* batches) {
    std::vector<std::string> more = words;
    more.insert(more.end(), {"--batches", batches});
    return json_of("run", more);
  };
  const Json one = fitted("1"), two = fitted("2");
  EXPECT_TRUE(one.at("rise_errors")[0][0].is_null()) << one;
  for (const Json& layer : two.at("rise_errors")) {
    EXPECT_GT(layer[0], 0) << two;
    EXPECT_EQ(layer[1], 0) << "the run's own attention";
  }
}

// The settings of the run's attention sections do not carry over into the new sections.
TEST_F(AttentionFitRuns, SettingsReplaceThoseOfARunThatIsNotDense) {
  train_run("run",
            {"model.attention={kind: window, window: 64, pools: [16]}",
             "model.attention_layers=[{layers: '1', attention: {kind: block_sparse, block: 64, rules: [{pattern: "
             "content, local: 1, keep: 2}]}}]"});
  const Json fit = json_of("run", {"{kind: window, window: 2}", "--density", "0.05"});
  EXPECT_EQ(fit.at("chosen"), Json::parse("[0, 0]"));
  const Json want = {"model.attention={kind: window, window: 2, pools: []}", "model.attention_layers=[]"};
  EXPECT_EQ(fit.at("settings"), want);
  train_on("run", fit.at("settings"));
  EXPECT_EQ(own_densities("run"), chosen_densities(fit));
}

// Before training, learned selection equals selection by content, learned pools are means, and importance keeps the
// newest blocks.
TEST_F(AttentionFitRuns, AttentionThatLearnsIsMeasuredUntrained) {
  train_run("run");
  const auto rises = [&](const char* choice) { return json_of("run", {choice, "--density", "1"}).at("rises"); };
  EXPECT_EQ(rises("{kind: block_sparse, block: 64, rules: [{pattern: learned, local: 1, keep: 2}], index_heads: 2}"),
            rises("{kind: block_sparse, block: 64, rules: [{pattern: content, local: 1, keep: 2}]}"));
  EXPECT_EQ(rises("{kind: window, window: 16, pools: [8], pooling: learned, pool_gates: true}"),
            rises("{kind: window, window: 16, pools: [8]}"));
  EXPECT_EQ(rises("{kind: block_sparse, block: 64, rules: [{pattern: importance, local: 1, first: 1, keep: 3}]}"),
            rises("{kind: block_sparse, block: 64, rules: [{local: 2, first: 1}]}"));
  const Json learned = json_of("run", {"--pattern", "learned", "--density", "1"});
  EXPECT_NE(learned.dump().find("index_distances: 32, index_warmup_steps: 104"), std::string::npos) << learned;
}

TEST_F(AttentionFitRuns, ImpossibleRequestsAreRefused) {
  train_run("run");
  train_run("learned",
            {"model.attention={kind: block_sparse, block: 64, rules: [{pattern: learned, local: 1, keep: 2}]}"});
  const auto says = [&](const std::string& run, const std::vector<std::string>& more, const std::string& what) {
    const Finished f = fit(run, more);
    EXPECT_NE(f.code, 0) << f.output;
    EXPECT_NE(f.output.find(what), std::string::npos) << f.output;
  };
  says("run", {"--density", "0.1", "{kind: window, window: 64}"}, "the density is 0.4");
  says("run", {"--density", "0.1", "{kind: window, window: 64}"}, "Raise --density");
  says("run", {"{kind: windo}"}, "choice {kind: windo}: ");
  says("run", {"{kind: windo}"}, "did you mean window?");
  says("run", {"{kind: window, window: 8"}, "choice {kind: window, window: 8: ");
  says("run", {"{kind: block_sparse, layers_per_selection: 2, rules: [{pattern: content, keep: 2}]}"},
       "Omit layers_per_selection");
  says("learned", {}, "layer 0 has an indexer");
  says("learned", {}, "Give a checkpoint from before");
  says("run", {"--text", path("nowhere.txt"), "--density", "1"}, "nowhere.txt");
}

}  // namespace
}  // namespace ring::test
