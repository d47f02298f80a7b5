// Command lines that are accepted or refused. No command is run.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "cli/command_line.h"
#include "cli/log_level.h"
#include "core/check.h"
#include "core/joined.h"
#include "core/log.h"

namespace ring {
namespace {

using Words = std::vector<std::string>;

struct NumericOption {
  Option option;
  Words before;  // words of a command line before the number
  bool whole;
};

std::vector<NumericOption> numeric_options(Command command, const Words& path = {}) {
  std::vector<NumericOption> found;
  Words before = path;
  before.push_back("--");
  for (Option option : command.options()) {
    const std::string type = option.type_text();
    const bool whole = type.starts_with("INT") || type.starts_with("UINT");
    Words words = path;
    words.push_back(option.name());
    if (whole || type.starts_with("FLOAT")) found.push_back({option, option.is_positional() ? before : words, whole});
    if (option.is_positional()) before.push_back("word");
  }
  for (const std::string& name : command.command_names()) {
    Words words = path;
    words.push_back(name);
    const std::vector<NumericOption> inner = numeric_options(command.find_command(name), words);
    found.insert(found.end(), inner.begin(), inner.end());
  }
  return found;
}

class CommandLine : public testing::Test {
 protected:
  CommandLine() {
    add_commands(app_);
    app_.disable_callbacks();
  }
  std::string error_for(const std::vector<std::string>& arguments) {
    try {
      parse_arguments(app_, arguments);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  Program app_{"ringmaster", ""};
};

// Returns the range "[a, b]" that --help shows.
std::pair<long double, long double> range_of(Option option) {
  const std::string text = option.type_text();
  const std::size_t open = text.find('[');
  char* end = nullptr;
  const long double least = std::strtold(text.c_str() + open + 1, &end);
  return {least, std::strtold(end + 1, nullptr)};
}

TEST_F(CommandLine, EveryNumberIsRefusedOrExact) {
  const std::vector<NumericOption> options = numeric_options(app_);
  EXPECT_GT(options.size(), 50u);
  for (const NumericOption& o : options) {
    const std::string name = o.option.name();
    SCOPED_TRACE(joined(o.before, " "));
    const auto [least, most] = range_of(o.option);
    EXPECT_LE(least, most);
    for (const std::string text : {"0",
                                   "-0",
                                   "1",
                                   "-1",
                                   "2147483647",
                                   "2147483648",
                                   "4294967295",
                                   "4294967296",
                                   "4294967297",
                                   "-4294967295",
                                   "9007199254740993",
                                   "9223372036854775807",
                                   "9223372036854775808",
                                   "-9223372036854775809",
                                   "18446744073709551615",
                                   "18446744073709551617",
                                   "1e30",
                                   "1e308",
                                   "1e999",
                                   "5e-324",
                                   "1e3",
                                   "010",
                                   "0.5",
                                   "nan",
                                   ".nan",
                                   "inf",
                                   ".inf",
                                   "-inf",
                                   "0x10",
                                   "1'000",
                                   "",
                                   " 5",
                                   "five",
                                   "5x"}) {
      Words words = o.before;
      words.push_back(text);
      const bool accepted = !error_for(words).starts_with(name + ": ");
      char* end = nullptr;
      const long double value = std::strtold(text.c_str(), &end);
      const bool apart = name == "ids" && text.starts_with(' ');  // several numbers may come in one word
      const bool number = !text.empty() && std::string("0123456789-").find(text[apart]) != std::string::npos &&
                          *end == 0 && text != "0x10" && std::isfinite(static_cast<double>(value));
      const bool fits = number && value >= least && value <= most && (!o.whole || value == std::floor(value));
      EXPECT_EQ(accepted, fits) << text;
      if (!accepted || !fits) continue;
      const std::string read = o.option.values().front();
      if (o.whole)
        EXPECT_EQ(static_cast<long double>(std::stoll(read)), value) << text;
      else
        EXPECT_EQ(std::strtod(read.c_str(), nullptr), static_cast<double>(value)) << text;
    }
  }
}

TEST_F(CommandLine, BadNumbersAreRefusedWithTheirRange) {
  EXPECT_EQ(error_for({"generate", "r", "--max-tokens", "-1"}), "--max-tokens: must be in [0, 2147483647], is -1");
  EXPECT_EQ(error_for({"generate", "r", "--seed", "99999999999999999999"}),
            "--seed: expected a 64-bit integer, got 99999999999999999999");
  EXPECT_EQ(error_for({"serve", "r", "--context", "-1"}), "--context: must be in [0, 1073741824], is -1");
  EXPECT_EQ(error_for({"generate", "r", "--temperature", "nan"}), "--temperature: expected a number, got nan");
  EXPECT_EQ(error_for({"eval", "r", "--long", "--lengths", "16,1e2"}), "");
  EXPECT_EQ(error_for({"eval", "r", "--long", "--lengths", "16,0"}), "--lengths: must be in [1, 1073741824], is 0");
}

TEST_F(CommandLine, RangesAreReadable) {
  for (const NumericOption& o : numeric_options(app_)) {
    const std::string type = o.option.type_text(), range = type.substr(type.find(':') + 1);
    EXPECT_LE(range.size(), 50u) << joined(o.before, " ") << " " << range;
  }
}

TEST_F(CommandLine, AnUnknownCommandNamesTheNearest) {
  EXPECT_EQ(error_for({"trian", "x.yaml"}), "unknown command 'trian'; did you mean train?");
  EXPECT_EQ(error_for({"evaluate", "x"}), "unknown command 'evaluate'; did you mean eval?");
  EXPECT_EQ(error_for({"prepare", "x"}), "unknown command 'prepare'; did you mean data prepare?");
  EXPECT_EQ(error_for({"synthesize", "x"}), "unknown command 'synthesize'; did you mean data synthesize?");
  EXPECT_EQ(error_for({"verify", "x"}), "unknown command 'verify'; did you mean data verify or checkpoint verify?");
  EXPECT_EQ(error_for({"bench", "stp", "x.yaml"}), "bench: unknown command 'stp'; did you mean step?");
  EXPECT_EQ(error_for({"resume", "runs/x"}),
            "unknown command 'resume'; did you mean train? A run that has a checkpoint resumes: ringmaster train RUN");
  EXPECT_EQ(error_for({"sample", "runs/x"}), "unknown command 'sample'; did you mean generate?");
  EXPECT_EQ(error_for({"version"}), "unknown command 'version'; did you mean --version?");
  EXPECT_EQ(error_for({"bench", "version"}),
            "bench: unknown command 'version'; available: step, ops, floor, products, attention, "
            "blocks, context, calibrate, links");
  EXPECT_TRUE(
      error_for({"estimate", "x.yaml"}).starts_with("unknown command 'estimate'; available: init, tokenizer, data, "))
      << error_for({"estimate", "x.yaml"});
  EXPECT_EQ(error_for({"config"}), "config: expected one of its commands: show, docs");
}

TEST_F(CommandLine, ACommandMayHaveArgumentsAndSubcommands) {
  EXPECT_EQ(error_for({"runs"}), "");
  EXPECT_EQ(error_for({"runs", "folder", "--sort", "loss", "--json"}), "");
  EXPECT_EQ(error_for({"runs", "--sort", "loss", "folder"}), "");
  EXPECT_EQ(error_for({"runs", "compare", "a", "b", "c"}), "");
  EXPECT_NE(error_for({"runs", "compare", "a"}), "");
  EXPECT_NE(error_for({"runs", "--sort", "beauty"}), "");
  EXPECT_EQ(error_for({"runs", "--jsn"}), "runs: unknown option --jsn; did you mean --json?");
  EXPECT_EQ(error_for({"serve", "runs/x", "--port", "8000"}),
            "serve: unknown option --port; did you mean --listen? It takes a port, or HOST:PORT.");
  EXPECT_EQ(error_for({"generate", "runs/x", "--max-new-tokens", "8"}),
            "generate: unknown option --max-new-tokens; did you mean --max-tokens?");
  EXPECT_EQ(error_for({"metrics"}), "metrics: expected one of its commands: export");
  EXPECT_EQ(error_for({"metrics", "export", "a", "b", "--format", "csv", "--output", "m.csv"}), "");
  EXPECT_NE(error_for({"metrics", "export", "a", "--format", "xml"}), "");
  EXPECT_EQ(error_for({"report", "a", "b", "--output", "r.html", "--peak-tflops", "500"}), "");
  EXPECT_EQ(error_for({"report", "a", "--sample", "The ", "--sample-tokens", "40", "--threads", "2"}), "");
  EXPECT_NE(error_for({"report", "a", "--sample-tokens", "0"}), "");
  EXPECT_NE(error_for({"report"}), "");
}

TEST_F(CommandLine, CommandsForRunsAreAccepted) {
  EXPECT_EQ(error_for({"sweep", "s.yaml", "--parallel", "2", "--dry-run"}), "");
  EXPECT_EQ(error_for({"sweep", "s.yaml", "--gpus", "0,1"}), "");
  EXPECT_NE(error_for({"sweep", "s.yaml", "--gpus", "0,1", "--parallel", "2"}), "");
  EXPECT_NE(error_for({"sweep"}), "");
  EXPECT_EQ(error_for({"watch", "run", "--interval", "5"}), "");
  EXPECT_EQ(error_for({"launch", "-n", "2", "--dashboard", "0", "--dashboard-token-file", "t", "--", "train", "x"}),
            "");
  EXPECT_EQ(error_for({"serve", "run", "--listen", "0.0.0.0:80", "--token-file", "t", "--name", "m", "--max-tokens",
                       "9", "--threads", "2", "--device", "cpu"}),
            "");
  EXPECT_EQ(error_for({"serve", "run", "--chat-template", "chatml"}), "");
  EXPECT_NE(error_for({"serve"}), "");
  EXPECT_NE(error_for({"serve", "run", "--max-tokens", "0"}), "");
  EXPECT_NE(error_for({"serve", "run", "--device", "tpu"}), "");
}

TEST_F(CommandLine, WeightsAreLatestOrEma) {
  for (const char* command : {"eval", "generate", "serve"})
    for (const char* weights : {"latest", "ema"}) EXPECT_EQ(error_for({command, "run", "--weights", weights}), "");
  EXPECT_EQ(error_for({"export", "run", "--output", "out", "--weights", "ema"}), "");
  EXPECT_NE(error_for({"eval", "run", "--weights", "both"}), "");
  EXPECT_NE(error_for({"eval", "run", "--weights"}), "");
}

TEST_F(CommandLine, KvCachesAreOfTheComputedTypeOrFp8) {
  for (const char* command : {"generate", "serve"}) {
    for (const char* type : {"auto", "fp8"}) EXPECT_EQ(error_for({command, "run", "--kv-cache", type}), "");
    EXPECT_NE(error_for({command, "run", "--kv-cache", "int8"}), "");
  }
}

TEST_F(CommandLine, ChatOptionsBelongToChats) {
  EXPECT_EQ(error_for({"generate", "r", "--chat"}), "");
  EXPECT_EQ(error_for({"generate", "r", "--chat", "--prompt", "Hi", "--system", "Be brief.", "--chat-template",
                       "chatml", "--stop", "."}),
            "");
  EXPECT_NE(error_for({"generate", "r", "--system", "Be brief."}), "");
  EXPECT_NE(error_for({"generate", "r", "--chat-template", "chatml"}), "");
  for (const char* other : {"--json", "--ignore-end", "--prompts-file=f", "--output=f"})
    EXPECT_NE(error_for({"generate", "r", "--chat", other}), "") << other;
}

TEST_F(CommandLine, AnUnknownOptionNamesTheNearest) {
  EXPECT_EQ(error_for({"train", "--hlep"}), "train: unknown option --hlep; did you mean --help?");
  EXPECT_EQ(error_for({"train", "x.yaml", "--fersh"}), "train: unknown option --fersh; did you mean --fresh?");
  EXPECT_EQ(error_for({"generate", "r", "--max_tokens=3"}),
            "generate: unknown option --max_tokens; did you mean --max-tokens?");
  EXPECT_EQ(error_for({"launch", "--thread", "2", "-n", "2", "--", "train", "t.yaml"}),
            "launch: unknown option --thread; did you mean --threads-per-worker?");
  for (const char* version : {"-v", "-V"})
    EXPECT_EQ(error_for({version}), str("unknown option ", version, "; did you mean --version?"));
  EXPECT_EQ(error_for({"--hepl"}), "unknown option --hepl; did you mean --help?");
  EXPECT_EQ(error_for({"doctor", "--zzzzzz"}), "doctor: unknown option --zzzzzz");
  EXPECT_EQ(error_for({"train", "x.yaml", "--learning-rate", "1e-3"}),
            "train: unknown option --learning-rate; did you mean optimizer.lr? (settings are written KEY=VALUE)");
  EXPECT_EQ(error_for({"generate", "r", "-p", "hi"}), "generate: unknown option -p; did you mean --prompt?");
  EXPECT_EQ(error_for({"generate", "r", "-q"}), "generate: unknown option -q");
  EXPECT_EQ(error_for({"train", "x.yaml", "--seed=3"}),
            "train: unknown option --seed; did you mean run.seed? (settings are written KEY=VALUE)");
}

TEST_F(CommandLine, AnUnexpectedArgumentIsRefused) {
  EXPECT_EQ(error_for({"generate", "runs/t", "hello", "you"}),
            "generate: unexpected argument 'hello you'; did you mean --prompt \"hello you\"?");
  EXPECT_EQ(error_for({"report", "--output", "a", "b", "--zz"}), "report: unknown option --zz");
  EXPECT_EQ(error_for({"config", "docs", "x"}), "config docs: unexpected argument 'x'");
  EXPECT_EQ(error_for({"tokenizer", "train", "-o", "x"}), "tokenizer train: unknown option -o; did you mean --output?");
}

TEST_F(CommandLine, SettingsMayHaveDashes) {
  const auto overrides = [&](const std::vector<std::string>& arguments) {
    EXPECT_EQ(error_for(arguments), "");
    return app_.find_command("train").find_option("overrides").values();
  };
  EXPECT_EQ(overrides({"train", "x.yaml", "--optimizer.lr=1e-3", "--fresh", "train.steps=2"}),
            (Words{"optimizer.lr=1e-3", "train.steps=2"}));
  EXPECT_EQ(error_for({"config", "show", "x.yaml", "--model.layers=2"}), "");
  EXPECT_EQ(error_for({"eval", "r", "--model.layers=2"}), "eval: unknown option --model.layers");
}

// A word that looks like an option may be the value of an option, or come after --.
TEST_F(CommandLine, ValuesMayLookLikeOptions) {
  EXPECT_EQ(error_for({"generate", "r", "--prompt", "--a.b=c"}), "");
  EXPECT_EQ(app_.find_command("generate").find_option("--prompt").values(), Words{"--a.b=c"});
  EXPECT_EQ(error_for({"tokenizer", "encode", "bytes", "--", "--what"}), "");
  EXPECT_EQ(error_for({"generate", "r", "--temperature", "-1"}), "--temperature: must be in [0, 100], is -1");
}

TEST_F(CommandLine, HelpIsShownForACommand) {
  const auto help = [&](const std::vector<std::string>& arguments) {
    try {
      parse_arguments(app_, arguments);
    } catch (const HelpAsked& e) {
      return e.text;
    }
    return std::string();
  };
  EXPECT_NE(help({"help"}).find("Usage: ringmaster [OPTIONS] [SUBCOMMAND]"), std::string::npos) << help({"help"});
  EXPECT_EQ(help({"help"}), help({"--help"}));
  EXPECT_NE(help({"help", "train"}).find("Usage: ringmaster train "), std::string::npos) << help({"help", "train"});
  EXPECT_NE(help({"help", "bench", "step"}).find("Usage: ringmaster bench step "), std::string::npos);
  EXPECT_EQ(error_for({"help", "trian"}), "unknown command 'trian'; did you mean train?");
}

TEST_F(CommandLine, TokenizersAreNamedTheSameWay) {
  for (const char* command : {"encode", "decode", "inspect"}) {
    EXPECT_EQ(error_for({"tokenizer", command, "tok.rmt"}), "") << command;
    EXPECT_EQ(error_for({"tokenizer", command}), "tokenizer is required") << command;
  }
}

TEST_F(CommandLine, AllMissingArgumentsAreNamed) {
  EXPECT_EQ(error_for({"data", "prepare"}), "--input, --tokenizer and --output are required");
  EXPECT_EQ(error_for({"data", "prepare", "--output", "x.h5", "--tokenizer", "bytes"}), "--input is required");
  EXPECT_EQ(error_for({"export", "--dtype", "bf16"}), "run and --output are required");
  EXPECT_EQ(error_for({"checkpoint", "reshard"}), "path, --output and --ranks are required");
}

TEST_F(CommandLine, SizesHaveUnits) {
  const auto size = [&](const std::string& text) {
    return error_for({"tokenizer", "train", "--input", "a", "--output", "b", "--max-train-bytes", text});
  };
  const auto bytes = [&] {
    const Option option = app_.find_command("tokenizer").find_command("train").find_option("--max-train-bytes");
    return std::stoull(option.values().front());
  };
  EXPECT_EQ(size("50MB"), "");
  EXPECT_EQ(bytes(), 50'000'000u);
  EXPECT_EQ(size("3 GiB"), "");
  EXPECT_EQ(bytes(), std::uint64_t{3} << 30);
  EXPECT_EQ(size("9007199254740992"), "");
  EXPECT_EQ(bytes(), std::uint64_t{1} << 53);
  EXPECT_EQ(size("1.5GB"), "");
  EXPECT_EQ(bytes(), 1'500'000'000u);
  for (const char* bad : {"9007199254740993", "9e9TB", "-5MB", "5XB", "MB", "", "0", "1.5", "99999999999999999999"})
    EXPECT_NE(size(bad), "") << bad;
}

TEST_F(CommandLine, ASmallSizeWithoutAUnitIsRefusedWithASuggestion) {
  const auto memory = [&](const std::string& text) { return error_for({"plan", "t.yaml", "--memory", text}); };
  EXPECT_TRUE(memory("80").ends_with("is 80; did you mean 80GB?")) << memory("80");
  EXPECT_EQ(memory("2000000"), "");
  EXPECT_TRUE(memory("80B").ends_with(" bytes, is 80B")) << memory("80B");
  EXPECT_TRUE(memory("0").ends_with(" bytes, is 0")) << memory("0");
}

TEST_F(CommandLine, CommandsThatLogAcceptALevel) {
  for (const std::string level : {"debug", "info", "warn", "error"}) {
    EXPECT_EQ(error_for({"train", "x.yaml", "--log-level", level}), "");
    EXPECT_EQ(error_for({"launch", "-n", "2", "--log-level=" + level, "--", "train", "x.yaml"}), "");
  }
  EXPECT_NE(error_for({"train", "x.yaml", "--log-level", "loud"}).find("debug"), std::string::npos);
  log::set_level(log::Level::info);
}

TEST(LogLevel, WorkersGetTheLevelOfTheLauncherUnlessTheySetTheirOwn) {
  const auto passed = [](const std::string& level, Words command) {
    add_log_level_arguments(level, command);
    return command;
  };
  EXPECT_EQ(passed("warn", {"train", "x.yaml"}), (Words{"train", "--log-level=warn", "x.yaml"}));
  EXPECT_EQ(passed("warn", {"bench", "step", "x.yaml"}), (Words{"bench", "step", "--log-level=warn", "x.yaml"}));
  EXPECT_EQ(passed("warn", {"train", "x.yaml", "--log-level", "debug"}),
            (Words{"train", "x.yaml", "--log-level", "debug"}));
  EXPECT_EQ(passed("", {"train", "x.yaml"}), (Words{"train", "x.yaml"}));
}

// The options before the command are spelled in every way.
TEST_F(CommandLine, LaunchFindsTheCommandWithoutASeparator) {
  const Command launch = app_.find_command("launch");
  for (const Words& before : {Words{"-n", "2"}, Words{"-n2"}, Words{"--nproc-per-node=2"}, Words{"--nproc_per_node=2"},
                              Words{"--nproc-per-node", "2"}, Words{"-n2", "--standalone"},
                              Words{"--log-dir", "train", "-n2"}, Words{"--log-dir=train", "-n", "2"}}) {
    Words words = {"launch"};
    words.insert(words.end(), before.begin(), before.end());
    words.insert(words.end(), {"train", "x.yaml", "--preflight"});
    EXPECT_EQ(error_for(words), "") << joined(words, " ");
    EXPECT_EQ(launch.find_option("--nproc-per-node").values(), Words{"2"}) << joined(words, " ");
    EXPECT_EQ(launch.find_option("command").values(), (Words{"train", "x.yaml", "--preflight"})) << joined(words, " ");
  }
  EXPECT_EQ(error_for({"launch", "-n2", "--", "train", "x.yaml", "--preflight"}), "");
  EXPECT_EQ(error_for({"launch", "-n2", "train", "x.yaml", "--prefligth"}), "");  // the worker refuses it
}

TEST_F(CommandLine, CommandsAreNotRun) {
  EXPECT_EQ(error_for({"train", "/no/such/file.yaml"}), "");
  EXPECT_EQ(error_for({"launch", "-n", "4", "train", "x.yaml"}), "");
}

}  // namespace
}  // namespace ring
