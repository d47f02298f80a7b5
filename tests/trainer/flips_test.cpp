// Files that a run reads, with a flipped bit or a truncated end: the reader names the file, or computes exactly the
// same numbers. RINGMASTER_FLIPS sets the number of damages, RINGMASTER_FLIPS_FIRST the index of the first. An index
// always gives the same damage.
#include <algorithm>
#include <cstdlib>

#include "checkpoint/files.h"
#include "core/check.h"
#include "core/philox.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

class SlowFlips : public Runs {
 protected:
  // Trains a run of 12 steps, with checkpoints at steps 5 and 10, that was stopped at step 10.
  void SetUp() override {
    Runs::SetUp();
    ASSERT_EQ(run_process(train("run", {"train.steps=12", "train.eval_interval=0", "checkpoint.keep_last=3"})).code, 0);
    want_.tensors = tensors("run", "step-000000012").dump();
    fs::remove_all(path("run/checkpoints/step-000000012"));
    fs::copy(path("run"), path("whole"), fs::copy_options::recursive);
    evaluate(want_);
    fs::remove_all(path("run/checkpoints/step-000000010"));
    evaluate(older_);
    fs::copy(path("whole/checkpoints/step-000000010"), path("run/checkpoints/step-000000010"));
    fs::copy(path("a.h5"), path("whole.h5"));
    files_ = {"a.h5", "run/config.yaml", "run/tokenizer.rmt", "run/metrics.jsonl"};
    for (const char* step : {"step-000000005", "step-000000010"})
      for (const char* file : {"manifest.json", "shard-00000.h5"})
        files_.push_back(str("run/checkpoints/", step, "/", file));
    ASSERT_TRUE(fs::exists(path(files_.back())));
  }

  struct Results {
    std::string loss, text, tensors;
  };
  void evaluate(Results& r) const {
    const Finished loss = ring({"eval", path("run")}), text = ring(generate());
    ASSERT_EQ(loss.code, 0) << loss.output;
    ASSERT_EQ(text.code, 0) << text.output;
    r.loss = loss.output;
    r.text = text.output;
  }
  std::vector<std::string> generate() const {
    return {"generate", path("run"), "--prompt", "line", "--max-tokens", "8", "--seed", "3", "--threads", "1"};
  }
  void restore() const {
    fs::remove_all(path("run"));
    fs::copy(path("whole"), path("run"), fs::copy_options::recursive);
    fs::copy(path("whole.h5"), path("a.h5"), fs::copy_options::overwrite_existing);
  }
  // Applies damage number i and returns its description.
  std::string apply_damage(std::uint64_t i) const {
    const auto random = [&](std::uint32_t what) { return random_bits({41, 0, what}, i); };
    const std::string file = files_[random(0) % files_.size()];
    std::string bytes = read_text(path(file));
    const std::size_t at = random(1) % bytes.size();
    const bool cut = random(2) % 7 == 0;
    if (cut)
      bytes.resize(at);
    else
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random(3) % 8));
    std::ofstream(path(file), std::ios::binary) << bytes;
    return str(file, cut ? " cut at " : " flipped at ", at);
  }
  // Returns whether the output is the result of the whole run, or an error that names the file, or the result of the
  // checkpoint before with a warning that names the file. Warnings come before the result.
  static bool is_sound(const Finished& done, const std::string& file, const std::string& want,
                       const std::string& older) {
    const bool named = done.output.find(fs::path(file).filename().string()) != std::string::npos;
    if (done.code != 0) return done.code == 1 && named;
    return done.output.ends_with(want) || (named && !older.empty() && done.output.ends_with(older));
  }

  Results want_, older_;
  std::vector<std::string> files_;
};

int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}

TEST_F(SlowFlips, DamagesAreNamedOrHarmless) {
  const int first = number_from("RINGMASTER_FLIPS_FIRST", 0), flips = number_from("RINGMASTER_FLIPS", 24);
  int refused = 0, harmless = 0;
  for (int i = first; i < first + flips; ++i) {
    const std::string what = apply_damage(static_cast<std::uint64_t>(i)), file = what.substr(0, what.find(' '));
    const Finished loss = ring({"eval", path("run")}), text = ring(generate());
    EXPECT_TRUE(is_sound(loss, file, want_.loss, older_.loss)) << what << "\n" << loss.code << " " << loss.output;
    EXPECT_TRUE(is_sound(text, file, want_.text, older_.text)) << what << "\n" << text.code << " " << text.output;
    const Finished trained = ring({"train", path("run")});
    const bool same = trained.code == 0 && tensors("run", "step-000000012").dump() == want_.tensors;
    EXPECT_TRUE(same || (trained.code == 1 && is_sound(trained, file, "", "")))
        << what << "\n"
        << trained.code << " " << trained.output;
    for (const Finished* done : {&loss, &text, &trained}) (done->code ? refused : harmless)++;
    restore();
  }
  std::printf("%d flips and cuts: %d commands refused, %d had the same result\n", flips, refused, harmless);
  EXPECT_GT(refused, 0);
  EXPECT_GT(harmless, 0);
}

}  // namespace
}  // namespace ring::test
