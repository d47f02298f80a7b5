#include "tests/layouts/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/check.h"

namespace ring::test {
namespace {

double relative(double one, double many) {
  const double difference = std::abs(many - one) / std::abs(one);
  return std::isfinite(difference) ? difference : INFINITY;
}

double largest_difference(const std::vector<double>& one, const std::vector<double>& many) {
  if (one.empty() || one.size() != many.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < one.size(); ++i) worst = std::max(worst, relative(one[i], many[i]));
  return worst;
}

std::string number(double v, const char* format = "%.7g") {
  char text[32];
  std::snprintf(text, sizeof text, format, v);
  return text;
}

std::string describe_errors(const std::vector<Reply>& ranks) {
  std::string text;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (const auto& [what, why] : {std::pair{"refused: ", ranks[r].refused}, {"failed: ", ranks[r].error}})
      if (!why.empty()) text += str(text.empty() ? "" : "; ", "rank ", r, ' ', what, why);
  return text;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

// Returns how ranks differ that should report the same losses and hold the same bits of shared regions; "" if they
// agree.
std::string describe_drift(const std::vector<Reply>& ranks) {
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    if (!same_bits(ranks[r].losses, ranks[0].losses) || !same_bits(ranks[r].norms, ranks[0].norms))
      return str("ranks 0 and ", r, " report different losses or norms");
    for (std::size_t earlier = 0; earlier < r; ++earlier)
      for (const auto& [region, sum] : ranks[r].regions) {
        const auto found = ranks[earlier].regions.find(region);
        if (found != ranks[earlier].regions.end() && found->second != sum)
          return str("ranks ", earlier, " and ", r, " hold different bits of ", region);
      }
  }
  return "";
}

std::string first_difference(const char* what, const std::vector<double>& one, const std::vector<double>& many,
                             double max) {
  if (one.empty() || one.size() != many.size()) return str(many.size(), " steps, one rank has ", one.size());
  for (std::size_t i = 0; i < one.size(); ++i)
    if (const double r = relative(one[i], many[i]); !(r <= max))
      return str(what, " of step ", i + 1, " is ", number(many[i]), ", one rank has ", number(one[i]), " (relative ",
                 number(r, "%.1e"), ", at most ", number(max, "%.0e"), ")");
  return "";
}

}  // namespace

Distance distance(const Reply& one, const Reply& many) {
  return {largest_difference(one.losses, many.losses), largest_difference(one.norms, many.norms)};
}

std::string disagreement(const Reply& one, const std::vector<Reply>& ranks, const Tolerance& max) {
  if (std::string text = describe_errors(ranks); !text.empty()) return text;
  if (std::string text = describe_drift(ranks); !text.empty()) return text;
  if (std::string text = first_difference("loss", one.losses, ranks[0].losses, max.loss); !text.empty()) return text;
  return first_difference("gradient norm", one.norms, ranks[0].norms, max.norm);
}

}  // namespace ring::test
