// eval and generate as a user starts them, on runs trained by the tests.
#include <cmath>
#include <sstream>

#include "core/files.h"
#include "evaluate/generate_text.h"
#include "tests/error_of.h"
#include "tests/trainer/runs.h"
#include "trainer/progress.h"

namespace ring::test {
namespace {

using Json = nlohmann::json;

class EvalCommands : public Runs {
 protected:
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  std::vector<Json> group(const std::string& run, const std::string& name) const {
    std::vector<Json> out;
    std::ifstream file(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (const Json json = Json::parse(line); json.at("group") == name) out.push_back(json);
    return out;
  }
  Finished eval(std::vector<std::string> more) const {
    more.insert(more.begin(), {"eval", path("run"), "--device", "cpu"});
    return ring(more);
  }
  Json json_of(std::vector<std::string> more) const {
    more.push_back("--json");
    const Finished f = eval(more);
    EXPECT_EQ(f.code, 0) << f.output;
    return Json::parse(f.output, nullptr, false);
  }
  void write_tasks() const {
    std::string choices, words;
    for (int i = 0; i < 30; ++i) {
      choices += str_of(
          {{"context", "line " + std::to_string(i) + " of"}, {"choices", {"a text", "zebra", "7"}}, {"answer", i % 3}});
      words += str_of({{"text", "line " + std::to_string(i) + " of a text"}});
    }
    write("choices.jsonl", choices);
    write("words.jsonl", words);
  }
  static std::string str_of(const Json& record) { return record.dump() + "\n"; }
};

TEST_F(EvalCommands, TasksDuringTrainingEqualThoseOfEval) {
  write_tasks();
  const Finished trained = run_process(
      train("run", {"train.steps=0", "train.epochs=0.12", "train.eval_tasks_interval=15", "train.eval_interval=0",
                    "train.eval_tasks=[choices=" + path("choices.jsonl") + ", words=" + path("words.jsonl") + "]"}));
  ASSERT_EQ(trained.code, 0) << trained.output;
  // The corpus has 600 lines, some 20,000 bytes, nine tenths of them for training, in windows of 16 tokens.
  const Json start = group("run", "train").back();
  const auto steps = start.at("step").get<std::int64_t>();
  EXPECT_NEAR(static_cast<double>(steps * 4 * 16), 0.12 * 0.9 * static_cast<double>(fs::file_size(path("text.txt"))),
              2 * 4 * 16 + 16);
  const std::vector<Json> tasks = group("run", "tasks");
  ASSERT_EQ(tasks.size(), static_cast<std::size_t>(steps / 15 + (steps % 15 > 0)));
  EXPECT_EQ(tasks[0].at("step"), 15);
  EXPECT_EQ(tasks.back().at("step"), steps);
  const Json now = json_of({"--task", "choices=" + path("choices.jsonl"), "words=" + path("words.jsonl")}).at("tasks");
  EXPECT_EQ(now.at("choices").at("format"), "plain");
  EXPECT_EQ(now.at("choices").at("questions"), 30);
  for (const char* metric : {"acc", "acc_norm", "acc_bytes", "acc_stderr"})
    EXPECT_EQ(now.at("choices").at(metric), tasks.back().at(std::string("choices.") + metric)) << metric;
  EXPECT_EQ(now.at("words").at("acc"), tasks.back().at("words.acc"));
  const double perplexity = tasks.back().at("words.perplexity");
  EXPECT_NEAR(now.at("words").at("perplexity").get<double>(), perplexity, 1e-5 * perplexity);

  const Finished table = eval({"--task", "choices=" + path("choices.jsonl"), "--output", path("o.json")});
  ASSERT_EQ(table.code, 0) << table.output;
  EXPECT_NE(table.output.find("acc_norm"), std::string::npos) << table.output;
  std::ifstream file(path("o.json"));
  EXPECT_EQ(Json::parse(file).at("tasks").at("choices"), now.at("choices"));
  EXPECT_NE(eval({"--task", "choices"}).output.find("--task: choices is not a task"), std::string::npos);
  const Finished over = eval({"--task", "choices=" + path("choices.jsonl"), "--output", path("choices.jsonl")});
  EXPECT_EQ(over.code, 1);
  EXPECT_NE(over.output.find("is the input"), std::string::npos) << over.output;

  // A path need not be UTF-8: the output is the same, with U+FFFD for the invalid byte.
  const std::string odd = path("caf\xe9");
  fs::rename(path("run"), odd);
  for (const bool tasks : {false, true}) {
    std::vector<std::string> command = {"eval", odd, "--device", "cpu", "--json", "--output", path("odd.json")};
    if (tasks) command.insert(command.end(), {"--task", "choices=" + path("choices.jsonl")});
    const Finished f = ring(command);
    ASSERT_EQ(f.code, 0) << f.output;
    EXPECT_NE(Json::parse(f.output).at("checkpoint").get<std::string>().find("caf\uFFFD"), std::string::npos)
        << f.output;
    std::ifstream written(path("odd.json"));
    EXPECT_EQ(Json::parse(written), Json::parse(f.output));
  }
  fs::rename(odd, path("run"));
  EXPECT_NE(eval({"--task", "a=" + path("nowhere.jsonl")}).output.find("nowhere.jsonl"), std::string::npos);
  const Finished cut = eval({"--context", "8", "--task", "choices=" + path("choices.jsonl")});
  EXPECT_NE(cut.output.find("longer than 8 tokens"), std::string::npos) << cut.output;
}

// Two layers learn recall within seconds if only four of eight values are possible: naming a value of the document is
// right once in four times, a guess once in eight.
TEST_F(EvalCommands, AccuracyOfRecallIsMeasured) {
  const auto made = ring({"data", "synthesize", "--context", "24", "--vocab-size", "24", "--pairs", "4", "--documents",
                          "4000", "--validation-documents", "100", "--output", path("recall.h5")});
  ASSERT_EQ(made.code, 0) << made.output;
  const Finished trained =
      run_process(train("run", {"data.path=" + path("recall.h5"), "data.packing={documents: true, best_fit: 1}",
                                "model.context=24", "model.positions=rope", "model.dropout=0", "train.batch_size=32",
                                "train.micro_batch=0", "train.steps=300", "train.eval_interval=100",
                                "train.log_interval=100", "optimizer.lr=5e-3", "checkpoint.interval=0"}));
  ASSERT_EQ(trained.code, 0) << trained.output;
  const std::vector<Json> validation = group("run", "validation");
  ASSERT_EQ(validation.size(), 3u);
  const double accuracy = validation.back().at("accuracy");
  EXPECT_GT(accuracy, 0.35);
  EXPECT_GT(accuracy, validation.front().at("accuracy"));
  EXPECT_LE(accuracy, 1);
  const Json now = json_of({});
  EXPECT_EQ(now.at("tokens"), 100 * 4);
  EXPECT_EQ(now.at("accuracy"), accuracy);
  EXPECT_NE(eval({}).output.find(", accuracy 0."), std::string::npos);
}

TEST_F(EvalCommands, LossIsMeasuredOnTextsSplitsAndWindows) {
  ASSERT_EQ(run_process(train("run", {"train.steps=40"})).code, 0);
  const Json validation = json_of({}), training = json_of({"--split", "train"}),
             whole = json_of({"--text", path("text.txt")});
  EXPECT_GT(training.at("tokens"), validation.at("tokens"));
  const auto size = static_cast<std::int64_t>(fs::file_size(path("text.txt")));
  EXPECT_EQ(whole.at("tokens"), size);  // all bytes and the end-of-text token, except the first byte
  const double shorter = json_of({"--context", "8", "--text", path("text.txt")}).at("loss"), now = whole.at("loss");
  EXPECT_NE(shorter, now);
  EXPECT_NEAR(shorter, now, 0.5);
  EXPECT_NE(eval({"--context", "64"}).output.find("--context"), std::string::npos) << eval({"--context", "64"}).output;
  EXPECT_NEAR(whole.at("bits_per_byte").get<double>(),
              now / std::log(2.0) * static_cast<double>(size + 1) / static_cast<double>(size), 1e-5);
  write("a.jsonl", "{\"text\": \"line 1 of a text\"}\n{\"text\": \"line 2 of a text\"}\n");
  EXPECT_EQ(json_of({"--text", path("a.jsonl")}).at("tokens"), 2 * 17 - 1);
  EXPECT_EQ(eval({"--text", path("a.jsonl"), "--split", "train"}).code, 2);  // the options contradict each other
  EXPECT_NE(eval({"--text", path("nowhere")}).code, 0);
  const Finished corpus = eval({"--text", path("a.h5")});
  EXPECT_NE(corpus.output.find("but a corpus"), std::string::npos);
  EXPECT_EQ(corpus.output.find("--as-text"), std::string::npos) << corpus.output;
  EXPECT_EQ(run_process(train("both", {"train.epochs=2"})).code, 1);  // epochs in addition to steps
}

TEST_F(EvalCommands, TextGivenAsACorpusIsRefusedWithTheRightOption) {
  const Finished run = run_process(train("run", {"train.steps=2"}));
  ASSERT_EQ(run.code, 0) << run.output;
  EXPECT_NE(run.output.find("to sample: ringmaster generate " + path("run") + " --prompt"), std::string::npos);
  const std::string text = eval({"--data", path("text.txt")}).output;
  EXPECT_NE(text.find(" --text " + path("text.txt") + "\n"), std::string::npos) << text;
  write("b.jsonl", "{\"body\": \"line 1\"}\n");
  EXPECT_NE(eval({"--data", path("b.jsonl")}).output.find("--text " + path("b.jsonl") + " --text-field body\n"),
            std::string::npos);
  write("chats.jsonl", R"({"conversations": [{"from": "human", "value": "line"}, {"from": "gpt", "value": "text"}]})");
  const std::string advice = "--text " + path("chats.jsonl") + " --chat-field --chat-template plain\n";
  EXPECT_NE(eval({"--data", path("chats.jsonl")}).output.find(advice), std::string::npos);
}

// The options work as in `data prepare`.
TEST_F(EvalCommands, ConversationsCountAsInACorpus) {
  ASSERT_EQ(run_process(train("run", {"train.steps=2"})).code, 0);
  write("chats.jsonl",
        R"({"messages": [{"role": "user", "content": "line"}, {"role": "assistant", "content": "text"}]})"
        "\n"
        R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "of words"}]})");
  const std::vector<std::string> records = {"--chat-field", "messages", "--chat-template", "plain"};
  std::vector<std::string> prepare = {"data",
                                      "prepare",
                                      "--input",
                                      path("chats.jsonl"),
                                      "--tokenizer",
                                      path("run/tokenizer.rmt"),
                                      "--output",
                                      path("chats.h5"),
                                      "--validation-fraction",
                                      "0"};
  prepare.insert(prepare.end(), records.begin(), records.end());
  ASSERT_EQ(ring(prepare).code, 0);
  const Finished corpus = eval({"--data", path("chats.h5"), "--split", "train"});
  std::vector<std::string> text = {"--text", path("chats.jsonl")};
  text.insert(text.end(), records.begin(), records.end());
  const Finished direct = eval(text);
  EXPECT_EQ(direct.code, 0) << direct.output;
  EXPECT_NE(direct.output.find("accuracy"), std::string::npos) << "only answers count: " << direct.output;
  EXPECT_EQ(direct.output, corpus.output);
  EXPECT_NE(eval({"--text", path("chats.jsonl"), "--chat-field"}).output.find("choose one with --chat-template"),
            std::string::npos);
  EXPECT_EQ(eval({"--chat-field"}).code, 2) << "it goes with --text";
}

// The weights are the same; only the run's setting differs.
TEST_F(EvalCommands, ConversationsAreSeparateWhateverTheRunsSetting) {
  ASSERT_EQ(run_process(train("run", {"train.steps=20", "model.context=64"})).code, 0);
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})";
  write("chats.jsonl", chat + "\n" + chat + "\n" + chat + "\n");
  const std::vector<std::string> chats = {"--text",   path("chats.jsonl"), "--chat-field",
                                          "messages", "--chat-template",   "plain"};
  const auto with = [](std::vector<std::string> options, const std::string& choice) {
    options.insert(options.end(), {"--separate-documents", choice});
    return options;
  };
  const Json automatic = json_of(chats), separate = json_of(with(chats, "true")),
             across = json_of(with(chats, "false"));
  EXPECT_EQ(automatic.at("separate_documents"), true) << "the run has data.packing.documents: false";
  EXPECT_EQ(automatic, separate);
  EXPECT_EQ(automatic, json_of(with(chats, "auto")));
  EXPECT_EQ(across.at("separate_documents"), false);
  EXPECT_EQ(across.at("tokens"), automatic.at("tokens"));
  EXPECT_NE(across.at("loss"), automatic.at("loss"));
  EXPECT_NE(eval(chats).output.find("attention within documents, which are cut only"), std::string::npos);

  const Json text = json_of({});  // all tokens count, as in the run's training
  EXPECT_EQ(text.at("separate_documents"), false);
  EXPECT_NEAR(text.at("loss").get<double>(), group("run", "validation").back().at("loss"), 1e-5);
  EXPECT_NE(eval({}).output.find(", attention across documents\n"), std::string::npos);
  EXPECT_EQ(eval({"--long", "--separate-documents", "true"}).code, 2) << "attention across documents is its measure";
}

// Both speeds are means over the steps since the previous line.
TEST_F(EvalCommands, TheConsoleShowsTheSpeedOfTheRecords) {
  const Finished f = run_process(train("run", {"train.steps=20", "train.log_interval=5", "train.eval_interval=0"}));
  ASSERT_EQ(f.code, 0) << f.output;
  const std::vector<Json> records = group("run", "train");
  ASSERT_EQ(records.size(), 4u);
  for (const Json& r : records) {
    const std::size_t line = f.output.find("step " + std::to_string(r.at("step").get<int>()) + "/20");
    ASSERT_NE(line, std::string::npos) << f.output;
    const std::string shown = "  " + format_count(r.at("tokens_per_second").get<double>()) + " tok/s";
    EXPECT_LT(f.output.find(shown, line), f.output.find('\n', line)) << shown << " in " << f.output;
  }
}

TEST_F(EvalCommands, TrainingWarnsThatConversationsAreCut) {
  std::string chats;
  for (int i = 0; i < 40; ++i)
    chats += str_of({{"messages",
                      {{{"role", "user"}, {"content", "line " + std::to_string(i)}},
                       {{"role", "assistant"}, {"content", "a text"}}}}});
  write("chats.jsonl", chats);
  ASSERT_EQ(ring({"data", "prepare", "--input", path("chats.jsonl"), "--chat-field", "--chat-template", "plain",
                  "--tokenizer", "bytes", "--output", path("chats.h5")})
                .code,
            0);
  const auto said = [&](const std::string& run, const std::string& best_fit) {
    return run_process(train(run, {"data.path=" + path("chats.h5"), "data.packing.documents=true",
                                   "data.packing.best_fit=" + best_fit, "model.context=64", "train.steps=1",
                                   "train.eval_interval=0"}))
        .output;
  };
  const std::string cut = said("cut", "0"), whole = said("whole", "1024");
  EXPECT_NE(cut.find("data.packing.best_fit: 0 splits "), std::string::npos) << cut;
  EXPECT_NE(cut.find("1024 would split 0"), std::string::npos) << cut;
  EXPECT_EQ(whole.find("cuts "), std::string::npos) << whole;
}

// In order, samples of 64 bytes would cut different conversations in the two files.
TEST_F(EvalCommands, ConversationsAreWholeWhateverTheirOrder) {
  ASSERT_EQ(run_process(train("run", {"train.steps=20", "model.context=64"})).code, 0);
  std::vector<std::string> chats;
  for (int i = 0; i < 12; ++i)
    chats.push_back(str_of({{"messages",
                             {{{"role", "user"}, {"content", std::string(3 + i % 5, 'q')}},
                              {{"role", "assistant"}, {"content", "line " + std::to_string(i * i)}}}}}));
  const auto loss = [&](const std::string& name, const std::vector<std::string>& more = {}) {
    std::string text;
    for (const std::string& chat : chats) text += chat;
    write(name, text);
    std::vector<std::string> options = {"--text", path(name), "--chat-field", "--chat-template", "plain"};
    options.insert(options.end(), more.begin(), more.end());
    return json_of(options);
  };
  const Json first = loss("a.jsonl"), in_order = loss("a.jsonl", {"--separate-documents", "false"});
  std::ranges::rotate(chats, chats.begin() + 5);
  std::ranges::reverse(chats);
  const Json second = loss("b.jsonl");
  EXPECT_EQ(first.at("best_fit"), 1024);
  EXPECT_EQ(in_order.at("best_fit"), 0);
  EXPECT_EQ(first.at("tokens"), second.at("tokens"));
  EXPECT_NEAR(first.at("loss").get<double>(), second.at("loss").get<double>(), 1e-6);
  EXPECT_NE(loss("b.jsonl", {"--separate-documents", "false"}).at("loss"), in_order.at("loss"));
}

TEST_F(EvalCommands, TheStepThatReplacesADamagedCheckpointIsNamed) {
  ASSERT_EQ(run_process(train("run", {"train.steps=40", "checkpoint.interval=20"})).code, 0);
  EXPECT_TRUE(json_of({}).at("checkpoint").get<std::string>().ends_with("step-000000040"));
  const fs::path shard = folder_ / "run/checkpoints/step-000000040/shard-00000.h5";
  ASSERT_TRUE(fs::exists(shard));
  fs::resize_file(shard, fs::file_size(shard) - 1);
  const auto expect_named = [](const Finished& f) {
    EXPECT_EQ(f.code, 0) << f.output;
    const std::size_t damaged = f.output.find("step 40 is damaged");
    ASSERT_NE(damaged, std::string::npos) << f.output;
    EXPECT_NE(f.output.find("step 20 instead", damaged), std::string::npos) << f.output;
  };
  expect_named(eval({"--output", path("o.json")}));
  std::ifstream file(path("o.json"));
  EXPECT_TRUE(Json::parse(file).at("checkpoint").get<std::string>().ends_with("step-000000020"));
  expect_named(ring({"generate", path("run"), "--prompt", "line", "--max-tokens", "2", "--device", "cpu"}));
}

TEST_F(EvalCommands, PromptsOfAFileEqualSinglePrompts) {
  ASSERT_EQ(run_process(train("run", {"train.steps=40"})).code, 0);
  write("prompts.txt", "line 1\n\nthat\nof a text that is longer than the context\n");
  const auto generate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", path("run"), "--max-tokens", "40", "--device", "cpu"});
    return ring(more);
  };
  const Finished all = generate(
      {"--seed", "5", "--prompts-file", path("prompts.txt"), "--batch-size", "2", "--output", path("o.jsonl")});
  ASSERT_EQ(all.code, 0) << all.output;
  EXPECT_EQ(all.output, "");
  std::ifstream file(path("o.jsonl"));
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[2].at("prompt"), "of a text that is longer than the context");
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(lines[i].at("end"), "length");
    EXPECT_EQ(lines[i].at("tokens"), 40);
    const Finished alone = generate({"--prompt", lines[i].at("prompt"), "--seed", std::to_string(5 + i), "--json"});
    EXPECT_EQ(Json::parse(alone.output, nullptr, false), lines[i]) << alone.output;
  }
  const Finished stopped = generate({"--prompt", "line", "--json", "--stop", "e", " "});
  ASSERT_EQ(stopped.code, 0) << stopped.output;
  const Json line = Json::parse(stopped.output);
  EXPECT_EQ(line.at("end"), "stop");
  EXPECT_EQ(line.at("text").get<std::string>().find_first_of("e "), std::string::npos);
  EXPECT_EQ(generate({"--prompt", "a", "--stop", ""}).code, 1);
  EXPECT_EQ(generate({"--prompts-file", path("nowhere.txt")}).code, 1);
  write("records.jsonl", "{\"prompt\":\"\"}\n{\"prompt\":\"line\"}\n");
  const Finished records = generate({"--prompts-file", path("records.jsonl")});
  EXPECT_EQ(std::ranges::count(records.output, '\n'), 2) << records.output;
  EXPECT_EQ(Json::parse(records.output.substr(0, records.output.find('\n')), nullptr, false).at("prompt"), "");
  const Finished over = generate({"--prompts-file", path("records.jsonl"), "--output", path("records.jsonl")});
  EXPECT_EQ(over.code, 1);
  EXPECT_NE(over.output.find("is the input"), std::string::npos) << over.output;
  // The end of a file's name decides its type.
  fs::create_directories(path("of.jsonl.d"));
  write("of.jsonl.d/prompts.txt", "plain\n");
  EXPECT_EQ(generate({"--prompts-file", path("of.jsonl.d/prompts.txt")}).code, 0);
}

TEST_F(EvalCommands, GenerateStoresItsKvCacheInFp8) {
  const auto generate = [&](const std::string& run, const std::string& type) {
    return ring({"generate", path(run), "--prompt", "line 1", "--max-tokens", "40", "--temperature", "0", "--device",
                 "cpu", "--json", "--kv-cache", type});
  };
  ASSERT_EQ(run_process(train("run", {"train.steps=40"})).code, 0);
  const Finished fp8 = generate("run", "fp8");
  ASSERT_EQ(fp8.code, 0) << fp8.output;
  EXPECT_EQ(Json::parse(fp8.output, nullptr, false).at("tokens"), 40) << fp8.output;
  ASSERT_EQ(run_process(train("pools", {"train.steps=1", "model.attention.kind=window", "model.attention.window=4",
                                        "model.attention.pools=[4]"}))
                .code,
            0);
  EXPECT_EQ(generate("pools", "auto").code, 0);
  const Finished refused = generate("pools", "fp8");
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.output.find("Use --kv-cache auto"), std::string::npos) << refused.output;
  // The cache of a text is refused, too, which shows that it would have the type.
  Session s = open_session(path("pools"), {.threads = 1, .device = DeviceChoice::cpu});
  const auto expect_refused = [](const auto& f) {
    const std::string error = error_of(f);
    EXPECT_NE(error.find("a KV cache in FP8 is not possible"), std::string::npos) << error;
  };
  const std::vector<TextStart> texts{{{1, 2}, resolve_sampling(s, {})}};
  const auto all = [](std::size_t, const auto&) { return true; };
  EXPECT_EQ(generate_texts(s, texts, 2, {.ignore_end_of_text = true}, all).at(0).tokens(), 2);
  s.kv_cache = KvCacheType::fp8;
  expect_refused([&] { generate_texts(s, texts, 2, {}, all); });
  expect_refused([&] { generate_together(*s.model, s.ctx, texts, 2, all, KvCacheType::fp8); });
}

// The end of a line from Windows is not part of the message: the conversation has the same number of tokens.
TEST_F(EvalCommands, OutputsDoNotReplaceFilesOfARun) {
  const Finished trained = run_process(train("run", {"train.steps=2", "train.eval_interval=0"}));
  ASSERT_EQ(trained.code, 0) << trained.output;
  std::string checkpoint;
  for (const auto& file : fs::recursive_directory_iterator(folder_ / "run/checkpoints"))
    if (file.is_regular_file()) checkpoint = file.path().string();
  ASSERT_FALSE(checkpoint.empty());
  fs::create_symlink(path("run/log.txt"), path("link"));
  write("text.txt", "a text\n");
  const std::vector<std::vector<std::string>> commands{
      {"eval", path("run"), "--device", "cpu"},
      {"generate", path("run"), "--device", "cpu", "--prompt", "a"},
      {"metrics", "export", path("run")},
      {"report", path("run")},
      {"data", "prepare", "--force", "--input", path("text.txt"), "--tokenizer", "bytes"},
      {"data", "synthesize", "--force"},
      {"tokenizer", "train", "--force", "--input", path("text.txt"), "--kind", "chars"},
  };
  for (const std::vector<std::string>& command : commands)
    for (const std::string& file : {path("run/config.yaml"), path("run/metrics.jsonl"), checkpoint, path("link")}) {
      const std::string before = read_file(file);
      std::vector<std::string> all = command;
      all.insert(all.end(), {"--output", file});
      const Finished over = ring(all);
      EXPECT_EQ(over.code, 1) << command[0] << " " << file << ": " << over.output;
      EXPECT_TRUE(over.output.find("file of the run") != std::string::npos ||
                  over.output.find("is the input") != std::string::npos)
          << command[0] << " " << file << ": " << over.output;
      EXPECT_EQ(read_file(file), before);
    }
  const std::string metrics = read_file(path("run/metrics.jsonl"));
  const Finished picture = ring({"attention", "show", path("run"), "--svg", path("run/metrics.jsonl")});
  EXPECT_EQ(picture.code, 1);
  EXPECT_NE(picture.output.find("is a file of the run"), std::string::npos) << picture.output;
  EXPECT_EQ(read_file(path("run/metrics.jsonl")), metrics);
  write("run/notes.json", "{}");  // a user's file in the run's folder may be replaced
  EXPECT_EQ(
      ring({"generate", path("run"), "--device", "cpu", "--prompt", "a", "--output", path("run/notes.json")}).code, 0);
}

TEST_F(EvalCommands, LinesOfAChatMayEndAsOnOtherSystems) {
  ASSERT_EQ(run_process(train("run", {"train.steps=1", "train.eval_interval=0"})).code, 0);
  const auto refusal = [&](const std::string& line) {
    std::ofstream(folder_ / "lines") << line;
    const Finished f = run_process({"/bin/sh", "-c", "\"$0\" generate \"$1\" --chat --chat-template plain < \"$2\"",
                                    ring_binary(), path("run"), path("lines")});
    EXPECT_NE(f.output.find("the conversation has "), std::string::npos) << f.output;
    return f.output;
  };
  EXPECT_EQ(refusal("a line beyond the context\r\n"), refusal("a line beyond the context\n"));
  EXPECT_EQ(refusal("\xEF\xBB\xBF"
                    "a line beyond the context\n"),
            refusal("a line beyond the context\n"));
  const Finished folder =
      run_process({"/bin/sh", "-c", "\"$0\" generate \"$1\" --device cpu --chat --chat-template plain < /",
                   ring_binary(), path("run")});
  EXPECT_EQ(folder.code, 1);
  EXPECT_NE(folder.output.find("standard input: Is a directory"), std::string::npos) << folder.output;
}

TEST_F(EvalCommands, AMissingFolderForTemporaryFilesIsNamed) {
  const Finished trained = run_process(train("run", {"train.steps=2", "train.eval_interval=0"}));
  ASSERT_EQ(trained.code, 0) << trained.output;
  write("text.txt", "a text\n");
  const Finished f = run_process({"/usr/bin/env", "TMPDIR=/does/not/exist", ring_binary(), "eval", path("run"),
                                  "--device", "cpu", "--text", path("text.txt")});
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.output.find("TMPDIR: /does/not/exist: "), std::string::npos) << f.output;
}

}  // namespace
}  // namespace ring::test
