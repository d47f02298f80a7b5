// Pages of `ringmaster report`, mostly of runs whose files are damaged or hostile.
#include "inspect/report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/check.h"
#include "inspect/chart.h"
#include "inspect/html.h"
#include "inspect/report_attention.h"
#include "inspect/report_parts.h"
#include "inspect/report_run.h"
#include "inspect/report_style.h"
#include "inspect/report_times.h"
#include "tests/inspect/svg_check.h"
#include "tests/paths.h"
#include "tests/process.h"
#include "text/utf8.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHostile = "</script><script>alert(1)</script>\"'&<img src=x onerror=alert(1)>\u2028\u00e4";

class ReportTest : public testing::Test {
 protected:
  ReportTest() : folder_(fs::temp_directory_path() / str("ring_report_", getpid())) { fs::create_directories(folder_); }
  ~ReportTest() override { fs::remove_all(folder_); }

  std::string write_run(const std::string& name, const std::string& records) const {
    fs::create_directories(folder_ / name);
    std::ofstream(folder_ / name / "metrics.jsonl", std::ios::binary) << records;
    return (folder_ / name).string();
  }

  const fs::path folder_;
};

std::string line(const std::string& group, std::int64_t step, const std::string& rest) {
  return str("{\"step\":", step, ",\"group\":\"", group, "\",\"time\":1.5,", rest, "}\n");
}

// Returns the page without the contents of style and script.
std::string markup_of(std::string page) {
  for (const char* tag : {"style", "script"}) {
    const std::size_t begin = page.find(str("<", tag, ">")), end = page.find(str("</", tag, ">"));
    if (begin != std::string::npos && end != std::string::npos) page.erase(begin, end - begin + std::strlen(tag) + 3);
  }
  return page.substr(page.find("<html"));
}

void expect_readable(const std::string& page) {
  EXPECT_EQ(utf8::valid_prefix_length(page), page.size());
  test::expect_well_formed(markup_of(page));
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  EXPECT_EQ(page.find("<script"), page.rfind("<script"));  // only the page's own script
  for (const char* foreign : {"http:", "https:", "src="})
    for (std::size_t at = page.find(foreign); at != std::string::npos; at = page.find(foreign, at + 1))
      EXPECT_TRUE(page.substr(at).starts_with("http://www.w3.org/") || page[at - 1] == ' ') << page.substr(at, 60);
}

TEST(Curve, SmoothingEqualsThatOfTensorBoard) {
  // s = 0.5, 1.25 and 2.625, divided by 1 - 1/2, 1 - 1/4 and 1 - 1/8.
  const Curve s = smoothed({{1, 1}, {2, 2}, {3, NAN}, {4, 4}}, 0.5);
  EXPECT_DOUBLE_EQ(s[0].y, 1);
  EXPECT_DOUBLE_EQ(s[1].y, 1.25 / 0.75);
  EXPECT_TRUE(std::isnan(s[2].y));
  EXPECT_DOUBLE_EQ(s[3].y, 2.625 / 0.875);
  EXPECT_EQ(smoothed({{1, 3}, {2, 5}}, 0), (Curve{{1, 3}, {2, 5}}));
}

TEST(Curve, ThinningKeepsEndsAndExtremes) {
  Curve curve;
  for (int i = 0; i < 123'457; ++i) curve.push_back({static_cast<double>(i), std::sin(i * 0.01)});
  curve[70'001].y = 50, curve[90'002].y = -50;
  const Curve thin = thinned(curve, 1000);
  EXPECT_LE(thin.size(), 1000u);
  EXPECT_GT(thin.size(), 900u);
  EXPECT_EQ(thin.front(), curve.front());
  EXPECT_EQ(thin.back(), curve.back());
  EXPECT_TRUE(std::ranges::is_sorted(thin, {}, &CurvePoint::x));
  EXPECT_NE(std::ranges::find(thin, curve[70'001]), thin.end());
  EXPECT_NE(std::ranges::find(thin, curve[90'002]), thin.end());
  for (int i = 20'000; i < 40'000; ++i) curve[static_cast<std::size_t>(i)].y = NAN;
  EXPECT_TRUE(std::ranges::any_of(thinned(curve), [](const CurvePoint& p) { return std::isnan(p.y); }));
  EXPECT_EQ(thinned({{1, 2}, {2, 3}}).size(), 2u);
}

TEST(Chart, TicksAreRound) {
  EXPECT_EQ(axis_ticks(0, 10, false, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(axis_ticks(1, 1000, true, 5), (std::vector<double>{1, 10, 100, 1000}));
  EXPECT_EQ(axis_ticks(1.5, 30, true, 5), (std::vector<double>{2, 5, 10, 20}));
  EXPECT_TRUE(axis_ticks(1, 1, false, 5).empty());
  EXPECT_TRUE(axis_ticks(0, INFINITY, false, 5).empty());
  for (const double high : {1e-300, 1e300, 1.0000001})
    EXPECT_LE(axis_ticks(high / 2, high, false, 5).size(), 12u) << high;
}

// At the start of a long cosine schedule, all ticks of the learning rate round to 0.0009999 or 0.001.
TEST(Chart, LabelsOfAnAxisDiffer) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(tick_labels({9.9992e-4, 9.9994e-4, 9.9996e-4, 9.9998e-4, 1e-3}),
            (Texts{"9.9992e-4", "9.9994e-4", "9.9996e-4", "9.9998e-4", "1e-3"}));
  EXPECT_EQ(tick_labels({0, 2.5e-4, 5e-4}), (Texts{"0", "0.00025", "0.0005"}));
  EXPECT_EQ(tick_labels({1'000'001, 1'000'002}), (Texts{"1.000001M", "1.000002M"}));
  EXPECT_EQ(tick_labels({-1e-9, 0, 1e-9}), (Texts{"-1e-9", "0", "1e-9"}));
  EXPECT_EQ(tick_labels({2, 2, NAN}).size(), 3u);  // equal ticks cannot differ
}

// Returns the x and the text of each label that ends at its x: the labels of the vertical axis.
std::vector<std::pair<double, std::string>> end_labels(const std::string& svg) {
  std::vector<std::pair<double, std::string>> all;
  constexpr const char* kBegin = "<text x=\"";
  for (std::size_t at = svg.find(kBegin); at != std::string::npos; at = svg.find(kBegin, at + 1)) {
    const std::size_t close = svg.find('>', at), end = svg.find('<', close);
    if (svg.substr(at, close - at).find("anchor=\"end\"") != std::string::npos)
      all.emplace_back(std::stod(svg.substr(at + std::strlen(kBegin))), svg.substr(close + 1, end - close - 1));
  }
  return all;
}

TEST(Chart, LabelsAreNotCut) {
  constexpr double kWidest = 0.6 * 18;  // a sans-serif digit, in units of the picture on a narrow screen
  for (const double high : {1e-3, 2.5, 123'456.0, 1e9}) {
    const Curve curve = {{1, high * (1 - 8e-5)}, {160, high}};
    const auto labels = end_labels(chart_html({.title = "c", .lines = {{"run", 0, curve}}}));
    EXPECT_GE(labels.size(), 4u);
    for (const auto& [x, text] : labels) EXPECT_GE(x, kWidest * static_cast<double>(text.size())) << text;
  }
}

TEST(Html, EscapesMarkupAndInvalidBytes) {
  EXPECT_EQ(html_escaped("a<b>&\"'\x01\xff\u00e4"), "a&lt;b&gt;&amp;&quot;&#39; \uFFFD\u00e4");
  const std::string table = html_table({{"<"}, {"&"}}, 1, {"<b>c</b>"});
  EXPECT_NE(table.find("<th>&lt;</th>"), std::string::npos) << table;
  EXPECT_NE(table.find("<td><b>c</b>&amp;</td>"), std::string::npos) << table;
  const std::string stack = html_table({{"a", "<"}, {"1", "2"}}, 1, {}, true);
  EXPECT_NE(stack.find("<td data-head=\"a\">1</td><td class=\"n\" data-head=\"&lt;\">2</td>"), std::string::npos)
      << stack;
}

// A table that is cut off at 390 px shows this by a shaded edge, and scrolls with the keyboard.
TEST(Html, TablesShowThatTheyScroll) {
  EXPECT_TRUE(html_table({{"a"}}, 1).starts_with("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label="));
  const std::string style = kReportStyle;
  EXPECT_NE(style.find(".scroll:focus-visible"), std::string::npos);
  EXPECT_NE(style.find("var(--shade), transparent) right / 14px 100% no-repeat scroll"), std::string::npos);
}

TEST_F(ReportTest, TermsAreExplained) {
  const std::string page = report_page({write_run("r", line("train", 1, "\"loss\":1"))}, {});
  EXPECT_NE(page.find("MFU: share of"), std::string::npos);
  EXPECT_NE(page.find("Goodput: share of"), std::string::npos);
}

TEST_F(ReportTest, HostileFilesGiveAReadablePage) {
  const std::string text = "<\\/script><script>alert(1)<\\/script>\\\"'&<img src=x onerror=alert(1)>";
  std::string name = kHostile;
  std::erase(name, '/');
  const std::string run = write_run(
      name + "\xff", line("start", 0, str("\"device_name\":\"", text, "\",\"processes\":2,\"layout\":\"", text, "\"")) +
                         line("train", 1, "\"loss\":null,\"loss_text\":\"nan\",\"grad_norm\":1e308") +
                         line("train", 2, "\"loss\":null,\"loss_text\":\"inf\",\"lr\":-0.0") +
                         line("train", 3, str("\"loss\":2.5,\"", text, "\":1,\"memory_peak\":1e300")) +
                         line("train", 4, "\"loss\":-1,\"tokens_per_second\":0") +
                         line("train", 9007199254740993, "\"loss\":1e-320") +
                         line("memory", 4, str("\"why\":\"", text, "\"")) + line("restart", 4, "\"restarts\":-1e300") +
                         line("job", 4, str("\"end\":\"failed\",\"error\":\"", text, "\"")) + "{\"step\":5,\"gro");
  const std::string page = report_page({run, write_run("empty", ""), (folder_ / "none").string()}, {});
  expect_readable(page);
  EXPECT_NE(page.find("&lt;/script&gt;"), std::string::npos);
  EXPECT_NE(page.find("the loss is nan"), std::string::npos);
}

TEST_F(ReportTest, ARunMayHaveNoLossThatCanBeDrawn) {
  std::string records;
  for (int i = 0; i < 10; ++i) records += line("train", i, "\"loss\":null,\"loss_text\":\"nan\"");
  const std::string page = report_page({write_run("nan", records)}, {});
  expect_readable(page);
  EXPECT_NE(page.find("no recorded values"), std::string::npos);
}

TEST_F(ReportTest, ALongRunIsThinned) {
  std::string records;
  for (int i = 1; i <= 20'000; ++i)
    records += line("train", i, str("\"loss\":", 5 + std::sin(i), ",\"tokens_per_second\":", 1000 + i % 7));
  const std::string page = report_page({write_run("long", records)}, {});
  expect_readable(page);
  EXPECT_LT(page.size(), 600'000u);
  const std::size_t path = page.find(" d=\"M", page.find("line c0 raw"));
  const std::string points = page.substr(path, page.find('"', path + 5) - path);
  EXPECT_LE(std::ranges::count(points, 'L'), 1000);
  EXPECT_GT(std::ranges::count(points, 'L'), 900);
}

TEST_F(ReportTest, MfuNeedsAPeak) {
  const auto mfu = [&](const std::string& device, double peak) {
    const std::string start = str("\"device_name\":\"", device, "\",\"processes\":2");
    const std::string run =
        write_run("run", line("start", 0, start) + line("train", 1, "\"loss\":1,\"flops_per_second\":989e12"));
    const ReportRun r = read_report_run(run, peak);
    return r.curves.contains("train/mfu") ? r.curves.at("train/mfu").at(0).y : 0;
  };
  EXPECT_DOUBLE_EQ(mfu("NVIDIA H200", 0), 0.5);
  EXPECT_DOUBLE_EQ(mfu("NVIDIA H100 80GB HBM3", 0), 0.5);
  EXPECT_EQ(mfu("NVIDIA H100 PCIe", 0), 0);
  EXPECT_EQ(mfu("cpu", 0), 0);
  EXPECT_DOUBLE_EQ(mfu("cpu", 989e13), 0.05);
}

// Norms of parts in one line are the root of the sum of their squares.
TEST_F(ReportTest, GradientNormsOfBlocksAreDrawnInRanges) {
  const auto lines = [&](int blocks, const std::string& more) {
    std::string norms = "\"embedding\":2,\"<b>\":1,\"blocks.x\":1,\"final_norm\":3" + more;
    for (int b = 0; b < blocks; ++b) norms += str(",\"blocks.", b, "\":", b + 1);
    const std::string run = write_run("run", line("train", 10, "\"loss\":3") + line("grad_norm", 10, norms) +
                                                 line("grad_norm", 20, "\"blocks.0\":null,\"blocks.0_text\":\"nan\""));
    expect_readable(report_page({run}, {}));
    return part_lines(read_report_run(run, 0), "grad_norm", Together::root_of_squares);
  };
  const std::vector<ChartLine> deep = lines(11, ",\"loss_head\":4");
  std::vector<std::string> names;
  for (const ChartLine& l : deep) names.push_back(l.name);
  EXPECT_EQ(names, (std::vector<std::string>{"embedding", "blocks 0 to 2", "blocks 3 to 5", "blocks 6 to 8",
                                             "blocks 9 to 10", "final norm and head"}));
  EXPECT_EQ(deep[0].curve, (Curve{{10, 2}}));
  EXPECT_EQ(deep[1].curve, (Curve{{10, std::sqrt(1.0 + 4 + 9)}}));
  EXPECT_EQ(deep[4].curve, (Curve{{10, std::sqrt(100.0 + 121)}}));
  EXPECT_EQ(deep[5].curve, (Curve{{10, 5}}));
  const std::vector<ChartLine> flat = lines(1, "");
  ASSERT_EQ(flat.size(), 3u);
  EXPECT_EQ(flat[1].name, "block 0");
  EXPECT_TRUE(flat[1].curve.size() == 2 && std::isnan(flat[1].curve[1].y));
  EXPECT_EQ(flat[2].name, "final norm");
}

TEST_F(ReportTest, WatchedStepsAreDrawnByTheirMeans) {
  const std::string layers = "\"blocks.0\":2,\"blocks.1\":4,\"blocks.2\":1,\"blocks.3\":1,\"blocks.4\":9";
  const std::string run =
      write_run("run", line("train", 10, "\"loss\":3") + line("validation", 10, "\"loss\":3,\"ema_loss\":2.5") +
                           line("update_ratio", 10, "\"embedding\":0.5,\"blocks.0\":0.001,\"blocks.1\":0.003") +
                           line("attention_entropy", 10, layers) + line("attention_entropy", 20, "\"blocks.0\":1") +
                           line("attention_recall", 10, "\"blocks.1\":0.75") +
                           line("attention_density", 10, "\"blocks.1\":0.25") +
                           line("attention_imbalance", 10, "\"blocks.1\":1.25"));
  const ReportRun read = read_report_run(run, 0);
  EXPECT_EQ(read.curves.at("validation/ema_loss"), (Curve{{10, 2.5}}));
  const std::vector<ChartLine> ratios = part_lines(read, "update_ratio", Together::mean);
  ASSERT_EQ(ratios.size(), 3u);
  EXPECT_EQ(ratios[0].curve, (Curve{{10, 0.5}}));
  EXPECT_EQ(ratios[2].curve, (Curve{{10, 0.003}}));
  const std::vector<ChartLine> entropies = part_lines(read, "attention_entropy", Together::mean);
  ASSERT_EQ(entropies.size(), 3u) << "two blocks each";
  EXPECT_EQ(entropies[0].curve, (Curve{{10, 3}}));
  EXPECT_EQ(entropies[2].curve, (Curve{{10, 9}}));
  EXPECT_EQ(part_lines(read, "attention_recall", Together::mean).at(0).curve, (Curve{{10, 0.75}}));
  EXPECT_EQ(part_lines(read, "attention_density", Together::mean).at(0).curve, (Curve{{10, 0.25}}));
  EXPECT_EQ(part_lines(read, "attention_imbalance", Together::mean).at(0).curve, (Curve{{10, 1.25}}));
  const std::string page = report_page({run}, {});
  for (const char* title :
       {"Update over weights by layers", "Entropy of attention by layers", "Attention that blocks keep by layers",
        "Density of attention by layers", "Imbalance of attention by layers"})
    EXPECT_NE(page.find(title), std::string::npos) << title;
}

TEST_F(ReportTest, SensorsOfAGpuAreCurvesAndASlowGpuIsAnEvent) {
  std::string records;
  for (int i = 1; i <= 3; ++i)
    records += line("train", i,
                    "\"loss\":1,\"gpu_watts\":412,\"gpu_utilization\":0.97,\"gpu_sm_mhz\":1980,\"gpu_celsius\":61");
  records += line("slow_gpu", 3,
                  "\"rank\":1,\"gpu\":\"0000:3b:00.0\",\"sm_mhz\":1200,\"usual_sm_mhz\":1980,\"reason\":\"heat\"");
  const std::string page = report_page({write_run("gpu", records)}, {});
  expect_readable(page);
  for (const char* title : {"GPU power", "GPU utilization", "GPU clock", "GPU temperature"})
    EXPECT_NE(page.find(str("<figcaption>", title)), std::string::npos) << title;
  for (const char* part : {"rank 1: GPU 0000:3b:00.0", "1200 MHz instead of 1980", "by heat"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_EQ(report_page({write_run("cpu", line("train", 1, "\"loss\":1"))}, {}).find("GPU"), std::string::npos);
}

TEST_F(ReportTest, EventsAreMarkedAndListed) {
  const std::string run =
      write_run("run", line("train", 10, "\"loss\":3") + line("start", 20, "\"device\":\"cpu\"") +
                           line("restart", 20, "\"restarts\":1,\"seconds_lost\":35") + line("train", 40, "\"loss\":2"));
  const std::string page = report_page({run}, {});
  EXPECT_NE(page.find("restart 1, 35 s lost"), std::string::npos);
  // Steps 10 to 40 span x = 76 to 508 of 520: step 20 is at 220.
  EXPECT_NE(page.find("class=\"mark c0\" d=\"M220.00 14V254\""), std::string::npos);
}

TEST_F(ReportTest, AStepIsDividedIntoWaitsAndComputing) {
  std::string records;
  for (int i = 1; i <= 5; ++i)
    records +=
        line("train", i, str("\"loss\":1,\"step_ms\":", 100 * i, ",\"data_ms\":", 10 * i, ",\"exchange_ms\":", 25 * i));
  const std::string times = times_html(std::vector{read_report_run(write_run("run", records), 0)});
  EXPECT_NE(times.find("<td data-head=\"run\">run</td><td class=\"n\" data-head=\"ms of a step\">300</td>"
                       "<td class=\"n\" data-head=\"waits for data\">10 %</td>"
                       "<td class=\"n\" data-head=\"for other processes\">25 %</td>"
                       "<td class=\"n\" data-head=\"computes\">65 %</td>"),
            std::string::npos)
      << times;
  EXPECT_EQ(times_html(std::vector{read_report_run(write_run("empty", ""), 0)}), "");
}

// Samples equal those that `generate` writes with each checkpoint. A damaged checkpoint is reported.
TEST_F(ReportTest, SamplesComeFromTheRemainingCheckpoints) {
  const auto path_of = [&](const char* name) { return (folder_ / name).string(); };
  const auto run_program = [](std::vector<std::string> words) {
    words.insert(words.begin(), test::ring_binary());
    const test::Finished f = test::run_process(words);
    EXPECT_EQ(f.code, 0) << f.output;
    return f.output;
  };
  std::ofstream(path_of("text.txt")) << std::string(2000, 'a') << "<b>" << std::string(2000, 'c');
  run_program({"data", "prepare", "--input", path_of("text.txt"), "--tokenizer", "bytes", "--output", path_of("c.h5")});
  std::ofstream(path_of("c.yaml")) << "run: {device: cpu, threads: 1, directory: " << path_of("run") << "}\n"
                                   << "model: {context: 32, layers: 1, width: 32, heads: 2}\ndata: {path: "
                                   << path_of("c.h5")
                                   << "}\ntrain: {batch_size: 2, steps: 6}\ncheckpoint: {interval: 2, keep_last: 3}\n";
  run_program({"train", path_of("c.yaml")});
  std::ofstream(path_of("run/checkpoints/step-000000004/manifest.json")) << "{";
  const auto samples = checkpoint_samples(path_of("run"), {.prompt = "a<b", .tokens = 12, .threads = 1});
  ASSERT_EQ(samples.size(), 3u);
  for (const std::size_t i : {0u, 2u}) {
    EXPECT_EQ(samples[i].step, static_cast<std::int64_t>(2 * i + 2));
    EXPECT_EQ(samples[i].problem, "");
    const std::string written =
        run_program({"generate", str(path_of("run"), "/checkpoints/step-00000000", *samples[i].step), "--prompt", "a<b",
                     "--max-tokens", "12", "--threads", "1"});
    EXPECT_NE(written.find("a<b" + samples[i].text), std::string::npos) << written;
  }
  EXPECT_NE(samples[0].text, samples[2].text);
  EXPECT_NE(samples[1].problem.find("step-000000004"), std::string::npos) << samples[1].problem;
  expect_readable(report_page({path_of("run")}, {.samples = {.prompt = "a<b", .tokens = 12, .threads = 1}}));
}

TEST_F(ReportTest, CheckpointsThatCannotBeListedAreARowWithTheReason) {
  const std::string run = write_run("run", line("train", 1, "\"loss\":2"));
  fs::create_symlink("checkpoints", run + "/checkpoints");  // a link to itself
  const auto samples = checkpoint_samples(run, {.prompt = "a"});
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_NE(samples[0].problem.find(run + "/checkpoints"), std::string::npos) << samples[0].problem;
  EXPECT_FALSE(samples[0].step);
  const std::string page = report_page({run}, {.samples = {.prompt = "a"}});
  expect_readable(page);
  EXPECT_NE(page.find("/checkpoints"), std::string::npos);
}

TEST(ReportAttention, DrawsLayersThatAreNotDense) {
  ModelConfig model;
  model.context = 4096, model.layers = 3, model.width = 64, model.heads = 4, model.vocab_size = 100;
  EXPECT_EQ(attention_pictures(model.resolved()), "");
  model.attention.kind = "window";
  model.attention.window = 512;
  const std::string svg = attention_pictures(model.resolved());
  test::expect_well_formed(svg);
  EXPECT_NE(svg.find("layer 0, KV head 0, 4096 tokens"), std::string::npos);
  EXPECT_EQ(svg.find("layer 1"), std::string::npos);  // layer 1 has the same kind
  EXPECT_LT(svg.size(), 60'000u);
}

}  // namespace
}  // namespace ring
