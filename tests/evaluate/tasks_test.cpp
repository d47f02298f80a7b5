// Scores of questions, compared with whole passes in float64, and task files.
#include "evaluate/tasks.h"
#include "model/decoder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/fields.h"
#include "core/philox.h"
#include "evaluate/prompt.h"
#include "evaluate/task_formats.h"
#include "parallel/plan.h"
#include "tests/trainer/tiny.h"
#include "text/bpe/description.h"
#include "text/bpe/unicode.h"
#include "text/utf8.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

std::vector<Request> some_requests(std::size_t count, std::int64_t longest) {
  std::vector<Request> out;
  for (std::size_t i = 0; i < count; ++i) {
    Request r;
    const auto given = 1 + random_bits({3, 0, 0}, i) % (static_cast<std::uint32_t>(longest) / 2),
               scored = 1 + random_bits({4, 0, 0}, i) % (static_cast<std::uint32_t>(longest) / 2);
    for (std::uint32_t t = 0; t < given + scored; ++t)
      r.tokens.push_back(static_cast<std::int32_t>(random_bits({5, 0, 0}, i * 1000 + t) % 300));
    r.scored = scored;
    out.push_back(std::move(r));
  }
  return out;
}

// Scores one sequence at a time, with a softmax in float64.
Score score_in_float64(const Decoder& model, const ExecContext& ctx, const Request& r) {
  ring::Run run{ctx};
  const auto n = static_cast<std::int64_t>(r.tokens.size()) - 1;
  const std::vector<std::int32_t> inputs(r.tokens.begin(), r.tokens.end() - 1);
  const Tensor h = model.hidden(run, from_host(inputs, ctx.stream), Sequences::uniform(1, n, ctx)).value;
  const std::vector<float> logits = to_host<float>(model.logits(run, h), ctx.stream);
  const std::size_t vocab = logits.size() / static_cast<std::size_t>(n);
  Score s;
  for (std::int64_t t = n - r.scored; t < n; ++t) {
    const float* row = logits.data() + static_cast<std::size_t>(t) * vocab;
    const auto token = static_cast<std::size_t>(r.tokens[static_cast<std::size_t>(t) + 1]);
    double sum = 0;
    for (std::size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]));
    s.log_probability += row[token] - std::log(sum);
    s.greedy = s.greedy && std::max_element(row, row + vocab) == row + token;
  }
  return s;
}

// Replaces the last tokens by those that the model would generate, so that `greedy` is true for some requests.
void make_greedy(const Decoder& model, const ExecContext& ctx, Request& r) {
  ring::Run run{ctx};
  const std::vector<std::int32_t> inputs(r.tokens.begin(), r.tokens.end() - 1);
  const auto n = static_cast<std::int64_t>(inputs.size());
  const Tensor h = model.hidden(run, from_host(inputs, ctx.stream), Sequences::uniform(1, n, ctx)).value;
  const std::vector<float> logits = to_host<float>(model.logits(run, h.narrow(0, n - 1, 1)), ctx.stream);
  r.tokens.back() = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  r.scored = 1;
}

TEST(Scores, PackedScoresEqualSingleScoresInFloat64) {
  for (const char* attention :
       {"{kind: dense}", "{kind: window, window: 5, sinks: 1}", "{kind: dilated, segments: [4, 16], rates: [1, 2]}",
        "{kind: block_sparse, block: 64, rules: [{}]}"}) {
    const ExecContext ctx{Stream::cpu(2)};
    Config config = tiny_config();
    config.model.init_std = 0.2;
    load_config_text(config.model, str("attention: ", attention), "test");
    Decoder model(config.model, 128);
    model.allocate(ctx, 5);
    std::vector<Request> requests = some_requests(41, 30);
    for (std::size_t i = 0; i < requests.size(); i += 3) make_greedy(model, ctx, requests[i]);
    const auto alone = mesh_of_one();
    int greedy = 0;
    for (const auto& [row, rows] : {std::pair{32, 1}, {32, 4}, {100, 3}, {2048, 1}}) {
      const std::vector<Score> got = score(model, ctx, requests, {.row = row, .rows = rows}, alone->host());
      ASSERT_EQ(got.size(), requests.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        const Score want = score_in_float64(model, ctx, requests[i]);
        EXPECT_NEAR(got[i].log_probability, want.log_probability, 1e-5 * (1 + std::abs(want.log_probability)))
            << attention << " request " << i << " in rows of " << row;
        EXPECT_EQ(got[i].greedy, want.greedy) << attention << " request " << i;
        greedy += got[i].greedy;
      }
    }
    EXPECT_GE(greedy, 4 * 14) << attention;
  }
}

// Otherwise rounding, which depends on the place in a batch, would decide which of several equal choices is the best.
TEST(Scores, EqualRequestsHaveEqualScores) {
  const ExecContext ctx{Stream::cpu(2)};
  Decoder model(tiny_config().model);
  model.allocate(ctx, 5);
  const auto alone = mesh_of_one();
  const std::vector<Request> once = some_requests(7, 30);
  std::vector<Request> requests;
  for (int copy = 0; copy < 9; ++copy) requests.insert(requests.end(), once.begin(), once.end());
  for (const auto& [row, rows] : {std::pair{32, 1}, {32, 4}, {100, 3}}) {
    const std::vector<Score> got = score(model, ctx, requests, {.row = row, .rows = rows}, alone->host());
    ASSERT_EQ(got.size(), requests.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i].log_probability, got[i % once.size()].log_probability) << i << " in rows of " << row;
  }
}

TEST(Scores, UseTheNewestTokensOfALongText) {
  const ExecContext ctx{Stream::cpu(2)};
  Decoder model(tiny_config().model);
  model.allocate(ctx, 5);
  const auto alone = mesh_of_one();
  std::vector<Request> requests = some_requests(1, 30);
  while (requests[0].tokens.size() < 60) requests[0].tokens.insert(requests[0].tokens.begin(), 7);
  Request cut = requests[0];
  cut.tokens.erase(cut.tokens.begin(), cut.tokens.end() - 33);
  const Score got = score(model, ctx, requests, {.row = 32}, alone->host())[0],
              want = score_in_float64(model, ctx, cut);
  EXPECT_NEAR(got.log_probability, want.log_probability, 1e-4);
}

TEST(Scores, EveryJudgedTokenIsInOneBatchOfOneRank) {
  const std::vector<Request> requests = some_requests(57, 30);
  std::int64_t scored = 0;
  for (const Request& r : requests) scored += r.scored;
  for (const std::int64_t align : {1, 8, 32})
    for (const int world : {1, 3}) {
      std::int64_t seen = 0;
      std::vector<int> times(requests.size(), 0);
      for (int rank = 0; rank < world; ++rank) {
        const PackedRequests packed(requests, {.row = 32, .rows = 4, .rank = rank, .world = world}, align);
        EXPECT_EQ(packed.batches(), (packed.rows() + 4 * world - 1) / (4 * world));
        for (std::int64_t i = 0; i < packed.batches(); ++i) {
          std::vector<std::int32_t> owners;
          const Batch b = packed.batch(i, owners);
          seen += b.valid_targets;
          for (std::size_t d = 0; d < b.starts.size(); ++d) {
            EXPECT_EQ(b.starts[d] % align, 0);
            ++times[static_cast<std::size_t>(owners[static_cast<std::size_t>(b.starts[d])])];
          }
        }
      }
      EXPECT_EQ(seen, scored);
      EXPECT_EQ(std::ranges::count(times, 1), static_cast<std::ptrdiff_t>(times.size()));
    }
}

class Tasks : public testing::Test {
 protected:
  Tasks() : folder_(fs::temp_directory_path() / ("ringmaster-tasks-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~Tasks() override { fs::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  fs::path folder_;
};

TaskItem item(const char* record) {
  const auto json = nlohmann::json::parse(record);
  return parse_task_item(task_format_of(json, "x: "), json, "x: ");
}

// Expected values were derived by hand from the task files of lm-evaluation-harness.
TEST(TaskFormats, TextsEqualThoseOfTheHarness) {
  const TaskItem hellaswag = item(R"({"ind": 1, "activity_label": "Roof", "ctx_a": "A man [title] Sits [step] there.",
      "ctx_b": "he IS", "ctx": "unused", "endings": [" starts. ", "a  b [x] c", "d [open", "e"], "label": "2"})");
  EXPECT_EQ(hellaswag.context, "Roof: A man. Sits there. He is");
  EXPECT_EQ(hellaswag.choices, (std::vector<std::string>{"starts.", "a b c", "d [open", "e"}));
  EXPECT_EQ(hellaswag.answer, 2u);
  const char* arcs[] = {R"({"id": "a", "question": "Why?", "choices": {"text": ["x", "y"], "label": ["1", "2"]},
                            "answerKey": "2"})",
                        R"({"id": "a", "question": {"stem": "Why?", "choices": [{"text": "x", "label": "1"},
                            {"text": "y", "label": "2"}]}, "answerKey": "2"})"};
  for (const char* record : arcs) {
    const TaskItem arc = item(record);
    EXPECT_EQ(arc.context, "Question: Why?\nAnswer:");
    EXPECT_EQ(arc.choices, (std::vector<std::string>{"x", "y"}));
    EXPECT_EQ(arc.answer, 1u);
  }
  const TaskItem mmlu =
      item(R"({"question": " How? ", "subject": "high_school_x", "choices": ["a", "b", "c", "d"], "answer": 3})");
  EXPECT_EQ(mmlu.context,
            "The following are multiple choice questions (with answers) about high school x.\n\n"
            "How?\nA. a\nB. b\nC. c\nD. d\nAnswer:");
  EXPECT_EQ(mmlu.choices, (std::vector<std::string>{"A", "B", "C", "D"}));
  EXPECT_EQ(mmlu.answer, 3u);
  const TaskItem lambada = item(R"({"text": "one two three"})");
  EXPECT_EQ(lambada.context, "one two");
  EXPECT_EQ(lambada.choices, (std::vector<std::string>{"three"}));
  EXPECT_EQ(item(R"({"context": "c", "choices": ["x", "y"], "answer": "y"})").answer, 1u);
  EXPECT_EQ(item(R"({"context": "c", "choices": ["x", "y"], "answer": 1})").answer, 1u);
}

#ifdef RING_WITH_UTF8PROC
// Expected values are those of str.capitalize() of Python 3.11, which the harness calls.
TEST(TaskFormats, CapitalizeKnowsUnicode) {
  const std::pair<const char*, const char*> cases[] = {{"ПОШЁЛ ДОМОЙ", "Пошёл домой"},
                                                       {"ßa ÉCOLE", "Ssa école"},
                                                       {"ǆX", "ǅx"},
                                                       {"ﬁN", "Fin"},
                                                       {"ΟΔΟΣ Σ ΑΣΑ", "Οδος σ ασα"},
                                                       {"ΑΣ.", "Ας."},
                                                       {"ΑΣ'Α", "Ασ'α"},
                                                       {"éLÈVE", "Élève"},
                                                       {"he IS", "He is"},
                                                       {"", ""}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(unicode::capitalized(text), expected);
  EXPECT_EQ(item(R"({"activity_label": "A", "ctx_a": "a", "ctx_b": "ßA", "endings": ["x"], "label": 0})").context,
            "A: a Ssa");
}
#endif

// The harness calls str.rstrip() for contexts, which strips all Unicode whitespace.
TEST_F(Tasks, BlanksOfUnicodeBelongToTheChoice) {
  const auto tokenizer = bytes_tokenizer();
  for (const char* blank : {" ", "\\u3000", "\\u00a0", "\\u2003\\u2028", "\\u001c"}) {
    const Task task = read_task(
        {"t", write("t.jsonl", R"({"context": "ab)" + std::string(blank) + R"(", "choices": ["c"], "answer": 0})")},
        *tokenizer);
    EXPECT_EQ(task.requests[0].scored, static_cast<std::int64_t>(task.requests[0].tokens.size()) - 2) << blank;
  }
}

TEST_F(Tasks, QuestionsBecomeTokens) {
  const auto tokenizer = bytes_tokenizer();
  const Task task = read_task({"t", write("t.jsonl",
                                          "{\"context\": \"ab \", \"choices\": [\"c\", \"dé\"], "
                                          "\"answer\": 0}\n\n{\"context\": \"\", \"choices\": [\"x\"], "
                                          "\"answer\": 0}")},
                              *tokenizer);
  EXPECT_EQ(task.format, "plain");
  ASSERT_EQ(task.questions.size(), 2u);
  ASSERT_EQ(task.requests.size(), 3u);
  EXPECT_EQ(tokenizer->decode(task.requests[1].tokens), "ab  dé");
  EXPECT_EQ(task.requests[1].scored, 5) << "the blank at the end of the context belongs to the choice";
  EXPECT_EQ(task.questions[0].characters, (std::vector<double>{1, 2}));
  EXPECT_EQ(task.questions[0].bytes, (std::vector<double>{1, 3}));
  EXPECT_EQ(task.requests[2].tokens.front(), *tokenizer->end_of_text()) << "something has to be given";
  EXPECT_EQ(task.requests[2].scored, 2);
  EXPECT_EQ(count_truncated_requests(task, 5), 1);
}

#ifdef RING_WITH_UTF8PROC
// Makes a tokenizer of bytes, <s> (256) and </s> (257). around: <s> is put in front of each text.
std::shared_ptr<const Tokenizer> with_begin(bool around) {
  nlohmann::json j = {
      {"model", {{"type", "BPE"}, {"vocab", nlohmann::json::object()}, {"merges", nlohmann::json::array()}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}}};
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    utf8::append(character, bpe::character_of(static_cast<unsigned char>(byte)));
    j["model"]["vocab"][character] = byte;
  }
  j["added_tokens"] = {{{"id", 256}, {"content", "<s>"}, {"special", true}},
                       {{"id", 257}, {"content", "</s>"}, {"special", true}}};
  if (around)
    j["post_processor"] = {{"type", "TemplateProcessing"},
                           {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                           {"special_tokens", {{"<s>", {{"ids", {256}}}}}}};
  return json_tokenizer(j.dump(), "t.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
}

// lm-evaluation-harness 0.4 replaces an empty context by prefix_token_id, the tokenizer's bos_token.
TEST_F(Tasks, EmptyContextsBecomeOneBeginOfTextToken) {
  const std::string file = write("t.jsonl",
                                 "{\"context\": \"\", \"choices\": [\"x\"], \"answer\": 0}\n"
                                 "{\"context\": \"<s>a\", \"choices\": [\"x\"], \"answer\": 0}\n"
                                 "{\"context\": \"a\", \"choices\": [\"x\"], \"answer\": 0}\n");
  using Ids = std::vector<std::int32_t>;
  const auto requests = [&](bool around) { return read_task({"t", file}, *with_begin(around)).requests; };
  for (const bool around : {false, true}) {
    EXPECT_EQ(requests(around)[0].tokens, (Ids{256, ' ', 'x'})) << around;
    EXPECT_EQ(requests(around)[1].tokens, (Ids{256, 'a', ' ', 'x'})) << around;
    for (const Request& r : requests(around)) EXPECT_EQ(r.scored, 2) << around;
  }
  EXPECT_EQ(requests(false)[2].tokens, (Ids{'a', ' ', 'x'}));
  EXPECT_EQ(requests(true)[2].tokens, (Ids{256, 'a', ' ', 'x'}));
  EXPECT_EQ(prompt_tokens(*with_begin(false), ""), (Ids{256}));
  EXPECT_EQ(prompt_tokens(*with_begin(false), "a"), (Ids{'a'}));
  EXPECT_EQ(prompt_tokens(*bytes_tokenizer(), ""), (Ids{256})) << "it has only one that ends a text";
}
#endif

TEST(TaskResults, FollowFromTheScores) {
  Task task{.name = "t", .questions = {}, .requests = std::vector<Request>(6)};
  task.questions = {{0, 1, {1, 4}, {1, 4}}, {2, 0, {2, 2}, {2, 8}}, {4, 0, {3, 1}, {3, 1}}};
  const std::vector<Score> scores = {{-2, false}, {-4, false}, {-3, false}, {-3, true}, {-9, false}, {-3.5, false}};
  // The choices by log-probability are 0, 0 (the first of equals) and 1; by character 1, 0 and 0; by byte 1, 1 and 0.
  const TaskResult r = grade_task(task, scores);
  ASSERT_EQ(r.values.size(), 6u);
  EXPECT_EQ(r.values[0], (std::pair<std::string, double>{"acc", 1.0 / 3}));
  EXPECT_EQ(r.values[1].first, "acc_stderr");
  EXPECT_NEAR(r.values[1].second, std::sqrt(1.0 / 3 * 2.0 / 3 / 2), 1e-12);
  EXPECT_EQ(r.values[2], (std::pair<std::string, double>{"acc_norm", 1}));
  EXPECT_EQ(r.values[4], (std::pair<std::string, double>{"acc_bytes", 2.0 / 3}));
  task.cloze = true;
  task.questions = {{1, 0, {1}, {1}}, {3, 0, {1}, {1}}};
  const TaskResult cloze = grade_task(task, scores);
  EXPECT_EQ(cloze.values[0].first, "perplexity");
  EXPECT_NEAR(cloze.values[0].second, std::exp(3.5), 1e-9);
  EXPECT_EQ(cloze.values[1], (std::pair<std::string, double>{"acc", 0.5}));
}

TEST_F(Tasks, InvalidTasksAreRefused) {
  const auto tokenizer = bytes_tokenizer();
  const auto refused = [&](const std::string& text, const std::string& why) {
    try {
      read_task({"t", write("bad.jsonl", text)}, *tokenizer);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("bad.jsonl" + why), std::string::npos) << e.what();
    }
  };
  refused("", " contains no question");
  refused("[1]", ":1: this line is a JSON array");
  refused("{\"text\": \"a b\"}\n{\"text\": \"a", ":2: this line cannot be read");
  refused("{\"prompt\": \"a b\"}", ":1: this record matches no");
  refused("{\"text\": \"word\"}", ":1: 'text' has no last word");
  refused("{\"text\": \"a b\"}\n{\"question\": \"a\"}", ":2: this record has no 'text'");
  refused(R"({"context": "c", "choices": ["x"], "answer": 1})", ":1: 'answer' is 1");
  refused(R"({"context": "c", "choices": ["x"], "answer": -1})", ":1: 'answer' is -1");
  refused(R"({"context": "c", "choices": ["x", 3], "answer": 1})", ":1: 'choices' is a JSON number");
  refused(R"({"context": "c", "choices": [], "answer": 1})", ":1: 'choices' is not a list");
  refused(R"({"context": "c", "choices": [""], "answer": 0})", ":1: a choice is empty");
  refused(R"({"activity_label": "a", "ctx_a": "b", "ctx_b": "", "endings": ["x"], "label": ""})",
          ":1: 'label' is \"\"");
  refused(R"({"question": "q", "choices": {"text": ["x"], "label": ["A"]}, "answerKey": "B"})", ":1: 'answerKey'");
  refused(R"({"question": {"stem": "q", "choices": ["x"]}, "answerKey": "A"})", ":1: 'question.choices' is not a list");
  refused(R"({"question": {"stem": "q", "choices": 3}, "answerKey": "A"})", ":1: 'question.choices' is not a list");
  for (const auto& [specs, why] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{{{"file"}, "--task: file is not a task"},
                                                                     {{"a="}, "is not a task"},
                                                                     {{"a b=c"}, "is not a task"},
                                                                     {{"=c"}, "is not a task"},
                                                                     {{"a=b", "a=c"}, "two tasks are called a"}}) {
    try {
      parse_tasks("--task", specs);
      ADD_FAILURE() << why;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace ring::test
