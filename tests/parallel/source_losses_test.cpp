// Losses of each corpus of a mixture: one process against float64 sums over token losses, and layouts against one
// process.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "comm/gloo/gloo.h"
#include "comm/mesh/mesh.h"
#include "core/fields.h"
#include "core/philox.h"
#include "engine/devices.h"
#include "evaluate/evaluate.h"
#include "model/decoder.h"
#include "tests/parallel/training.h"
#include "tests/trainer/documents.h"
#include "tests/trainer/tiny.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

// Three corpora: one of short documents, one of long documents, and one without a validation split.
class Files {
 public:
  Files() : folder_(fs::temp_directory_path() / str("ringmaster-sources-", getpid())) {
    fs::create_directories(folder_);
    write_documents(path("a"), 90, 9, [](std::uint64_t d) { return 5 + random_bits({7, 0, 0}, d) % 30; });
    write_documents(path("b"), 40, 4, [](std::uint64_t d) { return 40 + random_bits({8, 0, 0}, d) % 90; });
    write_documents(path("c"), 50, 0, [](std::uint64_t d) { return 20 + random_bits({9, 0, 0}, d) % 50; });
  }
  ~Files() { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / (name + ".h5")).string(); }
  // A step has 8 sequences of 64 tokens. Corpus c begins in the third step, and b ends in the fifth.
  std::vector<std::string> mixture() const {
    return {"data.path=", "data.mixture=[{path: " + path("a") + ", weight: 0.5}, {path: " + path("b") +
                              ", weight: [[0, 0.5], [2048, 0]]}, {path: " + path("c") +
                              ", weight: [[0, 0], [1024, 0.3]]}]"};
  }

 private:
  fs::path folder_;
};

const Files& files() {
  static const Files all;
  return all;
}

struct Packing {
  std::string name;
  std::vector<std::string> overrides;
};
void PrintTo(const Packing& p, std::ostream* out) { *out << p.name; }

std::vector<std::string> settings_of(const Packing& packing, const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = files().mixture();
  for (const char* s : {"model.context=64", "train.batch_size=8", "train.micro_batch=2", "train.z_loss=1e-3"})
    all.push_back(s);
  all.insert(all.end(), packing.overrides.begin(), packing.overrides.end());
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Training run_sources(const Packing& packing, const std::vector<std::string>& layout, int ranks) {
  TrainingOptions o;
  o.ranks = ranks;
  o.steps = 6;
  o.overrides = settings_of(packing, layout);
  o.validate = true;
  return train_on_ranks(o);
}

class SourceLosses : public testing::TestWithParam<Packing> {};

std::vector<SourceLoss> by_token(const Decoder& model, const Batch& b, const SampleMap& map, const Config& config,
                                 const ExecContext& ctx) {
  ring::Run run_sources{ctx};
  LossHead head;
  head.targets = from_host(b.targets, ctx.stream);
  head.z_loss = static_cast<float>(config.train.z_loss);
  const LossOutput out =
      model.loss(run_sources, from_host(b.inputs, ctx.stream), sequences_of(b, config.model.context, ctx), head);
  const std::vector<float> losses = to_host<float>(out.token_loss, ctx.stream);
  std::vector<SourceLoss> sources(3);
  for (std::size_t t = 0; t < losses.size(); ++t) {
    const auto sample = b.sample_indices[t / static_cast<std::size_t>(config.model.context)];
    SourceLoss& s = sources[map(static_cast<std::uint64_t>(sample)).corpus];
    s.sum += static_cast<double>(losses[t]);
    s.targets += b.targets[t] >= 0;
  }
  return sources;
}

void expect_near(const std::vector<SourceLoss>& got, const std::vector<SourceLoss>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t c = 0; c < want.size(); ++c) {
    EXPECT_EQ(got[c].targets, want[c].targets) << "corpus " << c;
    EXPECT_NEAR(got[c].sum, want[c].sum, tolerance * want[c].sum) << "corpus " << c;
  }
}

// Compares the first step of a fresh model, for any gradient accumulation; then expects that parts add up to the whole.
TEST_P(SourceLosses, AreTheSumsOverTheirTokens) {
  Config asked = tiny_config();
  override_config(asked, settings_of(GetParam()));
  const Config config = resolve_config(asked, 257);
  const ExecContext ctx = make_exec_context(config);
  const Corpora corpora = open_corpora(config.data);
  LoaderOptions o = loader_options(config, *mesh_of_one());
  o.rows = config.train.batch_size;
  Loader whole(corpora, o);
  Decoder model(config.model);
  model.allocate(ctx, config.run.seed);
  const std::vector<SourceLoss> want = by_token(model, whole.next(), whole.map(), config, ctx);
  EXPECT_GT(want[0].targets, 0);
  EXPECT_GT(want[1].targets, 0);
  EXPECT_EQ(want[2].targets, 0);
  for (const char* rows : {"train.micro_batch=8", "train.micro_batch=1", "train.micro_batch=2"}) {
    const Training got = run_sources(GetParam(), {rows}, 1);
    ASSERT_EQ(got.errors, "");
    expect_near(got.sources.at(0), want, 1e-6);
    for (std::size_t step = 0; step < got.losses.size(); ++step) {
      double sum = 0, targets = 0;
      for (const SourceLoss& s : got.sources[step]) sum += s.sum, targets += s.targets;
      EXPECT_NEAR(sum / targets, got.losses[step], 1e-6 * got.losses[step]) << "step " << step;
    }
    EXPECT_GT(got.sources[2][2].targets, 0);
    EXPECT_EQ(got.sources[4][1].targets, 0);
    double sum = 0, targets = 0;
    for (const SourceLoss& s : got.validation_sources) sum += s.sum, targets += s.targets;
    EXPECT_NEAR(sum / targets, got.validation, 1e-6 * got.validation);
    EXPECT_GT(got.validation_sources[0].targets, 0);
    EXPECT_EQ(got.validation_sources[2].targets, 0);
  }
}

const std::vector<Packing>& packings() {
  static const std::vector<Packing> all = {{"windows", {}},
                                           {"best_fit", {"data.packing.documents=true", "data.packing.best_fit=16"}}};
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, SourceLosses, testing::ValuesIn(packings()), testing::PrintToStringParamName());

class DistSourceLosses : public testing::TestWithParam<Packing> {};
INSTANTIATE_TEST_SUITE_P(All, DistSourceLosses, testing::ValuesIn(packings()), testing::PrintToStringParamName());

TEST_P(DistSourceLosses, LayoutsAgreeWithOneProcess) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const Training one = run_sources(GetParam(), {}, 1);
  ASSERT_EQ(one.errors, "");
  const std::map<std::string, int> layouts = {
      {"parallel.dp=2", 2}, {"parallel.cp=2", 2}, {"parallel.tp=2", 2}, {"parallel.zero=3", 4}};
  for (const auto& [layout, ranks] : layouts) {
    SCOPED_TRACE(layout);
    const Training many = run_sources(GetParam(), {layout}, ranks);
    ASSERT_EQ(many.errors, "");
    EXPECT_LE(largest_loss_difference(one, many), 1e-5);
    for (std::size_t step = 0; step < one.sources.size(); ++step)
      expect_near(many.sources.at(step), one.sources[step], 1e-5);
    expect_near(many.validation_sources, one.validation_sources, 1e-5);
  }
  const Training chunks =
      run_sources(GetParam(), {"parallel.cp=2", "train.sequence_chunk=24", "train.micro_batch=1"}, 2);
  ASSERT_EQ(chunks.errors, "");
  for (std::size_t step = 0; step < one.sources.size(); ++step)
    expect_near(chunks.sources.at(step), one.sources[step], 1e-5);
  expect_near(chunks.validation_sources, one.validation_sources, 1e-5);
  const Training both = run_sources(GetParam(), {"parallel.tp=2", "parallel.cp=2"}, 4);
  ASSERT_EQ(both.errors, "");
  for (std::size_t step = 0; step < one.sources.size(); ++step)
    expect_near(both.sources.at(step), one.sources[step], 1e-5);
}

std::vector<std::vector<SourceLoss>> steps_on(DeviceChoice device, const char* graph) {
  Config asked = tiny_config();
  override_config(asked, settings_of(packings()[0], {graph}));
  asked.run.device = device;
  asked.train.precision = PrecisionChoice::fp32;
  const Config config = resolve_config(asked, 257);
  const ExecContext ctx = make_exec_context(config);
  const auto mesh = mesh_of_one();
  Loader loader(open_corpora(config.data), loader_options(config, *mesh));
  Trainer trainer(config, ctx, *mesh, loader);
  std::vector<std::vector<SourceLoss>> all;
  for (int i = 0; i < 6; ++i) all.push_back(trainer.step().sources);
  return all;
}

TEST(GpuSourceLosses, EqualTheCpus) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  const auto cpu = steps_on(DeviceChoice::cpu, "train.cuda_graph=off");
  for (const char* graph : {"train.cuda_graph=off", "train.cuda_graph=on"}) {
    const auto gpu = steps_on(DeviceChoice::cuda, graph);
    for (std::size_t step = 0; step < cpu.size(); ++step) expect_near(gpu.at(step), cpu[step], 1e-4);
  }
}

}  // namespace
}  // namespace ring::test
