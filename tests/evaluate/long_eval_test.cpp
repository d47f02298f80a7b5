#include "evaluate/long_eval.h"
#include "model/decoder.h"
#include "tests/paths.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "comm/mesh/mesh.h"
#include "core/check.h"
#include "data/token_store.h"
#include "evaluate/generate.h"
#include "evaluate/long_tasks.h"
#include "tests/process.h"
#include "tests/trainer/tiny.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

constexpr LongKind kPasskey = LongKind::passkey;

std::string write_corpus(const std::string& path, const std::vector<std::int32_t>& train,
                         const std::vector<std::int32_t>& validation) {
  const auto tokenizer = bytes_tokenizer();
  TokenStoreWriter writer(path, tokenizer->vocab_size());
  for (const auto& [split, tokens] : {std::pair{Split::train, train}, std::pair{Split::validation, validation}}) {
    writer.begin_document(split);
    writer.append(split, tokens);
    writer.add_text_bytes(split, tokens.size());
  }
  writer.finish(*tokenizer, "a test");
  return path;
}

std::vector<std::int32_t> noise(std::size_t n) {
  std::vector<std::int32_t> out;
  for (std::size_t i = 0; i < n; ++i) out.push_back(static_cast<std::int32_t>(i * i % 251 + i % 6));
  return out;
}

class LongEval : public testing::Test {
 protected:
  LongEval() : folder_(fs::temp_directory_path() / ("ringmaster-long-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~LongEval() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  fs::path folder_;
};

// Returns the negative log of the softmax, in float64.
double nats(const Model& model, const ExecContext& ctx, const Tensor& hidden, std::int64_t row, std::int32_t token) {
  ring::Run run{ctx};
  const std::vector<float> logits = to_host<float>(model.logits(run, hidden.narrow(0, row, 1)), ctx.stream);
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x));
  return std::log(sum) - logits[static_cast<std::size_t>(token)];
}

TEST_F(LongEval, BucketsHoldTheLossesOfTheirPositions) {
  const ExecContext ctx{Stream::cpu(2)};
  Decoder model(tiny_config().model);
  model.allocate(ctx, 5);
  const std::vector<std::int32_t> text = noise(140);  // windows of 24: five whole windows, and one with 19 targets
  const Corpora corpora = open_corpus(write_corpus(path("a.h5"), noise(50), text));
  std::map<std::int64_t, std::pair<double, std::int64_t>> want;  // by the first position of the bucket
  for (std::size_t begin = 0; begin + 1 < text.size(); begin += 24) {
    const std::size_t n = std::min<std::size_t>(24, text.size() - 1 - begin);
    ring::Run run{ctx};
    const std::vector<std::int32_t> ids(text.begin() + static_cast<long>(begin),
                                        text.begin() + static_cast<long>(begin + n));
    const Tensor h =
        model.hidden(run, from_host(ids, ctx.stream), Sequences::uniform(1, static_cast<std::int64_t>(n), ctx)).value;
    for (std::size_t t = 0; t < n; ++t) {
      std::int64_t first = 0;
      for (std::int64_t p : {1, 2, 4, 8, 16})
        if (static_cast<std::int64_t>(t) >= p) first = p;
      want[first].first += nats(model, ctx, h, static_cast<std::int64_t>(t), text[begin + t + 1]);
      ++want[first].second;
    }
  }
  for (const std::int64_t rows : {1, 4}) {
    const ValidationSet set(corpora, {.context = 24, .rows = rows});
    const std::vector<PositionBucket> got = losses_by_position(model, ctx, set);
    ASSERT_EQ(got.size(), want.size());
    std::size_t i = 0;
    for (const auto& [first, bucket] : want) {
      EXPECT_EQ(got[i].first, first);
      EXPECT_EQ(got[i].end, first == 0 ? 1 : std::min<std::int64_t>(24, 2 * first));
      EXPECT_EQ(got[i].tokens, bucket.second);
      EXPECT_NEAR(got[i].loss(), bucket.first / static_cast<double>(bucket.second), 1e-5);
      ++i;
    }
  }
}

TEST(Passkey, PromptsContainTheKeyAtTheGivenDepth) {
  const auto tokenizer = bytes_tokenizer();
  const LongTask task(kPasskey, *tokenizer, 3);
  EXPECT_TRUE(task.writes_everything());
  for (const std::int64_t length : {270, 600, 2000})
    for (const double depth : {0.0, 0.3, 1.0})
      for (std::int64_t trial = 0; trial < 4; ++trial) {
        const LongPrompt p = task.prompt(length, depth, trial);
        const std::string text = tokenizer->decode(p.tokens);
        ASSERT_LE(static_cast<std::int64_t>(p.tokens.size()), length);
        ASSERT_GT(static_cast<std::int64_t>(p.tokens.size()), length - 24);  // the longest sentence has 23 tokens
        ASSERT_EQ(p.answer.size(), 5u);
        const std::string needle =
            "\nThe pass key is " + p.answer + ". Remember it. " + p.answer + " is the pass key.\n";
        const std::size_t at = text.find(needle);
        ASSERT_NE(at, std::string::npos) << text;
        EXPECT_EQ(text.find(needle, at + 1), std::string::npos);
        EXPECT_TRUE(text.ends_with("\nWhat is the pass key? The pass key is " + p.answer));
        const auto answer_tokens = static_cast<std::size_t>(p.answer_tokens);
        EXPECT_EQ(tokenizer->decode(std::span(p.tokens).last(answer_tokens)), " " + p.answer);
        const auto sentences = [](std::string_view part) { return std::count(part.begin(), part.end(), '.'); };
        const std::string_view view(text);
        const auto before = sentences(view.substr(0, at)) - 3;  // three sentences belong to the introduction
        const auto after = sentences(view.substr(at + needle.size()));
        EXPECT_EQ(before, p.filler_before);
        EXPECT_EQ(after, p.filler_after);
        EXPECT_NEAR(static_cast<double>(before), depth * static_cast<double>(before + after), 0.5 + 1e-9);
      }
}

TEST(Passkey, KeysDependOnSeedCellAndTrial) {
  const auto tokenizer = bytes_tokenizer();
  const LongTask task(kPasskey, *tokenizer, 3), same(kPasskey, *tokenizer, 3), other(kPasskey, *tokenizer, 4);
  EXPECT_EQ(task.prompt(400, 0.5, 2).tokens, same.prompt(400, 0.5, 2).tokens);
  std::set<std::string> keys;
  for (std::int64_t t = 0; t < 5; ++t) {
    keys.insert(task.prompt(400, 0.5, t).answer);
    keys.insert(task.prompt(400, 0.25, t).answer);
    keys.insert(task.prompt(500, 0.5, t).answer);
    keys.insert(other.prompt(400, 0.5, t).answer);
  }
  EXPECT_GE(keys.size(), 19u);
}

// The answers follow from the sentences of the text.
TEST(LongTasks, ContainTheirAnswers) {
  const auto tokenizer = bytes_tokenizer();
  const std::regex named("\\nThe number of (\\w+) is (\\d+)\\.\\n"),
      linked("\\nThe number of (\\w+) is that of (\\w+)\\.\\n"),
      asked("What is the number of (\\w+)\\? The number of (\\w+) is (\\d+)$");
  for (const LongKind kind : {LongKind::needles, LongKind::variables})
    for (const double depth : {0.0, 0.5, 1.0})
      for (std::int64_t trial = 0; trial < 5; ++trial) {
        const LongTask task(kind, *tokenizer, 3);
        const LongPrompt p = task.prompt(1500, depth, trial);
        const std::string text = tokenizer->decode(p.tokens);
        ASSERT_LE(p.tokens.size(), 1500u);
        ASSERT_GT(p.tokens.size(), 1500u - 24);
        std::map<std::string, std::string> values;
        for (std::sregex_iterator m(text.begin(), text.end(), named), end; m != end; ++m) values[(*m)[1]] = (*m)[2];
        ASSERT_EQ(values.size(), kind == LongKind::needles ? 4u : 2u) << text;
        for (std::sregex_iterator m(text.begin(), text.end(), linked), end; m != end; ++m) {
          ASSERT_TRUE(values.contains((*m)[2])) << text;  // an earlier sentence gives the number
          values[(*m)[1]] = values[(*m)[2]];
        }
        EXPECT_EQ(values.size(), kind == LongKind::needles ? 4u : 8u) << text;
        std::smatch question;
        ASSERT_TRUE(std::regex_search(text, question, asked)) << text;
        EXPECT_EQ(question[1], question[2]);
        EXPECT_EQ(values.at(question[1]), p.answer);
        EXPECT_EQ(question[3], p.answer);
        EXPECT_EQ(p.answer_tokens, 6);
      }
}

TEST(LongTasks, OneWordIsTheMostCommon) {
  const auto tokenizer = bytes_tokenizer();
  const LongTask task(LongKind::words, *tokenizer, 3);
  for (const std::int64_t length : {200, 400, 3000})
    for (std::int64_t trial = 0; trial < 4; ++trial) {
      const LongPrompt p = task.prompt(length, 0, trial);
      const std::string text = tokenizer->decode(p.tokens);
      const std::size_t begin = text.find('\n'), end = text.find("\nWhich");
      std::istringstream list(text.substr(begin, end - begin));
      std::map<std::string, int> times;
      for (std::string word; list >> word;) ++times[word];
      for (const auto& [word, count] : times) EXPECT_TRUE(word == p.answer || count < times[p.answer]) << word << text;
      EXPECT_TRUE(text.ends_with("The word is " + p.answer));
    }
  EXPECT_THROW(task.prompt(task.tokens_without_filler() + 10, 0, 0), Error);
}

TEST(Passkey, WorksWithOtherTokenizers) {
  std::string letters = "TFIWRHwp \n?.abcdefghijklmnopqrstuvwxyz";
  const auto words = chars_tokenizer(letters), none = chars_tokenizer("abc");
  const LongTask task(kPasskey, *words, 1);  // without digits, the key has letters
  EXPECT_TRUE(task.writes_everything());
  for (char c : task.prompt(400, 0.5, 0).answer) EXPECT_TRUE(c >= 'a' && c <= 'z') << c;
  EXPECT_FALSE(LongTask(kPasskey, *chars_tokenizer("0123456789 key."), 1).writes_everything());
  EXPECT_THROW(LongTask(kPasskey, *none, 1), Error);
}

TEST(Passkey, TooSmallALengthIsRefused) {
  const auto tokenizer = bytes_tokenizer();
  const LongTask task(kPasskey, *tokenizer, 1);
  try {
    task.prompt(100, 0.5, 0);
    FAIL();
  } catch (const Error& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("of 100 tokens"), std::string::npos) << what;
    EXPECT_NE(what.find(str("it needs ", task.tokens_without_filler())), std::string::npos) << what;
  }
  EXPECT_NO_THROW(task.prompt(task.tokens_without_filler(), 0.5, 0));
}

// A model that has memorized one prompt answers only that prompt. The count equals the number of keys that it would
// generate.
TEST_F(LongEval, ExactMeansThatTheModelWritesTheKey) {
  const auto tokenizer = bytes_tokenizer();
  const LongTask task(kPasskey, *tokenizer, 3), other(kPasskey, *tokenizer, 4);
  const std::int64_t length = task.tokens_without_filler() + 10;
  const LongPrompt prompt = task.prompt(length, 0.5, 0);
  std::vector<std::int32_t> text;
  for (int i = 0; i < 8; ++i) text.insert(text.end(), prompt.tokens.begin(), prompt.tokens.end());
  Config config = tiny_config();
  config.model.context = static_cast<std::int64_t>(prompt.tokens.size());
  config.train.batch_size = config.train.micro_batch = 2;
  config.train.steps = 250;
  config.optimizer.lr = 5e-3;
  config.schedule.warmup_steps = 5;
  config = resolve_config(config, 257);
  const ExecContext ctx{Stream::cpu(2)};
  const auto mesh = mesh_of_one();
  Loader loader(open_corpus(write_corpus(path("a.h5"), text, text)), {.context = config.model.context, .rows = 2});
  Trainer trainer(config, ctx, *mesh, loader);
  for (int i = 0; i < 250; ++i) trainer.step();

  const LongCell known = long_cell(trainer.model(), ctx, task, length, 0.5, 1);
  EXPECT_EQ(known.exact, 1) << known.log_probability;
  EXPECT_GT(known.log_probability, -0.2);
  const LongCell unknown = long_cell(trainer.model(), ctx, other, length, 0.5, 3);
  EXPECT_EQ(unknown.exact, 0);
  EXPECT_EQ(unknown.trials, 3);
  EXPECT_LT(unknown.log_probability, -1);

  double sum = 0;
  std::int64_t tokens = 0, written = 0;
  for (const auto& [from, trials] : {std::pair{&task, 1}, std::pair{&other, 3}})
    for (int t = 0; t < trials; ++t) {
      const LongPrompt p = from->prompt(length, 0.5, t);
      const std::size_t asked = p.tokens.size() - static_cast<std::size_t>(p.answer_tokens);
      std::vector<std::int32_t> answer;
      generate(trainer.model(), ctx, {p.tokens.begin(), p.tokens.begin() + static_cast<long>(asked)},
               {.temperature = 0}, p.answer_tokens, [&](std::int32_t id) { return answer.push_back(id), true; });
      written += answer == std::vector<std::int32_t>(p.tokens.begin() + static_cast<long>(asked), p.tokens.end());
      if (from == &task) continue;
      ring::Run run{ctx};
      const Tensor h = trainer.model()
                           .hidden(run, from_host(p.tokens, ctx.stream),
                                   Sequences::uniform(1, static_cast<std::int64_t>(p.tokens.size()), ctx))
                           .value;
      for (std::size_t i = asked; i < p.tokens.size(); ++i, ++tokens)
        sum -= nats(trainer.model(), ctx, h, static_cast<std::int64_t>(i) - 1, p.tokens[i]);
    }
  EXPECT_EQ(written, known.exact + unknown.exact);
  EXPECT_NEAR(unknown.log_probability, sum / static_cast<double>(tokens), 1e-5);
}

TEST_F(LongEval, TheCommandMeasuresLongContexts) {
  const Corpora corpora = open_corpus(write_corpus(path("a.h5"), noise(3000), noise(900)));
  const auto ring = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), ring_binary());
    return run_process(arguments);
  };
  const auto train = [&](const std::string& run, const std::string& positions) {
    return ring({"train", source_dir() + "/configs/nanogpt_cpu.yaml", "run.directory=" + path(run), "run.device=cpu",
                 "run.threads=2", "data.path=" + path("a.h5"), "model.context=64", "model.width=32", "model.layers=1",
                 "model.positions=" + positions, "train.steps=3", "train.batch_size=2"});
  };
  ASSERT_EQ(train("run", "rope").code, 0);
  const Finished plain = ring({"eval", path("run"), "--json", "--device", "cpu"});
  const Finished whole = ring({"eval", path("run"), "--long", "--trials", "0", "--json", "--device", "cpu"});
  ASSERT_EQ(whole.code, 0) << whole.output;
  const auto json = nlohmann::json::parse(whole.output);
  EXPECT_EQ(json.at("tokens"), 899);
  EXPECT_NEAR(json.at("loss").get<double>(), nlohmann::json::parse(plain.output).at("loss").get<double>(), 1e-5);
  std::int64_t tokens = 0;
  for (const auto& bucket : json.at("positions")) tokens += bucket.at("tokens").get<std::int64_t>();
  EXPECT_EQ(tokens, 899);
  EXPECT_EQ(json.at("positions").back().at("first"), 33);
  EXPECT_EQ(json.at("positions").back().at("last"), 64);

  const std::vector<std::string> passkey = {"eval",    path("run"), "--long", "--lengths", "300,400", "--depths",
                                            "0,0.5,1", "--trials",  "2",      "--device",  "cpu",     "--csv"};
  const Finished csv = ring(passkey);
  ASSERT_EQ(csv.code, 0) << csv.output;
  EXPECT_EQ(std::count(csv.output.begin(), csv.output.end(), '\n'), 1 + 7 + 6) << csv.output;
  EXPECT_NE(csv.output.find("passkey,400,,,0.5,2,0.0000,-"), std::string::npos) << csv.output;
  EXPECT_EQ(ring(passkey).output, csv.output);
  const Finished others = ring({"eval", path("run"), "--long", "--long-tasks", "needles,words", "--lengths", "500",
                                "--depths", "0,1", "--trials", "2", "--device", "cpu", "--svg", path("map.svg")});
  ASSERT_EQ(others.code, 0) << others.output;
  for (const char* text : {"needles: exact answers",
                           "Exact answers: needles\ndepth     500   tokens of the prompt\n"
                           "    0     0 %\n    1     0 %\n",
                           "Exact answers: words"})
    EXPECT_NE(others.output.find(text), std::string::npos) << text << " not in: " << others.output;
  std::ifstream picture(path("map.svg"));
  const std::string svg{std::istreambuf_iterator<char>(picture), {}};
  const std::regex shares("0 %</text>");
  EXPECT_EQ(std::distance(std::sregex_iterator(svg.begin(), svg.end(), shares), {}), 3) << svg;
  const Finished table = ring({"eval", path("run"), "--long", "--length", "128", "--device", "cpu"});
  ASSERT_EQ(table.code, 0) << table.output;  // no prompt fits into the context
  for (const char* text : {"in windows of 128 tokens", "65 to 128", "no passkey prompts", "context of 64"})
    EXPECT_NE(table.output.find(text), std::string::npos) << text << " not in: " << table.output;

  const auto refused = [&](std::vector<std::string> arguments, const std::string& why) {
    const Finished f = ring(arguments);
    EXPECT_NE(f.code, 0);
    EXPECT_NE(f.output.find(why), std::string::npos) << f.output;
  };
  refused({"eval", path("run"), "--long", "--lengths", "100"}, "without any filler it needs");
  refused({"eval", path("run"), "--lengths", "100"}, "--lengths requires --long");
  ASSERT_EQ(train("learned", "learned").code, 0);
  refused({"eval", path("learned"), "--long", "--length", "65"}, "--length: expected at most 64 tokens, got 65");
  refused({"eval", path("learned"), "--long", "--lengths", "400"}, "--lengths: expected at most 64 tokens, got 400");
  fs::remove(folder_ / "run/tokenizer.rmt");
  refused({"eval", path("run"), "--long"}, "tokenizer.rmt");
}

}  // namespace
}  // namespace ring::test
