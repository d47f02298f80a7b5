#include "inspect/report_parts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include "core/check.h"

namespace ring {
namespace {

// Maximum number of lines for the blocks. With one line for the embedding and one for the parts after the blocks, there
// are kColors lines.
constexpr std::size_t kMaxRanges = 4;

struct Part {
  std::string name;
  std::optional<int> block;
  const Curve* curve;
};

std::optional<int> block_of(const std::string& name) {
  constexpr std::string_view kBlocks = "blocks.";
  int number = 0;
  if (!name.starts_with(kBlocks)) return std::nullopt;
  const char *begin = name.data() + kBlocks.size(), *end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(begin, end, number);
  return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
}

std::vector<Part> parts_of(const ReportRun& run, const std::string& group) {
  const std::string prefix = group + "/";
  std::vector<Part> parts;
  for (const auto& [key, curve] : run.curves)
    if (key.starts_with(prefix))
      parts.push_back({key.substr(prefix.size()), block_of(key.substr(prefix.size())), &curve});
  std::ranges::stable_sort(parts, {}, [](const Part& p) { return p.block.value_or(-1); });
  return parts;
}

Curve together(std::span<const Part> parts, Together how) {
  const bool squares = how == Together::root_of_squares;
  std::map<double, std::pair<double, std::size_t>> sums;  // sum and number of summed values, by step
  for (const Part& p : parts)
    for (const CurvePoint& at : *p.curve) {
      auto& [sum, count] = sums[at.x];
      sum += squares ? at.y * at.y : at.y;
      ++count;
    }
  Curve curve;
  for (const auto& [x, sum] : sums)
    if (sum.second == parts.size())
      curve.push_back({x, squares ? std::sqrt(sum.first) : sum.first / static_cast<double>(sum.second)});
  return curve;
}

std::string blocks_text(int first, int last) {
  return first == last ? str("block ", first) : str("blocks ", first, " to ", last);
}

// Names the line for the parts after the blocks. With tied embeddings there is no head; with norms after sublayers
// there is no final norm.
std::string after_text(const std::vector<Part>& after) {
  if (after.size() > 1) return "final norm and head";
  return !after.empty() && after[0].name == "final_norm" ? "final norm" : "head";
}

}  // namespace

std::vector<ChartLine> part_lines(const ReportRun& run, const std::string& group, Together how) {
  const std::vector<Part> parts = parts_of(run, group);
  std::vector<Part> before, blocks, after;
  for (const Part& p : parts) {
    if (p.block) blocks.push_back(p);
    if (p.name == "embedding") before.push_back(p);
    if (p.name == "final_norm" || p.name == "loss_head") after.push_back(p);
  }
  std::vector<ChartLine> lines;
  const auto add = [&](const std::string& name, std::span<const Part> of) {
    if (!of.empty()) lines.push_back({name, lines.size(), together(of, how)});
  };
  add("embedding", before);
  const std::size_t each = (blocks.size() + kMaxRanges - 1) / kMaxRanges;
  for (std::size_t first = 0; first < blocks.size(); first += each) {
    const std::size_t end = std::min(first + each, blocks.size());
    add(blocks_text(*blocks[first].block, *blocks[end - 1].block), std::span(blocks).subspan(first, end - first));
  }
  add(after_text(after), after);
  return lines;
}

}  // namespace ring
