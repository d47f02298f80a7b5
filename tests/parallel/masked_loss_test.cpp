// The loss over the tokens that count by a corpus's loss mask: one process, and every way to share a step, against a
// reference in float64 that takes the mask from its definition here.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "comm/mesh/mesh.h"
#include "core/fields.h"
#include "core/host_tensor.h"
#include "core/philox.h"
#include "data/token_store.h"
#include "data/tokenizer.h"
#include "engine/devices.h"
#include "tests/parallel/training.h"
#include "tests/trainer/tiny.h"
#include "trainer/evaluate.h"
#include "trainer/session.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

struct Named {
  std::string name;
  int ranks;
  std::vector<std::string> overrides;
};
void PrintTo(const Named& n, std::ostream* out) { *out << n.name; }

// A prompt and an answer in each document: of 10 to 69 tokens the last 1 to 12 count. In the second corpus none does.
class MaskedCorpus {
 public:
  MaskedCorpus() : folder_(fs::temp_directory_path() / str("ringmaster-masked-", getpid())) {
    fs::create_directories(folder_);
    write("answers.h5", true);
    write("nothing.h5", false);
  }
  ~MaskedCorpus() { fs::remove_all(folder_); }
  static std::uint64_t length(std::uint64_t d) { return 10 + random_bits({7, 0, 0}, d) % 60; }
  static std::uint64_t counted(std::uint64_t d) {
    return 1 + random_bits({8, 0, 0}, d) % std::min<std::uint64_t>(12, length(d) - 1);
  }
  std::string path(bool answers) const { return (folder_ / (answers ? "answers.h5" : "nothing.h5")).string(); }
  // Of the training split, by place: the tokens, whether they count, and whether they begin a document.
  std::vector<std::int32_t> tokens;
  std::vector<bool> counts, begins;

 private:
  void write(const std::string& name, bool answers) {
    TokenStoreWriter writer((folder_ / name).string(), 257, true);
    for (const Split split : {Split::train, Split::validation})
      for (std::uint64_t d = 0; d < (split == Split::train ? 60 : 12); ++d) {
        std::vector<std::int32_t> document(length(d));
        for (std::size_t i = 0; i < document.size(); ++i)
          document[i] = static_cast<std::int32_t>((d * d + i * (1 + d % 3)) % 257);
        const std::size_t prompt = answers ? document.size() - counted(d) : document.size();
        writer.begin_document(split);
        writer.append(split, std::span(document).first(prompt), false);
        writer.append(split, std::span(document).subspan(prompt));
        if (split == Split::validation || !answers) continue;
        tokens.insert(tokens.end(), document.begin(), document.end());
        for (std::size_t i = 0; i < document.size(); ++i) counts.push_back(i >= prompt), begins.push_back(i == 0);
      }
    writer.finish(*bytes_tokenizer(), "a test");
  }
  fs::path folder_;
};

const MaskedCorpus& corpus() {
  static const MaskedCorpus masked;
  return masked;
}

TrainingOptions options(const Named& n, bool answers = true) {
  TrainingOptions o;
  o.ranks = n.ranks;
  o.steps = 3;
  o.validate = true;
  o.overrides = n.overrides;
  o.overrides.push_back("data.path=" + corpus().path(answers));
  return o;
}

// -log of the probability of each target, summed in float64.
double sum_of(const std::vector<float>& logits, const std::vector<std::int32_t>& targets, std::size_t vocab) {
  double sum = 0;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] < 0) continue;
    double all = 0;
    for (std::size_t v = 0; v < vocab; ++v) all += std::exp(static_cast<double>(logits[t * vocab + v]));
    sum += std::log(all) - static_cast<double>(logits[t * vocab + static_cast<std::size_t>(targets[t])]);
  }
  return sum;
}

// The loss of the first step: logits of the fresh model, and the mask as it was made, not as the loader has it.
double reference(const std::vector<std::string>& overrides) {
  Config asked = tiny_config();
  override_config(asked, overrides);
  asked.data.path = corpus().path(true);
  const Config config = resolve_config(asked, 257);
  const ExecContext ctx = make_exec_context(config);
  const auto mesh = mesh_of_one();
  LoaderOptions o = loader_options(config, *mesh);
  o.rows = config.train.batch_size, o.prefetch = 0;
  Loader loader(open_corpus(config.data.path), o);
  const Batch b = loader.next();
  std::vector<std::int32_t> targets(b.inputs.size(), -1);
  std::int64_t valid = 0;
  for (std::size_t row = 0; row < b.sample_indices.size(); ++row) {
    const SamplePlace place = loader.map()(static_cast<std::uint64_t>(b.sample_indices[row]));
    const auto context = static_cast<std::size_t>(o.context);
    for (std::size_t t = 0; t < context; ++t) {
      const std::size_t next = place.begin + t + 1;
      if (!corpus().counts[next] || (o.packing.documents && corpus().begins[next])) continue;
      targets[row * context + t] = corpus().tokens[next];
      ++valid;
    }
  }
  Decoder model(config.model);
  model.allocate(ctx, config.run.seed);
  ring::Run run{ctx};
  const Var h = model.hidden(run, from_host(b.inputs, ctx.stream), sequences_of(b, config.model.context, ctx));
  const std::vector<float> logits = to_host<float>(model.logits(run, h.value), ctx.stream);
  return sum_of(logits, targets, logits.size() / targets.size()) / static_cast<double>(valid);
}

class DistMaskedLoss : public testing::TestWithParam<Named> {};

const std::vector<std::string> kDocuments{"data.packing.documents=true"};

TEST_P(DistMaskedLoss, IsTheMeanOverTokensThatCount) {
  Named n = GetParam();
  for (const bool documents : {false, true}) {
    if (documents) n.overrides.push_back(kDocuments[0]);
    const Training got = train_on_ranks(options(n));
    ASSERT_EQ(got.errors, "");
    const std::vector<std::string> of = documents ? kDocuments : std::vector<std::string>{};
    const double want = reference(of);
    EXPECT_NEAR(got.losses[0], want, 1e-6 * want) << documents;
    const Training one = train_on_ranks(options({"one", 1, of}));
    ASSERT_EQ(one.errors, "");
    EXPECT_LT(largest_loss_difference(one, got), 1e-5);
    EXPECT_LT(largest_difference(one, got), 2e-4);
    EXPECT_NEAR(got.validation, one.validation, 1e-6 * one.validation);
    for (std::size_t i = 0; i < got.norms.size(); ++i) EXPECT_NEAR(got.norms[i], one.norms[i], 1e-5 * one.norms[i]);
  }
}

// No NaN, and nothing moves but by decay.
TEST_P(DistMaskedLoss, StepsWithoutTargetsAreFinite) {
  Named n = GetParam();
  n.overrides.push_back("optimizer.weight_decay=0");
  const Training got = train_on_ranks(options(n, false));
  ASSERT_EQ(got.errors, "");
  TrainingOptions none = options(n, false);
  none.steps = 0;
  const Training fresh = train_on_ranks(none);
  for (const double loss : got.losses) EXPECT_EQ(loss, 0);
  for (const double norm : got.norms) EXPECT_EQ(norm, 0);
  EXPECT_EQ(got.validation, 0);
  EXPECT_TRUE(std::ranges::any_of(fresh.tensors, [](const auto& t) { return t.first.starts_with("model."); }));
  EXPECT_EQ(largest_difference(fresh, got), 0);
}

INSTANTIATE_TEST_SUITE_P(, DistMaskedLoss,
                         testing::Values(Named{"one", 1, {}}, Named{"accumulated", 1, {"train.micro_batch=1"}},
                                         Named{"dp2", 2, {"train.micro_batch=2"}}, Named{"cp2", 2, {"parallel.cp=2"}},
                                         Named{"tp2", 2, {"parallel.tp=2"}}, Named{"zero3", 2, {"parallel.zero=3"}},
                                         Named{"tp2_cp2", 4, {"parallel.tp=2", "parallel.cp=2"}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ring::test
