// Commands that show runs, on real runs: `runs`, `metrics export` and `report`, whose outputs are read with Python's
// libraries.
#include "tests/trainer/runs.h"

#include <csignal>
#include <memory>
#include <thread>

namespace ring::test {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Exits with 77 if a Python package is missing.
constexpr const char* kReadCsv = R"py(
import csv, json, math, sys
rows = list(csv.DictReader(open(sys.argv[1], newline='')))
records = [json.loads(line) for line in open(sys.argv[2])]
assert len(rows) == len(records), (len(rows), len(records))
for row, record in zip(rows, records):
    for key, value in record.items():
        if isinstance(value, float):
            assert float(row[key]) == value, (key, row[key], value)
        elif isinstance(value, (int, str)):
            assert row[key] == str(value), (key, row[key], value)
    assert all(value == '' for key, value in row.items() if key not in record and key != 'run'), row
try:
    import pandas
except ImportError:
    sys.exit(77)
table = pandas.read_csv(sys.argv[1], float_precision='round_trip')
lines = pandas.read_json(sys.argv[2], lines=True)
assert len(table) == len(lines)
assert table['step'].tolist() == lines['step'].tolist()
)py";

constexpr const char* kReadPage = R"py(
import html.parser, sys, xml.etree.ElementTree as tree
text = open(sys.argv[1], encoding='utf-8', errors='strict').read()
root = tree.fromstring(text.split('\n', 1)[1])
svg = '{http://www.w3.org/2000/svg}'
titles = [e.text for e in root.iter('{http://www.w3.org/1999/xhtml}figcaption')]
assert 'Training loss ' in titles and 'Validation loss ' in titles and 'Learning rate' in titles, titles
assert len(list(root.iter(svg + 'svg'))) >= 6
class Parser(html.parser.HTMLParser):
    open_tags, void = [], ('meta', 'input', 'path')
    def handle_starttag(self, tag, attributes):
        assert not any(name.startswith('on') or name == 'src' for name, _ in attributes), attributes
        self.open_tags.append(tag)
    def handle_startendtag(self, tag, attributes):
        pass
    def handle_endtag(self, tag):
        assert self.open_tags.pop() == tag, tag
parser = Parser()
parser.feed(text)
parser.close()
assert parser.open_tags == [], parser.open_tags
)py";

class RunViews : public Runs {
 protected:
  void python(const char* program, const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {"/usr/bin/env", "python3", "-c", program};
    command.insert(command.end(), arguments.begin(), arguments.end());
    if (run_process({"/usr/bin/env", "python3", "--version"}).code != 0) GTEST_SKIP() << "there is no Python";
    const Finished f = run_process(command);
    EXPECT_TRUE(f.code == 0 || f.code == 77) << f.output;
  }
};

TEST_F(RunViews, ShowTwoRuns) {
  ASSERT_EQ(run_process(train("runs/one", {"train.steps=40"})).code, 0);
  ASSERT_EQ(run_process(train("runs/two", {"train.steps=40", "optimizer.lr=3e-3"})).code, 0);

  const Finished table = ring({"runs", path("runs")});
  EXPECT_EQ(table.code, 0);
  EXPECT_TRUE(has(table.output, "one  finished  cpu")) << table.output;
  EXPECT_TRUE(has(table.output, "40/40")) << table.output;
  const auto json = nlohmann::json::parse(ring({"runs", path("runs"), "--json", "--sort", "loss"}).output);
  ASSERT_EQ(json.size(), 2u);
  EXPECT_LE(json[0]["loss"], json[1]["loss"]);
  EXPECT_EQ(json[0]["processes"], 1);
  EXPECT_GT(json[0]["parameters"], 1000);

  const Finished compared = ring({"runs", "compare", path("runs/one"), path("runs/two")});
  EXPECT_EQ(compared.code, 0) << compared.output;
  EXPECT_TRUE(has(compared.output, "optimizer.lr")) << compared.output;
  EXPECT_FALSE(has(compared.output, "train.steps")) << compared.output;

  ASSERT_EQ(ring({"metrics", "export", path("runs/one"), "--output", path("one.csv")}).code, 0);
  python(kReadCsv, {path("one.csv"), path("runs/one/metrics.jsonl")});

  ASSERT_EQ(ring({"report", path("runs/one"), path("runs/two"), "--output", path("r.html")}).code, 0);
  python(kReadPage, {path("r.html")});
}

TEST_F(RunViews, ShowHowARunEnds) {
  const auto status = [&] { return nlohmann::json::parse(ring({"runs", path("runs"), "--json"}).output)[0]; };
  const auto start = [&] {
    const std::size_t before = records("runs/one");
    auto process = std::make_unique<Process>(train("runs/one", {"train.steps=100000"}));
    while (records("runs/one") < before + 20 && process->running())
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return process;
  };
  auto process = start();
  EXPECT_EQ(status()["status"], "running");
  process->signal(SIGTERM);
  EXPECT_EQ(process->wait().code, 75);
  EXPECT_EQ(status()["status"], "stopped");
  process = start();
  process->signal(SIGKILL);
  process->wait();
  EXPECT_EQ(status()["status"], "failed");
  EXPECT_TRUE(has(status()["note"], "killed"));
  // The run ends with an error.
  const Finished bad = run_process(train(
      "runs/one", {"train.steps=3000", "optimizer.lr=1000", "optimizer.clip=0", "train.on_bad_step=stop", "--fresh"}));
  EXPECT_EQ(bad.code, 1) << bad.output;
  EXPECT_EQ(status()["status"], "failed");
  EXPECT_TRUE(has(status()["note"], "training stopped")) << status()["note"];
}

// The run is stopped between two train records: every view and the checkpoint have the same step, and the loss is that
// of the step.
TEST_F(RunViews, AgreeOnTheStepWithTheCheckpoint) {
  ASSERT_EQ(run_process(train("runs/one", {"train.steps=0", "train.minutes=0.01", "train.log_interval=1000000"})).code,
            0);
  std::string newest;
  for (const auto& entry : fs::directory_iterator(folder_ / "runs/one/checkpoints"))
    newest = std::max(newest, entry.path().filename().string());
  const std::string step = std::to_string(std::stoi(newest.substr(newest.find('-') + 1)));
  EXPECT_GT(std::stoi(step), 0);
  EXPECT_EQ(nlohmann::json::parse(ring({"runs", path("runs"), "--json"}).output).at(0).at("step").dump(), step);
  EXPECT_EQ(std::to_string(losses("runs/one").rbegin()->first), step);
  EXPECT_TRUE(has(ring({"watch", path("runs/one")}).output, "step " + step));
  ASSERT_EQ(ring({"report", path("runs/one"), "--output", path("r.html")}).code, 0);
  std::ifstream page(path("r.html"));
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  EXPECT_TRUE(has(text, "<td class=\"n\" data-head=\"step\">" + step + "</td>"));
}

// A run logs one line about memory when it starts. Its parts add up to its total.
TEST_F(RunViews, OneLogLineShowsTheMemory) {
  const auto count = [](const std::string& text) {
    std::size_t lines = 0;
    for (std::size_t at = text.find("memory: "); at != std::string::npos; at = text.find("memory: ", at + 1)) ++lines;
    return lines;
  };
  const Finished plain = run_process(train("runs/one", {"train.steps=3"}));
  EXPECT_EQ(count(plain.output), 1u) << plain.output;
  EXPECT_TRUE(has(plain.output, "predicted to take ")) << plain.output;
  EXPECT_TRUE(has(plain.output, " % (share of the time")) << plain.output;
  EXPECT_EQ(count(run_process(train("runs/two", {"train.steps=3", "--log-level=debug"})).output), 2u);
  const Finished quiet = run_process(train("runs/three", {"train.steps=3", "--log-level", "error"}));
  EXPECT_EQ(quiet.code, 0);
  EXPECT_FALSE(has(quiet.output, " I ")) << quiet.output;
  std::ifstream log(path("runs/three/log.txt"));
  EXPECT_EQ((std::string{std::istreambuf_iterator<char>(log), {}}), "");
}

TEST_F(RunViews, RefuseFoldersWithoutARun) {
  const Finished none = ring({"report", path("nowhere"), "--output", path("r.html")});
  EXPECT_EQ(none.code, 1);
  EXPECT_TRUE(has(none.output, "nowhere")) << none.output;
  EXPECT_FALSE(fs::exists(path("r.html")));
  EXPECT_EQ(ring({"metrics", "export", path("nowhere")}).code, 1);
  EXPECT_EQ(ring({"runs", path("nowhere")}).code, 1);
  EXPECT_EQ(ring({"runs", "compare", path("nowhere"), path("a")}).code, 1);
}

}  // namespace
}  // namespace ring::test
