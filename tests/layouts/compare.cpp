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

double furthest(const std::vector<double>& one, const std::vector<double>& many) {
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

std::string errors_of(const std::vector<Answer>& ranks) {
  std::string text;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (const auto& [what, why] : {std::pair{"refused: ", ranks[r].refused}, {"failed: ", ranks[r].error}})
      if (!why.empty()) text += str(text.empty() ? "" : "; ", "rank ", r, ' ', what, why);
  return text;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

// Ranks report the same losses, and hold the same bits of what they share.
std::string drift(const std::vector<Answer>& ranks) {
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

std::string first_beyond(const char* what, const std::vector<double>& one, const std::vector<double>& many,
                         double most) {
  if (one.empty() || one.size() != many.size()) return str(many.size(), " steps, one rank has ", one.size());
  for (std::size_t i = 0; i < one.size(); ++i)
    if (const double r = relative(one[i], many[i]); !(r <= most))
      return str(what, " of step ", i + 1, " is ", number(many[i]), ", one rank has ", number(one[i]), " (relative ",
                 number(r, "%.1e"), ", at most ", number(most, "%.0e"), ")");
  return "";
}

}  // namespace

Distance distance(const Answer& one, const Answer& many) {
  return {furthest(one.losses, many.losses), furthest(one.norms, many.norms)};
}

std::string disagreement(const Answer& one, const std::vector<Answer>& ranks, const Tolerance& most) {
  if (std::string text = errors_of(ranks); !text.empty()) return text;
  if (std::string text = drift(ranks); !text.empty()) return text;
  if (std::string text = first_beyond("loss", one.losses, ranks[0].losses, most.loss); !text.empty()) return text;
  return first_beyond("gradient norm", one.norms, ranks[0].norms, most.norm);
}

}  // namespace ring::test
