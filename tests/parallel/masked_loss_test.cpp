// The loss over the tokens that a corpus's loss mask selects: one process and every layout, against a float64 reference
// that builds the mask independently.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "comm/mesh/mesh.h"
#include "core/fields.h"
#include "core/host_tensor.h"
#include "core/philox.h"
#include "data/token_store.h"
#include "engine/devices.h"
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

// Documents with an answer; `rare` means every fourth.
enum class Answers : std::uint8_t { all, rare, none };

// A prompt and an answer in each document of 10 to 69 tokens: the last 1 to 12 tokens count if it has an answer.
class MaskedCorpus {
 public:
  explicit MaskedCorpus(Answers answers)
      : answers_(answers),
        folder_(fs::temp_directory_path() / str("ringmaster-masked-", getpid(), "-", static_cast<int>(answers))) {
    fs::create_directories(folder_);
    write();
  }
  ~MaskedCorpus() { fs::remove_all(folder_); }
  std::string path() const { return (folder_ / "c.h5").string(); }
  // Tokens of the training split by position: their ids, if they count, and if they begin a document.
  std::vector<std::int32_t> tokens;
  std::vector<bool> counts, begins;

 private:
  static std::uint64_t length(std::uint64_t d) { return 10 + random_bits({7, 0, 0}, d) % 60; }
  std::uint64_t counted(std::uint64_t d) const {
    if (answers_ == Answers::none || (answers_ == Answers::rare && d % 4 != 0)) return 0;
    return 1 + random_bits({8, 0, 0}, d) % std::min<std::uint64_t>(12, length(d) - 1);
  }
  void write() {
    TokenStoreWriter writer(path(), 257, true);
    for (const Split split : {Split::train, Split::validation})
      for (std::uint64_t d = 0; d < (split == Split::train ? 60 : 12); ++d) {
        std::vector<std::int32_t> document(length(d));
        for (std::size_t i = 0; i < document.size(); ++i)
          document[i] = static_cast<std::int32_t>((d * d + i * (1 + d % 3)) % 257);
        const std::size_t prompt = document.size() - counted(d);
        writer.begin_document(split);
        writer.append(split, std::span(document).first(prompt), false);
        writer.append(split, std::span(document).subspan(prompt));
        if (split == Split::validation) continue;
        tokens.insert(tokens.end(), document.begin(), document.end());
        for (std::size_t i = 0; i < document.size(); ++i) counts.push_back(i >= prompt), begins.push_back(i == 0);
      }
    writer.finish(*bytes_tokenizer(), "a test");
  }
  Answers answers_;
  fs::path folder_;
};

const MaskedCorpus& corpus(Answers answers) {
  static const std::array<MaskedCorpus, 3> all{MaskedCorpus(Answers::all), MaskedCorpus(Answers::rare),
                                               MaskedCorpus(Answers::none)};
  return all[static_cast<std::size_t>(answers)];
}

TrainingOptions options(const Layout& n, Answers answers = Answers::all) {
  TrainingOptions o;
  o.ranks = n.ranks;
  o.steps = 3;
  o.validate = true;
  // With AdamW's usual epsilon, a gradient of pure rounding errors would move a weight as far as any other.
  o.overrides = {"data.path=" + corpus(answers).path(), "optimizer.eps=1e-4"};
  o.overrides.insert(o.overrides.end(), n.overrides.begin(), n.overrides.end());
  return o;
}

// The first batch of a run. Its targets follow the mask as written, not as loaded; -1: none.
struct FirstStep {
  Config config;
  Batch batch;
  std::vector<std::int32_t> targets;
};

FirstStep first_step(const std::vector<std::string>& overrides, Answers answers) {
  Config asked = tiny_config();
  asked.data.path = corpus(answers).path();
  override_config(asked, overrides);
  FirstStep f{.config = resolve_config(asked, 257), .batch = {}, .targets = {}};
  LoaderOptions o = loader_options(f.config, *mesh_of_one());
  o.rows = f.config.train.batch_size, o.prefetch = 0;
  Loader loader(open_corpus(asked.data.path), o);
  f.batch = loader.next();
  f.targets.assign(f.batch.inputs.size(), -1);
  const auto context = static_cast<std::size_t>(o.context);
  for (std::size_t row = 0; row < f.batch.sample_indices.size(); ++row) {
    const SampleLocation place = loader.map()(static_cast<std::uint64_t>(f.batch.sample_indices[row]));
    for (std::size_t t = 0; t < context; ++t) {
      const std::size_t next = place.begin + t + 1;
      if (!corpus(answers).counts[next] || (o.packing.documents && corpus(answers).begins[next])) continue;
      f.targets[row * context + t] = corpus(answers).tokens[next];
    }
  }
  return f;
}

std::vector<std::size_t> places_of_targets(const FirstStep& f) {
  std::vector<std::size_t> places;
  for (std::size_t t = 0; t < f.targets.size(); ++t)
    if (f.targets[t] >= 0) places.push_back(t);
  return places;
}

// The loss and the gradient of the head's matrix [V,C], in float64 from logits and rows of the fresh model.
struct Reference {
  double loss = 0;
  std::vector<double> head;
};

Reference reference(const FirstStep& f) {
  const ExecContext ctx = make_exec_context(f.config);
  Decoder model(f.config.model);
  model.allocate(ctx, f.config.run.seed);
  ring::Run run{ctx};
  const Var h =
      model.hidden(run, from_host(f.batch.inputs, ctx.stream), sequences_of(f.batch, f.config.model.context, ctx));
  const std::vector<float> rows = to_host<float>(h.value, ctx.stream),
                           logits = to_host<float>(model.logits(run, h.value), ctx.stream);
  const std::size_t vocab = logits.size() / f.targets.size(), width = rows.size() / f.targets.size();
  const std::vector<std::size_t> places = places_of_targets(f);
  const auto valid = static_cast<double>(places.size());
  Reference r{.loss = 0, .head = std::vector<double>(vocab * width)};
  for (const std::size_t t : places) {
    const auto target = static_cast<std::size_t>(f.targets[t]);
    double all = 0;
    for (std::size_t v = 0; v < vocab; ++v) all += std::exp(static_cast<double>(logits[t * vocab + v]));
    r.loss += (std::log(all) - static_cast<double>(logits[t * vocab + target])) / valid;
    for (std::size_t v = 0; v < vocab; ++v) {
      const double d = std::exp(static_cast<double>(logits[t * vocab + v])) / all - (v == target ? 1 : 0);
      for (std::size_t c = 0; c < width; ++c)
        r.head[v * width + c] += d * static_cast<double>(rows[t * width + c]) / valid;
    }
  }
  return r;
}

// Checks AdamW's first moment after one step: a tenth of the gradient.
void expect_gradient(TrainingOptions o, const Reference& want) {
  o.steps = 1;
  o.overrides.push_back("optimizer.clip=0");
  const Training got = train_on_ranks(o);
  ASSERT_EQ(got.errors, "");
  const std::vector<float>& moment = got.tensors.at("optimizer.m.head.weight");
  ASSERT_EQ(moment.size(), want.head.size());
  double largest = 0, worst = 0;
  for (std::size_t i = 0; i < moment.size(); ++i) {
    largest = std::max(largest, std::abs(want.head[i]));
    worst = std::max(worst, std::abs(10 * static_cast<double>(moment[i]) - want.head[i]));
  }
  EXPECT_LT(worst, 2e-6 * largest);
}

// Returns settings of a step of 4 samples of 32 tokens in which only one sample has targets, all in its second quarter.
// Most micro-batches, and one rank of dp and of cp (in both cp layouts), have none.
std::vector<std::string> lonely_step() {
  for (int seed = 1; seed < 5000; ++seed) {
    const std::vector<std::string> o{"train.batch_size=4", "train.micro_batch=0", str("run.seed=", seed)};
    const std::vector<std::size_t> places = places_of_targets(first_step(o, Answers::rare));
    const auto fits = [&](std::size_t t) { return t / 32 == places[0] / 32 && t % 32 / 8 == 1; };
    if (places.size() > 1 && std::ranges::all_of(places, fits)) return o;
  }
  fail("no seed has such a step");
}

class DistMaskedLoss : public testing::TestWithParam<Layout> {};

// `base` applies to the reference and to the single process as well.
void expect_mean(const Layout& n, const std::vector<std::string>& base, Answers answers) {
  SCOPED_TRACE(testing::Message() << testing::PrintToString(base));
  Layout all = n;
  all.overrides.insert(all.overrides.begin(), base.begin(), base.end());
  const Training got = train_on_ranks(options(all, answers));
  ASSERT_EQ(got.errors, "");
  const Reference want = reference(first_step(base, answers));
  EXPECT_NEAR(got.losses[0], want.loss, 1e-6 * want.loss);
  expect_gradient(options(all, answers), want);
  const Training one = train_on_ranks(options({"one", 1, base}, answers));
  ASSERT_EQ(one.errors, "");
  EXPECT_LT(largest_difference(one, got), 2e-4);
  EXPECT_NEAR(got.validation, one.validation, 1e-6 * one.validation);
  for (std::size_t i = 0; i < got.norms.size(); ++i) {
    EXPECT_NEAR(got.losses[i], one.losses[i], 1e-5 * one.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], one.norms[i], 1e-5 * one.norms[i]) << "step " << i;
  }
}

TEST_P(DistMaskedLoss, IsTheMeanOverTokensThatCount) {
  expect_mean(GetParam(), {}, Answers::all);
  expect_mean(GetParam(), {"data.packing.documents=true"}, Answers::all);
}

TEST_P(DistMaskedLoss, PartsWithoutTargetsDoNotAffectTheMean) {
  static const std::vector<std::string> lonely = lonely_step();
  expect_mean(GetParam(), lonely, Answers::rare);
}

// Nothing becomes NaN, and weights change only by decay.
TEST_P(DistMaskedLoss, StepsWithoutTargetsAreFinite) {
  Layout n = GetParam();
  n.overrides.push_back("optimizer.weight_decay=0");
  const Training got = train_on_ranks(options(n, Answers::none));
  ASSERT_EQ(got.errors, "");
  TrainingOptions none = options(n, Answers::none);
  none.steps = 0;
  const Training fresh = train_on_ranks(none);
  for (const double loss : got.losses) EXPECT_EQ(loss, 0);
  for (const double norm : got.norms) EXPECT_EQ(norm, 0);
  EXPECT_EQ(got.validation, 0);
  EXPECT_TRUE(std::ranges::any_of(fresh.tensors, [](const auto& t) { return t.first.starts_with("model."); }));
  EXPECT_EQ(largest_difference(fresh, got), 0);
}

INSTANTIATE_TEST_SUITE_P(
    , DistMaskedLoss,
    testing::Values(Layout{"one", 1, {}}, Layout{"accumulated", 1, {"train.micro_batch=1"}},
                    Layout{"dp2", 2, {"train.micro_batch=2"}}, Layout{"dp2_accumulated", 2, {"train.micro_batch=1"}},
                    Layout{"cp2_ring", 2, {"parallel.cp=2", "parallel.cp_schedule=ring"}},
                    Layout{"cp2_contiguous", 2, {"parallel.cp=2", "parallel.cp_layout=contiguous"}},
                    Layout{"cp2_gather", 2, {"parallel.cp=2", "parallel.cp_schedule=gather"}},
                    Layout{"cp2_all_to_all", 2, {"parallel.cp=2", "parallel.cp_schedule=all_to_all"}},
                    Layout{"cp2_accumulated", 2, {"parallel.cp=2", "train.micro_batch=1"}},
                    Layout{"cp2_chunks", 2, {"parallel.cp=2", "train.sequence_chunk=10", "train.micro_batch=1"}},
                    Layout{"tp2", 2, {"parallel.tp=2"}}, Layout{"zero3", 2, {"parallel.zero=3"}},
                    Layout{"zero3_accumulated", 2, {"parallel.zero=3", "train.micro_batch=1"}},
                    Layout{"tp2_cp2", 4, {"parallel.tp=2", "parallel.cp=2"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ring::test
