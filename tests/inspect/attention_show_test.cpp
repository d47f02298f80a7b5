// `ringmaster attention show`: its counts, compared with pairs counted one by one, and its pictures.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "core/check.h"
#include "core/fields.h"
#include "engine/config.h"
#include "inspect/attention_cost.h"
#include "inspect/attention_picture.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/head_segment.h"
#include "kernels/attention/pairs.h"
#include "model/flops.h"
#include "model/patterns.h"
#include "tests/cases/attention_oracle.h"
#include "tests/inspect/svg_check.h"
#include "tests/paths.h"
#include "tests/process.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

struct Named {
  const char* name;
  Pattern pattern;
};

// A block rule with a bit for each block: block q sees blocks q / 2 and q / 3.
Pattern drawn_pattern() {
  BlockRule rule{.kind = BlockRuleKind::drawn};
  rule.rows = 16, rule.words = 1;
  std::vector<std::uint32_t> bits;
  for (std::uint32_t q = 0; q < 16; ++q) bits.push_back(1u << q / 2 | 1u << q / 3);
  return block_sparse(64, {rule}, true, bits);
}

std::vector<Named> named_patterns() {
  const BlockRule global{.kind = BlockRuleKind::local_global, .local = 2, .first = 1, .every = 5},
      strided{.kind = BlockRuleKind::strided, .local = 1, .every = 3},
      levels{.kind = BlockRuleKind::hierarchical, .local = 1},
      random{.kind = BlockRuleKind::random, .threshold = random_threshold(0.3), .seed = 3};
  return {{"dense", dense()},
          {"window", window(37)},
          {"window of one", window(1)},
          {"sinks", window(50, 21)},
          {"sinks beyond the window", window(5, 150)},
          {"wide window", window(100000, 3)},
          {"dilated", dilated({{32, 1}, {128, 2}, {512, 4}})},
          {"shifted", dilated({{16, 1}, {96, 3}, {200, 4}}, false, 7)},
          {"ragged", dilated({{30, 1}, {70, 4}, {45, 6}, {1000000, 10}}, false, 3)},
          {"rates without a common sample", dilated({{64, 1}, {100, 6}, {90, 4}}, false, 1)},
          {"dedup", dilated({{32, 1}, {64, 2}, {256, 8}}, true, 5)},
          {"one branch", dilated({{48, 1}})},
          {"scales", scales()},
          {"chunks", chunks()},
          {"blocks of 64", block_sparse(64, {global, strided, levels, random})},
          {"blocks of 128", block_sparse(128, {levels, random})},
          {"drawn", drawn_pattern()}};
}

constexpr std::int64_t kLengths[] = {1, 2, 63, 65, 200, 449, 512, 700};

TEST(AttentionCells, CountThePairsOfTheirTokens) {
  for (const auto& [name, pattern] : named_patterns())
    for (const std::int64_t length : kLengths)
      for (const std::int32_t head : {0, 3})
        for (const std::int64_t most : {1, 5, 24, 1024}) {
          const PairCells got = cells_of(pattern, head, length, most);
          ASSERT_LE(got.side(), most);
          ASSERT_GE(got.side() * got.size(), length);
          ASSERT_LT((got.side() - 1) * got.size(), length);
          PairCells want(length, most), possible(length, most);
          for (std::int32_t t = 0; t < length; ++t)
            for (std::int32_t u = 0; u <= t; ++u) {
              want.kept(t / got.size(), u / got.size()) += multiplicity(pattern, head, t, u, 0) > 0;
              possible.kept(t / got.size(), u / got.size()) += 1;
            }
          for (std::int64_t i = 0; i < got.side(); ++i)
            for (std::int64_t j = 0; j < got.side(); ++j) {
              ASSERT_EQ(got.kept(i, j), want.kept(i, j)) << name << ", " << length << " tokens, head " << head
                                                         << ", cell " << i << " " << j << " of size " << got.size();
              ASSERT_EQ(got.max_kept(i, j), possible.kept(i, j));
            }
        }
}

TEST(AttentionCells, CoarserCellsAddUpFinerCells) {
  const Pattern pattern = dilated({{32, 1}, {128, 2}, {512, 4}});
  const PairCells fine = cells_of(pattern, 1, 449, 449), coarse = fine.coarsened(20),
                  direct = cells_of(pattern, 1, 449, 20);
  ASSERT_EQ(coarse.size(), 32);
  for (std::int64_t i = 0; i < coarse.side(); ++i)
    for (std::int64_t j = 0; j < coarse.side(); ++j) EXPECT_EQ(coarse.kept(i, j), direct.kept(i, j)) << i << " " << j;
  EXPECT_EQ(coarse.kept_share(0, 2, 0), (coarse.kept(0, 0) + coarse.kept(1, 0)) / (16 * 33 + 32 * 32));
  EXPECT_EQ(coarse.kept_share(0, 1, 1), -1);  // a cell in the future
}

TEST(AttentionCost, CountsRepeatedPairs) {
  for (const auto& [name, pattern] : named_patterns())
    for (const std::int64_t length : kLengths)
      for (const std::int64_t kv_heads : {1, 5}) {
        const std::vector<Span> whole = {{0, static_cast<std::int32_t>(length), 0, 0}};
        double pairs = 0, repeated = 0;
        for (std::int32_t h = 0; h < kv_heads; ++h)
          for (std::int32_t t = 0; t < length; ++t)
            for (std::int32_t u = 0; u <= t; ++u) {
              const int m = multiplicity(pattern, h, t, u, 0);
              pairs += m;
              repeated += m > 1;
            }
        const PatternCost cost = cost_of(pattern, kv_heads, length);
        const auto heads = static_cast<double>(kv_heads);
        EXPECT_DOUBLE_EQ(cost.pairs, pairs / heads) << name << " " << length;
        EXPECT_DOUBLE_EQ(cost.pairs, kept_pairs(pattern, whole, whole, kv_heads)) << name << " " << length;
        EXPECT_NEAR(cost.repeated, repeated / heads, 1e-9 * pairs) << name << " " << length;
      }
  EXPECT_EQ(causal_pairs(449), 449 * 225);
}

// A pool is one more key for each query after it. A cell contains its share of the pool, and never more than all pairs.
TEST(AttentionCost, CountsPools) {
  for (const Pattern& tokens : {window(5), block_sparse(64, {{.local = 1}})})
    for (const std::int64_t length : kLengths) {
      const Pattern with = pooled(tokens, {8, 50});
      double pairs = 0;
      PairCells want = cells_of(tokens, 0, length, 24), got = cells_of(with, 0, length, 24);
      for (std::int64_t t = 0; t < length; ++t) {
        pairs += static_cast<double>(t / 8 + t / 50);
        for (const std::int64_t size : {8, 50})
          for (std::int64_t u = 0; u < t / size * size; ++u)
            want.kept(t / want.size(), u / want.size()) += 1 / static_cast<double>(size);
      }
      const PatternCost plain = cost_of(tokens, 2, length), cost = cost_of(with, 2, length);
      EXPECT_DOUBLE_EQ(cost.pairs, plain.pairs + pairs) << length;
      ASSERT_EQ(cost.parts.size(), 3u);
      EXPECT_EQ(cost.parts[0].name + ", " + cost.parts[1].name + ", " + cost.parts[2].name,
                "tokens, pools of 8, pools of 50");
      EXPECT_EQ(cost.parts[0].tiles, plain.parts[0].tiles);
      for (std::int64_t i = 0; i < got.side(); ++i)
        for (std::int64_t j = 0; j <= i; ++j)
          EXPECT_NEAR(got.kept(i, j), std::min(want.kept(i, j), got.max_kept(i, j)), 1e-6) << length << i << j;
    }
  // Queries 128 .. 255 see up to 15 pools of 16, and queries up to 1023 up to 63 pools: one tile. Queries from 1024 on
  // see two tiles.
  EXPECT_EQ(cost_of(pooled(window(1), {16}), 1, 1280).parts[1].tiles, 8 + 2 * 2);
}

// The stream of columns defines the tiles: it starts at the first column that any row of the block sees, and jumps over
// the gap that no row sees.
TEST(AttentionCost, CountsTheTilesThatTheKernelTouches) {
  const auto tiles = [](const Pattern& p, std::int64_t length) {
    double sum = 0;
    for (const CostPart& part : cost_of(p, 1, length).parts) sum += part.tiles;
    return sum;
  };
  EXPECT_EQ(tiles(dense(), 1), 1);
  EXPECT_EQ(tiles(dense(), 128), 2);
  EXPECT_EQ(tiles(dense(), 512), 2 + 4 + 6 + 8);
  EXPECT_EQ(tiles(dense(), 513), 2 + 4 + 6 + 8 + 9);
  // Queries 384 to 511 see keys from 321 on: 191 columns. The blocks before see 128, 191 and 191 columns.
  EXPECT_EQ(tiles(window(64), 512), 2 + 3 + 3 + 3);
  EXPECT_EQ(tiles(window(64, 3), 512), 2 + 4 + 4 + 4);   // plus a tile of sinks; in the second block the gap is short
  EXPECT_EQ(tiles(window(65, 64), 512), 2 + 4 + 4 + 4);  // 192 columns, 64 sinks
  // Each segment of 32 is one tile. A branch of rate 2 has 128 samples in each segment of 256.
  EXPECT_EQ(tiles(dilated({{32, 1}}), 512), 16);
  EXPECT_EQ(tiles(dilated({{32, 1}, {256, 2}}), 512), 16 + 2 * 2);
  // Pairs of the finer branch are left out: query sample j of 128 sees columns up to j outside its own segment.
  EXPECT_EQ(tiles(dilated({{32, 1}, {512, 2}}, true), 512), 16 + 2 + 4);

  for (const auto& [name, pattern] : named_patterns()) {
    if (!pattern.blocks) continue;
    for (const std::int64_t length : kLengths) {
      const BlockLists lists = lists_of(*pattern.blocks, Stationary::q, 4, length, true);
      double sum = 0, rows = 0;
      for (const CostPart& part : cost_of(pattern, 4, length).parts) sum += part.tiles, rows += part.row_blocks;
      EXPECT_DOUBLE_EQ(sum, static_cast<double>(lists.entries.size()) / 4) << name << " " << length;
      EXPECT_DOUBLE_EQ(rows, lists.tiles) << name << " " << length;
    }
  }
}

// Tiles cover every pair, and every counted tile contains a column that some row of its block sees.
TEST(AttentionCost, TilesCoverEveryPair) {
  for (const auto& [name, pattern] : named_patterns()) {
    if (pattern.blocks) continue;
    for (const std::int64_t length : kLengths) {
      const std::vector<Span> whole = {{0, static_cast<std::int32_t>(length), 0, 0}};
      double tiles = 0, blocks = 0;
      for (const BranchPass& pass : passes_of(pattern))
        for (const SegmentPair& piece : segment_pairs_of(pass, pattern, whole, whole))
          for (std::int32_t h = 0; h < 3; ++h) {
            const HeadSegment s(pass, piece, pass.offset(h));
            for (std::int32_t row = s.q_first; row < s.q_end; row += 128, ++blocks) {
              const TileBounds r = s.bounds<Stationary::q>(row, std::min(row + 128, s.q_end));
              for (std::int32_t at = r.first; at < r.end;) {
                if (at >= r.gap && at < r.gap_end) {
                  at = r.gap_end;
                  continue;
                }
                ++tiles, at += 64;
              }
            }
          }
      double got_tiles = 0, got_blocks = 0;
      for (const CostPart& part : cost_of(pattern, 3, length).parts)
        got_tiles += part.tiles, got_blocks += part.row_blocks;
      EXPECT_NEAR(got_tiles, tiles / 3, 1e-9 * tiles) << name << " " << length;
      EXPECT_NEAR(got_blocks, blocks / 3, 1e-9 * blocks) << name << " " << length;
    }
  }
}

TEST(AttentionCost, PredictsFromTilesAndRows) {
  const PatternCost dense_cost = cost_of(dense(), 2, 4096);  // 32 blocks of rows
  EXPECT_DOUBLE_EQ(predicted_microseconds(dense_cost, 128), 2 * 528 * kTileMicroseconds + 32 * kRowBlockMicroseconds);
  EXPECT_DOUBLE_EQ(predicted_microseconds(dense_cost, 64), 528 * kTileMicroseconds + 32 * kRowBlockMicroseconds);
  EXPECT_EQ(largest_cost_text(dense_cost, 128), "tiles: 88 %");
  EXPECT_EQ(largest_cost_text(cost_of(window(1), 2, 4096), 64), "row blocks: 82 %");
  EXPECT_EQ(largest_cost_text(cost_of(dilated({{2048, 1}, {4096, 2}}), 2, 4096), 128), "2048/1: 67 %");
  const BlockRule narrow{.local = 1}, all{.local = 1000};
  EXPECT_EQ(largest_cost_text(cost_of(block_sparse(128, {narrow, all}), 2, 4096), 128), "heads as 1: 85 %");
}

// Reference: measurements on one H200 in docs/measured/attention.md.
TEST(AttentionCost, PredictsMeasuredTimes) {
  for (const auto& [length, tflops] : {std::pair{4096, 511}, {8192, 550}, {16384, 577}, {32768, 576}}) {
    const double seconds = 1e-6 * predicted_microseconds(cost_of(dense(), 1, length), 128) / 132;  // SMs
    EXPECT_NEAR(1e-12 * 4 * 128 * causal_pairs(length) / seconds, tflops, 0.02 * tflops);
  }
  for (const auto& [length, share, speed_up] : {std::tuple{32768, 0.5, 1.84},
                                                {32768, 0.25, 3.53},
                                                {32768, 0.1, 7.8},
                                                {65536, 0.5, 1.85},
                                                {65536, 0.25, 3.61},
                                                {65536, 0.1, 8.8}}) {
    const BlockRule rule{.kind = BlockRuleKind::random, .threshold = random_threshold(share), .seed = 1};
    const double predicted = predicted_microseconds(cost_of(dense(), 1, length), 128) /
                             predicted_microseconds(cost_of(block_sparse(128, {rule}), 1, length), 128);
    EXPECT_NEAR(predicted, speed_up, 0.08 * speed_up) << length << " " << share;
  }
}

TEST(AttentionCost, ManyBranchesAreRefused) {
  std::vector<Branch> branches(17, {64, 1});
  EXPECT_THROW(cost_of(dilated(branches), 1, 64), Error);
  EXPECT_THROW(cells_of(dense(false), 0, 64, 8), Error);
}

// Returns the number of characters, not bytes.
std::size_t width_of(const std::string& line) {
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(AttentionPicture, ShadesGrowWithTheShareOfPairs) {
  EXPECT_EQ(shade_of(0, 4), 0);
  EXPECT_EQ(shade_of(-1, 4), 0);
  EXPECT_EQ(shade_of(1e-9, 4), 1);
  EXPECT_EQ(shade_of(1.0 / 16, 4), 1);
  EXPECT_EQ(shade_of(0.07, 4), 2);
  EXPECT_EQ(shade_of(0.25, 4), 2);
  EXPECT_EQ(shade_of(0.3, 4), 3);
  EXPECT_EQ(shade_of(1, 4), 4);
}

TEST(AttentionPicture, TextShowsEveryCell) {
  const std::string text = text_picture(cells_of(dilated({{8, 1}, {32, 2}}), 0, 32, 100), 80);
  const std::vector<std::string> lines = lines_of(text);
  ASSERT_EQ(lines.size(), 16u + 3);
  EXPECT_EQ(lines[0], " 0 ┤██");
  EXPECT_EQ(lines[3], "   │████████");
  EXPECT_EQ(lines[4], " 8 ┤▓·▓·▓·▓·██") << "a character is two queries high: half of its pairs";
  EXPECT_EQ(lines[16], "    0       8       16      24");
  EXPECT_EQ(lines[18], "Pairs kept: · none ░ 6.2 % ▒ 25 % ▓ 56 % █ 100 %");
}

TEST(AttentionPicture, TextFitsTheColumns) {
  for (const std::int64_t length : {1, 7, 64, 1000, 1 << 20})
    for (const std::int64_t columns : {24, 31, 80, 200}) {
      const std::string text = text_picture(cells_of(window(100, 4), 0, length, 300), columns);
      for (const std::string& line : lines_of(text))
        EXPECT_LE(width_of(line), static_cast<std::size_t>(columns)) << line;
    }
}

// Returns the shades of the cells in the SVG of one panel.
std::vector<std::string> cells_in(const std::string& svg, std::int64_t side) {
  std::vector<std::string> cells(static_cast<std::size_t>(side * side));
  const std::regex path("<path stroke=\"(#[0-9a-f]{6})\" d=\"([^\"]*)\""), run("M(\\d+) (\\d+)h(\\d+)");
  for (std::sregex_iterator p(svg.begin(), svg.end(), path), none; p != none; ++p) {
    const std::string color = (*p)[1], runs = (*p)[2];
    for (std::sregex_iterator r(runs.begin(), runs.end(), run); r != none; ++r)
      for (std::int64_t j = 0; j < std::stoll((*r)[3]); ++j) {
        std::string& cell = cells.at(static_cast<std::size_t>(std::stoll((*r)[2]) * side + std::stoll((*r)[1]) + j));
        EXPECT_EQ(cell, "");
        cell = color;
      }
  }
  return cells;
}

TEST(AttentionPicture, SvgShowsEveryCell) {
  for (const auto& [name, pattern] : named_patterns()) {
    const PairCells cells = cells_of(pattern, 1, 700, kSvgCells);
    const std::string svg = svg_picture({{"a <title> & more", "700 tokens", cells}});
    expect_well_formed(svg);
    EXPECT_NE(svg.find("a &lt;title&gt; &amp; more"), std::string::npos);
    const std::vector<std::string> shown = cells_in(svg, cells.side());
    std::map<int, std::string> color;
    for (std::int64_t i = 0; i < cells.side(); ++i)
      for (std::int64_t j = 0; j < cells.side(); ++j) {
        const int shade = shade_of(cells.kept_share(i, i + 1, j), 8);
        const std::string& got = shown[static_cast<std::size_t>(i * cells.side() + j)];
        if (shade == 0) {
          ASSERT_EQ(got, "") << name << " " << i << " " << j;
          continue;
        }
        ASSERT_EQ(color.insert({shade, got}).first->second, got) << name << " " << i << " " << j;
        ASSERT_NE(got, "");
      }
    for (auto a = color.begin(); a != color.end(); ++a)
      for (auto b = color.begin(); b != a; ++b) EXPECT_NE(a->second, b->second);
  }
}

TEST(AttentionPicture, SvgStaysSmall) {
  BlockRule half{.kind = BlockRuleKind::random, .threshold = random_threshold(0.5)};
  const Panel worst{"t", "s", cells_of(block_sparse(64, {half}), 0, 64 * 128, kSvgCells)};
  ASSERT_EQ(worst.cells.side(), 128);
  EXPECT_LT(svg_picture({worst}).size(), 100'000u);
  const std::string three = svg_picture({worst, worst, worst});
  expect_well_formed(three);
  EXPECT_NE(three.find("width=\"1248\" height=\"1436\""), std::string::npos) << three.substr(0, 200);
}

TEST(AttentionPicture, TextIsWrapped) {
  EXPECT_EQ(wrapped("one two  three", 7), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(wrapped("abcdefgh ij", 3), (std::vector<std::string>{"abc", "def", "gh", "ij"}));
  EXPECT_TRUE(wrapped("", 5).empty());
}

// --- the command ---

class AttentionShow : public testing::Test {
 public:
  AttentionShow() : folder_(fs::temp_directory_path() / ("ringmaster-show-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
    std::ofstream(config_) << "data: {path: nowhere.h5}\ntrain: {steps: 1}\nmodel:\n"
                              "  context: 512\n  layers: 6\n  width: 64\n  heads: 4\n  kv_heads: 2\n"
                              "  vocab_size: 300\n  attention: {kind: window, window: 100, sinks: 4}\n"
                              "  attention_layers:\n"
                              "  - {layers: '1,4', attention: {kind: dilated, segments: [64, 256], rates: [1, 2]}}\n"
                              "  - {layers: '2', attention: {kind: block_sparse, block: 64, rules: [{local: 2}, "
                              "{pattern: hierarchical, local: 1}], heads: [0, 1]}}\n"
                              "  - {layers: '5', attention: {}}\n";
  }
  ~AttentionShow() override { fs::remove_all(folder_); }

  Finished show(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {ring_binary(), "attention", "show", config_});
    return run_process(arguments);
  }
  std::string output_of(const std::vector<std::string>& arguments) const {
    const Finished f = show(arguments);
    EXPECT_EQ(f.code, 0) << f.output;
    return f.output;
  }

  fs::path folder_;
  std::string config_ =
      (fs::temp_directory_path() / ("ringmaster-show-" + std::to_string(getpid())) / "c.yaml").string();
};

// Returns the line that starts with `layers`.
std::string row_of(const std::string& output, const std::string& layers) {
  for (const std::string& line : lines_of(output))
    if (line.rfind(" " + layers + " ", 0) == 0) return line;
  ADD_FAILURE() << "no row of " << layers << " in:\n" << output;
  return "";
}

std::string fixed(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

TEST_F(AttentionShow, PrintsEverySectionOnce) {
  const std::string output = output_of({});
  for (const char* text : {"Layers 0,3: window of 100, 4 sinks", "Layers 1,4: dilated, segments 64, 256, rates 1, 2",
                           "Layer 2: block_sparse, blocks of 64: local_global, local 2, first 0", "Layer 5: dense",
                           "KV head 0 of 2, 512 tokens, positions of layer 1", "131 K causal pairs"})
    EXPECT_NE(output.find(text), std::string::npos) << text << " not in:\n" << output;
}

// Checkpoints are tested in DamagedRuns.ConfigShowAcceptsARun.
TEST_F(AttentionShow, AcceptsARunToo) {
  const std::vector<std::string> run = {ring_binary(), "attention", "show", folder_.string(), "--layer", "0"};
  const Finished none = run_process(run);
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.output.find("not a run"), std::string::npos) << none.output;
  fs::copy_file(config_, folder_ / "config.yaml");
  EXPECT_EQ(run_process(run).output, output_of({"--layer", "0"}));
  std::vector<std::string> changed = run;
  changed.push_back("model.attention.window=7");
  EXPECT_EQ(run_process(changed).output, output_of({"--layer", "0", "model.attention.window=7"}));
}

TEST_F(AttentionShow, TableShowsTheCountsOfThePatterns) {
  Config config;
  load_config(config, config_);
  const ModelConfig model = config.model.resolved();
  const std::string output = output_of({});
  const std::vector<Span> whole = {{0, 512, 0, 0}};
  const double dense_time = predicted_microseconds(cost_of(dense(), 2, 512), 16);
  double all = 0;
  for (std::int64_t layer = 0; layer < 6; ++layer) all += kept_pairs(pattern_of(model, layer), whole, whole, 2);
  for (const auto& [layer, name] : {std::pair{0, "0,3"}, {1, "1,4"}, {2, "2"}, {5, "5"}}) {
    const double pairs = kept_pairs(pattern_of(model, layer), whole, whole, 2), of = 256 * 513;
    const std::string row = row_of(output, name);
    for (const std::string& text :
         {fixed(" %.4f ", pairs / of), fixed(pairs < of ? " %.1f M " : " %.0f M ", 12 * 64 * pairs * 1e-6),
          std::string(" 101 M "),
          fixed(" %.2fx ", dense_time / predicted_microseconds(cost_of(pattern_of(model, layer), 2, 512), 16)),
          fixed(" %.1f %%", 100 * (1 - pairs / of))})
      EXPECT_NE(row.find(text), std::string::npos) << text << " not in: " << row;
  }
  EXPECT_NE(row_of(output, "5").find(" 1.00x row blocks: 64 %"), std::string::npos) << output;
  ModelConfig dense_model = model;
  dense_model.attention = {}, dense_model.attention_layers.clear();
  const double now = flops_per_token(model), before = flops_per_token(dense_model);
  EXPECT_NE(output.find(fixed("Training: %.2f MFLOPs per token", now * 1e-6)), std::string::npos) << output;
  EXPECT_NE(output.find(fixed("dense %.2f MFLOPs: ", before * 1e-6) + fixed("%.1f %% saved", 100 * (1 - now / before))),
            std::string::npos)
      << output;
  EXPECT_NE(output.find(fixed("All 6 layers: attention %.0f MFLOPs", 12 * 64 * all * 1e-6)), std::string::npos)
      << output;
}

TEST_F(AttentionShow, ShowsOneLayerAndItsHead) {
  const std::string zero = output_of({"--layer", "2", "--length", "1000"}),
                    one = output_of({"--layer", "2", "--length", "1000", "--head", "1"});
  EXPECT_EQ(zero.find("dense\n"), std::string::npos);
  EXPECT_NE(one.find("Layer 2: block_sparse, blocks of 64: hierarchical, local 1"), std::string::npos) << one;
  EXPECT_NE(one.find("KV head 1 of 2, 1000 tokens"), std::string::npos);
  EXPECT_EQ(row_of(zero, "2"), row_of(one, "2"));
  // With rate 2 and two KV heads, the samples of a head are the same in all layers; with one head they move.
  const auto picture = [&](const char* layer, const char* kv_heads) {
    const std::string text = output_of({"--layer", layer, "--length", "100", "--width", "120", kv_heads});
    return text.substr(text.find("0 ┤"), text.find("A character") - text.find("0 ┤"));
  };
  EXPECT_TRUE(picture("1", "model.kv_heads=2") == picture("4", "model.kv_heads=2"));
  EXPECT_FALSE(picture("1", "model.kv_heads=1") == picture("4", "model.kv_heads=1"));
}

TEST_F(AttentionShow, FitsTheWidth) {
  for (const char* width : {"24", "50", "80", "120"})
    for (const std::string& line : lines_of(output_of({"--width", width, "parallel.cp=2"})))
      EXPECT_LE(width_of(line), std::stoul(width)) << line;
}

TEST_F(AttentionShow, WritesTheSvgWhollyOrNotAtAll) {
  const std::string file = (folder_ / "p.svg").string();
  output_of({"--svg", file});
  const std::string svg = config::read_source(file).text;
  expect_well_formed(svg);
  for (const char* text : {"Layers 0,3: window of 100", "Layer 5: dense", "query (token)", ">512</text>"})
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  const auto refused = [&](const std::string& path, const std::string& why) {
    const Finished f = show({"--svg", path});
    EXPECT_EQ(f.code, 1);
    EXPECT_EQ(f.output.rfind("ringmaster: --svg: cannot write " + path, 0), 0u) << f.output;
    EXPECT_NE(f.output.find(why), std::string::npos) << f.output;
  };
  const Finished own = show({"--svg", config_});
  EXPECT_EQ(own.code, 1);
  EXPECT_NE(own.output.find("is the input " + config_), std::string::npos) << own.output;
  refused((folder_ / "none/p.svg").string(), "does not exist");
  refused(folder_.string(), "is a directory");
  if (geteuid() != 0) {
    fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
    const Finished f = show({"--svg", (folder_ / "q.svg").string()});
    fs::permissions(folder_, fs::perms::owner_all);
    EXPECT_EQ(f.code, 1) << f.output;
  }
  for (const auto& entry : fs::directory_iterator(folder_))
    EXPECT_TRUE(entry.path().filename() == "p.svg" || entry.path().filename() == "c.yaml") << entry.path();
}

TEST_F(AttentionShow, RefusesLayersAndHeadsThatDoNotExist) {
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& why) {
    const Finished f = show(arguments);
    EXPECT_EQ(f.code, 1) << f.output;
    EXPECT_NE(f.output.find(why), std::string::npos) << f.output;
    EXPECT_EQ(std::count(f.output.begin(), f.output.end(), '\n'), 1) << f.output;
  };
  refused({"--layer", "6"}, "--layer: expected 0 to 5");
  refused({"--head", "2"}, "--head: expected 0 to 1");
  const auto out_of_range = [&](const std::string& option, const std::string& value, const std::string& range) {
    const Finished f = show({option + "=" + value});
    EXPECT_EQ(f.code, 2) << f.output;
    EXPECT_NE(f.output.find(option + ": must be in " + range + ", is " + value), std::string::npos) << f.output;
  };
  out_of_range("--layer", "-1", "[0, 2147483647]");
  out_of_range("--head", "-1", "[0, 2147483647]");
  out_of_range("--length", "0", "[1, 1073741824]");
  out_of_range("--length", "2000000000", "[1, 1073741824]");
  out_of_range("--width", "10", "[24, 10000]");
  refused({"model.attention.window=0"}, "window");
  std::ofstream(folder_ / "blocks.txt") << "0-7: 0\n";
  const std::string rules =
      str("model.attention_layers[1].attention.rules=[{pattern: file, file: ", (folder_ / "blocks.txt").string(), "}]");
  const std::string heads = "model.attention_layers[1].attention.heads=[]";
  output_of({rules, heads, "--layer", "2"});
  refused({rules, heads, "--length", "513"}, "--length: a row of 513 tokens");
}

// In the dense layer, the second half of the rows has 98432 of 131328 pairs. Heads with different rules have different
// counts.
TEST_F(AttentionShow, ShowsHowEvenlyRanksShareALayer) {
  EXPECT_EQ(output_of({}).find("busiest rank"), std::string::npos);
  const std::string cp = output_of({"parallel.cp=2"});
  EXPECT_NE(cp.find("busiest rank"), std::string::npos) << cp;
  EXPECT_NE(cp.find("with parallel.cp: 2"), std::string::npos) << cp;
  EXPECT_NE(cp.find("\nlayers 5: contiguous 1.499, zigzag 1.000, all_to_all 1.000\n"), std::string::npos) << cp;
  const Pattern blocks = block_sparse(64, {{.local = 2}, {.kind = BlockRuleKind::hierarchical, .local = 1}});
  const auto pairs = [&](std::int64_t head) {
    return kept_pairs(of_heads(blocks, {head, 1}), {{0, 512, 0, 0}}, {{0, 512, 0, 0}}, 1);
  };
  const double imbalance = 2 * std::max(pairs(0), pairs(1)) / (pairs(0) + pairs(1));
  EXPECT_GT(imbalance, 1.01);
  const std::string tp = output_of({"parallel.tp=2"});
  EXPECT_NE(tp.find("\nlayers 2: heads " + fixed("%.3f", imbalance) + "\n"), std::string::npos) << tp;
  // Two KV heads cannot be divided among four ranks.
  const std::string both = output_of({"parallel.cp=2", "parallel.tp=2"});
  EXPECT_NE(both.find("with parallel.cp: 2, parallel.tp: 2"), std::string::npos) << both;
  EXPECT_NE(both.find("\nlayers 5: contiguous 1.499, zigzag 1.000\n"), std::string::npos) << both;
  EXPECT_NE(output_of({"parallel.tp=4"}).find("\nlayers 5: parallel.tp does not divide"), std::string::npos);
}

// A query sees the pools that end before it, so that late queries see more pools than early ones.
TEST_F(AttentionShow, CountsPoolsIfRanksShareRows) {
  const auto pairs = [](std::int64_t begin, std::int64_t end) {
    double sum = 0;
    for (std::int64_t t = begin; t < end; ++t) sum += static_cast<double>(std::min<std::int64_t>(t + 1, 64) + t / 16);
    return sum;
  };
  const std::string output = output_of({"parallel.cp=2", "model.attention_layers=[]",
                                        "model.attention={kind: window, window: 64, sinks: 0, pools: [16]}"});
  const std::string uneven = fixed("%.3f", 2 * pairs(256, 512) / pairs(0, 512));
  EXPECT_NE(output.find(": contiguous " + uneven + ", zigzag 1.0"), std::string::npos) << uneven << '\n' << output;
}

TEST_F(AttentionShow, NotesThatSelectedBlocksAreDrawnAsTheNewest) {
  const auto says = [&](const std::string& pattern) {
    const std::string attention = "{kind: block_sparse, block: 64, rules: [{pattern: " + pattern + "}]}";
    const std::string output =
        output_of({"--width", "120", "model.attention_layers=[]", "model.attention=" + attention});
    return output.find("drawn as the newest") != std::string::npos;
  };
  for (const char* pattern : {"content, keep: 3", "learned, keep: 3", "importance, keep: 3"})
    EXPECT_TRUE(says(pattern)) << pattern;
  EXPECT_FALSE(says("hierarchical"));
}

TEST_F(AttentionShow, CountsAMillionTokensQuickly) {
  for (const char* attention :
       {"{}", "{kind: window, window: 1024, sinks: 16}",
        "{kind: dilated, segments: [2048, 4096, 8192, 16384, 32768], rates: [1, 2, 4, 8, 16]}",
        "{kind: block_sparse, rules: [{local: 8, every: 64}, {pattern: random, density: 0.1}], heads: [0, 1]}"}) {
    std::ofstream(config_) << "data: {path: nowhere.h5}\ntrain: {steps: 1}\nmodel: {kv_heads: 2, heads: 4, attention: "
                           << attention << "}\n";
    const auto start = std::chrono::steady_clock::now();
    const std::string output = output_of({"--length", "1048576", "--svg", (folder_ / "m.svg").string()});
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(100)) << attention;
    EXPECT_NE(output.find("1048576 tokens"), std::string::npos);
    EXPECT_LT(fs::file_size(folder_ / "m.svg"), 100'000u);
  }
}

}  // namespace
}  // namespace ring::test
