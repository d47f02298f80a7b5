// Runs every command with closed, full and broken standard streams: files get no output of a stream, and the exit code
// tells whether the result was delivered.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/gloo/gloo.h"
#include "tests/paths.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

enum class Output { file, closed, full, broken };  // broken: a pipe whose reader has closed it

struct Streams {
  const char* name;
  Output in = Output::file, out = Output::file, err = Output::file;
};

constexpr Streams kStreams[] = {
    {.name = "stdin closed", .in = Output::closed},
    {.name = "stdout closed", .out = Output::closed},
    {.name = "stdout full", .out = Output::full},
    {.name = "stderr closed", .err = Output::closed},
    {.name = "stderr full", .err = Output::full},
    {.name = "stdout broken", .out = Output::broken},
    {.name = "stderr broken", .err = Output::broken},
    {.name = "all closed", .in = Output::closed, .out = Output::closed, .err = Output::closed}};

const char* reason(Output s) {
  return s == Output::closed ? "Bad file descriptor" : s == Output::full ? "No space left on device" : "Broken pipe";
}

std::string read_file(const fs::path& p) {
  std::ostringstream out;
  out << std::ifstream(p).rdbuf();
  return out.str();
}

// Runs in the child process.
void set_stream(int fd, Output s, const char* file) {
  close(fd);
  if (s == Output::file) dup2(open(file, fd == 0 ? O_RDONLY : O_WRONLY | O_CREAT | O_TRUNC, 0600), fd);
  if (s == Output::full) dup2(open("/dev/full", O_WRONLY), fd);
  if (s == Output::broken) {
    int ends[2];
    if (pipe(ends) != 0) _exit(119);
    const int write_end = fcntl(ends[1], F_DUPFD, 64);
    close(ends[0]), close(ends[1]);
    dup2(write_end, fd), close(write_end);
  }
  if (s == Output::closed) close(fd);
}

struct Limits {
  rlim_t file_bytes = RLIM_INFINITY;
};

// Runs a command in `folder`. Returns its exit code, or -signal. Its output is in FOLDER.out and FOLDER.err.
int run(const fs::path& folder, const Words& arguments, const Streams& streams = {.name = "plain"},
        const Limits& limits = {}) {
  const std::string out = folder.string() + ".out", err = folder.string() + ".err", in = folder.string() + ".in";
  std::ofstream(in) << "17 4 12\n";
  const pid_t pid = fork();
  if (pid == 0) {
    if (chdir(folder.c_str()) != 0) _exit(120);
    signal(SIGPIPE, SIG_DFL);
    const rlimit cap{limits.file_bytes, limits.file_bytes};
    setrlimit(RLIMIT_FSIZE, &cap);
    for (int fd = 3; fd < 64; ++fd) close(fd);
    std::vector<char*> argv = {const_cast<char*>("ringmaster")};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    set_stream(2, streams.err, err.c_str());  // the lowest number last: if closed, it stays the lowest free number
    set_stream(1, streams.out, out.c_str());
    set_stream(0, streams.in, in.c_str());
    execv(test::ring_binary().c_str(), argv.data());
    _exit(121);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

constexpr const char* kConfig = R"(
run: {name: t, device: cpu, threads: 1}
model: {context: 16, layers: 1, width: 32, heads: 2}
data: {path: corpus.h5}
train: {batch_size: 2, steps: 4, log_interval: 1, eval_interval: 2}
)";

struct Command {
  const char* name;
  Words arguments;
  bool says_result = true;  // false if standard output is only progress, which may be lost
  bool reads_input = false;
};
void PrintTo(const Command& c, std::ostream* out) { *out << c.name; }

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {"prepare", {"data", "prepare", "--input", "text.txt", "--tokenizer", "bytes", "--output", "new.h5"}},
      {"train", {"train", "t.yaml", "run.name=new"}, false},
      {"resume", {"train", "runs/t", "train.steps=6", "--allow-changes"}, false},
      {"launch", {"launch", "-n", "2", "--", "train", "t.yaml", "run.name=new"}, false},
      {"launch_logs", {"launch", "-n", "2", "--log-dir", "logs", "--", "train", "t.yaml", "run.name=new"}, false},
      {"tokenizer_train", {"tokenizer", "train", "--kind", "chars", "--input", "text.txt", "--output", "new.rmt"}},
      {"encode", {"tokenizer", "encode", "chars.rmt"}, true, true},
      {"encode_words", {"tokenizer", "encode", "chars.rmt", "line"}},
      {"decode", {"tokenizer", "decode", "chars.rmt"}, true, true},
      {"tokenizer_inspect", {"tokenizer", "inspect", "chars.rmt"}},
      {"data_inspect", {"data", "inspect", "corpus.h5"}},
      {"data_export", {"data", "export", "corpus.h5", "--output", "new"}},
      {"config_show", {"config", "show", "t.yaml"}},
      {"config_docs", {"config", "docs"}},
      {"eval", {"eval", "runs/t", "--threads", "1"}},
      {"eval_json", {"eval", "runs/t", "--threads", "1", "--json"}},
      {"generate", {"generate", "runs/t", "--prompt", "line", "--max-tokens", "8", "--threads", "1"}},
      {"checkpoint_inspect", {"checkpoint", "inspect", "runs/t"}},
      {"checkpoint_verify", {"checkpoint", "verify", "runs/t"}},
      {"bench_step",
       {"bench", "step", "t.yaml", "model.vocab_size=257", "--steps", "1", "--warmup", "0", "--no-ceilings"}},
      {"attention_show", {"attention", "show", "t.yaml"}},
      {"doctor", {"doctor"}},
      {"version", {"--version"}},
      {"help", {"train", "--help"}},
  };
  return all;
}

// Returns whether every run writes the same bytes; other files contain times.
bool repeats(const fs::path& file) {
  const std::string name = file.filename().string();
  return name != "log.txt" && name != "metrics.jsonl" && name != "lock" && name.find("events.out") != 0 &&
         name != "manifest.json" && name != "memory.json" &&  // memory that was free
         file.extension() != ".log" && file.parent_path().filename() != "writers";
}

void expect_dated_lines(const fs::path& file) {
  std::istringstream lines(read_file(file));
  for (std::string line; std::getline(lines, line);)
    EXPECT_TRUE(line.empty() || std::isdigit(line[0]) || line[0] == ' ' || line[0] == '\t') << file << ": " << line;
}

void expect_records(const fs::path& file) {
  std::istringstream lines(read_file(file));
  for (std::string line; std::getline(lines, line);) EXPECT_TRUE(nlohmann::json::accept(line)) << file << ": " << line;
}

// Returns the contents of all files by path. For files that differ between runs, checks their form and returns "".
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::string name = fs::relative(entry.path(), folder).string();
    const std::size_t events = name.find("events.out");
    if (events != std::string::npos) name.resize(events + 10);  // its name contains a time and a process
    if (entry.path().filename() == "log.txt") expect_dated_lines(entry.path());
    if (entry.path().filename() == "metrics.jsonl") expect_records(entry.path());
    all[name] = repeats(entry.path()) ? read_file(entry.path()) : "";
  }
  return all;
}

class StreamsFolder : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string pattern = (fs::temp_directory_path() / "ring_streams_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    fs::create_directory(root_ / "base");
    std::ofstream text(root_ / "base/text.txt");
    for (int i = 0; i < 400; ++i) text << "line " << i * i % 97 << " of a text for training\n";
    for (char c = '\x80'; c <= '\xbf'; ++c)
      text << "\xd0" << c << "\xd1" << c << "\xd2" << c << "\xd3" << c;  // Cyrillic
    text.close();
    std::ofstream(root_ / "base/t.yaml") << kConfig;
    const fs::path base = root_ / "base";
    ASSERT_EQ(run(base, {"data", "prepare", "--input", "text.txt", "--tokenizer", "bytes", "--validation-fraction",
                         "0.1", "--output", "corpus.h5"}),
              0)
        << read_file(base.string() + ".err");
    ASSERT_EQ(run(base, {"tokenizer", "train", "--kind", "chars", "--input", "text.txt", "--output", "chars.rmt"}), 0)
        << read_file(base.string() + ".err");
    ASSERT_EQ(run(base, {"train", "t.yaml"}), 0) << read_file(base.string() + ".err");
  }
  static void TearDownTestSuite() { fs::remove_all(root_); }

  // Copies the folder that all commands start from.
  static fs::path copy_base(const std::string& name) {
    const fs::path folder = root_ / name;
    fs::remove_all(folder);
    fs::copy(root_ / "base", folder, fs::copy_options::recursive);
    return folder;
  }
  static std::string err(const fs::path& folder) { return read_file(folder.string() + ".err"); }

  static fs::path root_;
};
fs::path StreamsFolder::root_;

class SlowStreams : public StreamsFolder, public testing::WithParamInterface<Command> {};

// Returns half of the cases, in turns between commands that are neighbours in the list, and the case of all streams at
// once. Half of the commands meet each case, and each command has outputs that fail in one or two ways.
std::vector<Streams> streams_for(const Command& c) {
  const auto same = [&](const Command& other) { return std::string(other.name) == c.name; };
  const auto number = static_cast<std::size_t>(std::ranges::find_if(commands(), same) - commands().begin());
  std::vector<Streams> some = {kStreams[std::size(kStreams) - 1]};
  for (std::size_t i = number % 2; i + 1 < std::size(kStreams); i += 2) some.push_back(kStreams[i]);
  return some;
}

int expected_code(const Command& c, const Streams& s, int plain) {
  if (c.says_result && s.out != Output::file) return 1;
  if (c.reads_input && s.in == Output::closed) return 1;
  return plain;
}

TEST_P(SlowStreams, FilesAreUnchangedAndLostOutputIsReported) {
  const Command& c = GetParam();
  if (c.arguments[0] == "launch" && !gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const fs::path folder = copy_base("plain");
  const int plain = run(folder, c.arguments);
  EXPECT_GE(plain, 0);
  if (std::string(c.name) != "doctor") {
    EXPECT_EQ(plain, 0) << err(folder);
  }
  const std::map<std::string, std::string> wanted = contents(folder);
  for (const Streams& s : streams_for(c)) {
    SCOPED_TRACE(s.name);
    const fs::path other = copy_base("other");
    fs::remove(other.string() + ".err");
    EXPECT_EQ(run(other, c.arguments, s), expected_code(c, s, plain)) << err(other);
    const std::map<std::string, std::string> got = contents(other);
    for (const auto& [name, bytes] : wanted) {
      ASSERT_TRUE(got.count(name)) << name << " is missing";
      EXPECT_TRUE(got.at(name) == bytes) << name << " has other bytes";
    }
    EXPECT_EQ(got.size(), wanted.size());
    if (c.says_result && s.out != Output::file && s.err == Output::file) {
      EXPECT_NE(err(other).find(std::string("standard output: ") + reason(s.out)), std::string::npos) << err(other);
    }
    if (!c.says_result && s.out != Output::file && s.err == Output::file) {
      EXPECT_NE(err(other).find(std::string("no longer be written (") + reason(s.out)), std::string::npos)
          << err(other);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Commands, SlowStreams, testing::ValuesIn(commands()),
                         [](const auto& info) { return std::string(info.param.name); });

class SlowFileLimit : public StreamsFolder {
 protected:
  // Runs a command when no file may grow beyond `bytes`: it must name the file that is too large, and leave nothing of
  // it.
  static void expect_refused(const Words& arguments, rlim_t bytes, const std::string& file) {
    const fs::path folder = copy_base("limited");
    const std::map<std::string, std::string> before = contents(folder);
    EXPECT_EQ(run(folder, arguments, {.name = "plain"}, {bytes}), 1) << err(folder);
    EXPECT_NE(err(folder).find(file), std::string::npos) << err(folder);
    EXPECT_NE(err(folder).find("File too large"), std::string::npos) << err(folder);
    EXPECT_EQ(contents(folder), before);
  }
};

TEST_F(SlowFileLimit, OutputsThatAreTooLargeAreRemoved) {
  expect_refused({"data", "prepare", "--input", "text.txt", "--tokenizer", "bytes", "--output", "new.h5"}, 3000,
                 "new.h5");
  expect_refused({"tokenizer", "train", "--kind", "chars", "--input", "text.txt", "--output", "new.rmt"}, 500,
                 "new.rmt");
  expect_refused({"attention", "show", "t.yaml", "--svg", "new.svg"}, 500, "new.svg");
}

TEST_F(SlowFileLimit, ACheckpointThatDoesNotFitKeepsTheOneBefore) {
  const fs::path folder = copy_base("limited");
  const Words command = {"train", "runs/t", "train.steps=6", "--allow-changes"};
  EXPECT_EQ(run(folder, command, {.name = "plain"}, {60'000}), 1) << err(folder);
  EXPECT_NE(err(folder).find("shard-00000.h5"), std::string::npos) << err(folder);
  EXPECT_NE(err(folder).find("File too large"), std::string::npos) << err(folder);
  EXPECT_EQ(run(folder, {"checkpoint", "verify", "runs/t"}), 0) << err(folder);
  EXPECT_EQ(run(folder, command), 0) << err(folder);
  for (const auto& entry : fs::directory_iterator(folder / "runs/t/checkpoints"))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
}

TEST_F(SlowFileLimit, ALogThatCannotBeWrittenIsNamedAndTheRunContinues) {
  const fs::path folder = copy_base("limited");
  fs::remove(folder / "runs/t/log.txt");
  fs::create_symlink("/dev/full", folder / "runs/t/log.txt");
  EXPECT_EQ(run(folder, {"train", "runs/t", "train.steps=6", "--allow-changes"}), 0) << err(folder);
  const std::string said = err(folder);
  const std::size_t first = said.find("log.txt: No space left on device");
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("log.txt: No space", first + 1), std::string::npos) << said;
}

}  // namespace
}  // namespace ring
