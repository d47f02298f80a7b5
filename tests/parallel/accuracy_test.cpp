// The accuracy of a validation: one process against argmax over the logits, and every layout against the same
// reference.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "comm/mesh/mesh.h"
#include "core/fields.h"
#include "core/host_tensor.h"
#include "data/token_store.h"
#include "engine/devices.h"
#include "engine/resolve.h"
#include "evaluate/evaluate.h"
#include "evaluate/session.h"
#include "model/decoder.h"
#include "tests/parallel/training.h"
#include "tests/trainer/tiny.h"
#include "text/tokenizer.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

// Documents that say each token twice. A fresh model with tied embeddings predicts the token that it reads, so it is
// right for about half of the targets. Every third token does not count.
class TwiceSaid {
 public:
  TwiceSaid() : folder_(fs::temp_directory_path() / str("ringmaster-accuracy-", getpid())) {
    fs::create_directories(folder_);
    TokenStoreWriter writer(path(), 257, true);
    for (const Split split : {Split::train, Split::validation})
      for (std::int32_t d = 0; d < 40; ++d) {
        writer.begin_document(split);
        for (std::int32_t i = 0; i < 5 + d % 19; ++i)
          writer.append(split, std::array{(7 * d + i / 2 * (1 + d % 5)) % 257}, i % 3 != 0);
      }
    writer.finish(*bytes_tokenizer(), "a test");
  }
  ~TwiceSaid() { fs::remove_all(folder_); }
  std::string path() const { return (folder_ / "c.h5").string(); }

 private:
  fs::path folder_;
};

std::vector<std::string> settings(const Layout& l) {
  static const TwiceSaid corpus;
  std::vector<std::string> all{"data.path=" + corpus.path(), "model.tied_embeddings=true",
                               "data.packing.documents=true"};
  all.insert(all.end(), l.overrides.begin(), l.overrides.end());
  return all;
}

struct Count {
  std::int64_t targets = 0, correct = 0;
};

Count count(const Tensor& logits, const std::vector<std::int32_t>& targets, const ExecContext& ctx) {
  const std::vector<float> all = to_host<float>(logits, ctx.stream);
  const std::size_t vocab = all.size() / targets.size();
  Count c;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] < 0) continue;
    const float* row = all.data() + t * vocab;
    ++c.targets;
    c.correct += std::max_element(row, row + vocab) - row == targets[t];
  }
  return c;
}

// Returns the accuracy of a fresh model, counted here.
double reference() {
  Config asked = tiny_config();
  override_config(asked, settings({"one", 1, {}}));
  const Config config = resolve_config(asked, 257);
  const ExecContext ctx = make_exec_context(config);
  Decoder model(config.model);
  model.allocate(ctx, config.run.seed);
  const ValidationSet set(open_corpora(config.data), loader_options(config, *mesh_of_one()), 8);
  Count all;
  for (std::int64_t i = 0; i < set.batches(); ++i) {
    const Batch b = set.batch(i);
    ring::Run run{ctx};
    const Var h = model.hidden(run, from_host(b.inputs, ctx.stream), sequences_of(b, config.model.context, ctx));
    const Count c = count(model.logits(run, h.value), b.targets, ctx);
    all.targets += c.targets, all.correct += c.correct;
  }
  return static_cast<double>(all.correct) / static_cast<double>(all.targets);
}

class DistAccuracy : public testing::TestWithParam<Layout> {};

Training run(const Layout& l, int steps) {
  TrainingOptions o;
  o.ranks = l.ranks;
  o.steps = steps;
  o.validate = true;
  o.overrides = settings(l);
  return train_on_ranks(o);
}

TEST_P(DistAccuracy, IsTheShareOfCorrectPredictions) {
  const double want = reference();
  EXPECT_GT(want, 0.2);
  EXPECT_LT(want, 0.8);
  const Training got = run(GetParam(), 0);
  ASSERT_EQ(got.errors, "");
  EXPECT_DOUBLE_EQ(got.accuracy, want);
}

INSTANTIATE_TEST_SUITE_P(, DistAccuracy,
                         testing::Values(Layout{"one", 1, {}}, Layout{"rows_alone", 1, {"train.micro_batch=1"}},
                                         Layout{"dp2", 2, {"train.micro_batch=2"}},
                                         Layout{"cp2_ring", 2, {"parallel.cp=2", "parallel.cp_schedule=ring"}},
                                         Layout{"cp2_gather", 2, {"parallel.cp=2", "parallel.cp_schedule=gather"}},
                                         Layout{"tp2", 2, {"parallel.tp=2"}}, Layout{"zero3", 2, {"parallel.zero=3"}},
                                         Layout{"tp2_cp2", 4, {"parallel.tp=2", "parallel.cp=2"}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ring::test
