#include "core/philox.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

struct Setting {
  std::int64_t n, width;
  float rate;
  bool residual;
  std::int64_t first_row = 0;
  bool bench = false;
  std::int64_t step = 0;  // > 0: row n is row n * step + 2 of the micro-batch
};

constexpr std::uint32_t kSite = 77;

// The mask as defined: element e is kept if its uniform number is at least the rate.
std::vector<Values> oracle(const Setting& s, const RandomSite& site, const std::vector<Values>& in) {
  Values y(in[0].size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    const auto width = static_cast<std::size_t>(s.width), row = i / width;
    const std::size_t at = s.step > 0 ? (row * static_cast<std::size_t>(s.step) + 2) * width + i % width : i;
    const std::uint64_t element = static_cast<std::uint64_t>(s.first_row * s.width) + at;
    const bool keep = to_uniform(random_bits(site, element)) >= s.rate;
    y[i] = (s.residual ? in[1][i] : 0) + (keep ? in[0][i] / (1.0 - static_cast<double>(s.rate)) : 0.0);
  }
  return {y};
}

Tensor rows_of(const Setting& s, const ExecContext& ctx) {
  std::vector<std::int32_t> rows;
  for (std::int64_t n = 0; n < s.n; ++n) rows.push_back(static_cast<std::int32_t>(n * s.step + 2));
  return from_host(rows, ctx.stream);
}

OpCase make(const Setting& s) {
  OpCase c;
  c.op = "dropout_add";
  c.name = str("N", s.n, "_C", s.width, "_p", static_cast<int>(s.rate * 100), s.residual ? "_residual" : "", "_from",
               s.first_row, s.step > 0 ? "_rows" : "");
  c.inputs = {{.name = "x", .shape = {s.n, s.width}}};
  if (s.residual) c.inputs.push_back({.name = "residual", .shape = {s.n, s.width}});
  c.oracle = [s](const std::vector<Values>& in) { return oracle(s, {.seed = 11, .step = 5, .site = kSite}, in); };
  c.run = [s](Run& run, const std::vector<Var>& in) {
    Run mine = run;
    mine.seed = 11;
    mine.step = 5;
    mine.first_row = s.first_row;
    if (s.step > 0) mine.rows = rows_of(s, run.ctx);
    return std::vector<Var>{dropout_add(mine, in[0], s.residual ? in[1] : Var{}, s.rate, kSite)};
  };
  const auto n = static_cast<double>(s.n * s.width);
  c.flops = 2 * n;
  c.backward_flops = n;
  c.bytes = (s.residual ? 12 : 8) * n;
  c.backward_bytes = 8 * n;
  c.bench = s.bench;
  return c;
}

std::vector<OpCase> cases() {
  return {make({1, 1, 0.5f, false}),
          make({7, 37, 0.1f, true}),
          make({5, 8, 0.0f, true}),
          make({7, 37, 0.9f, false, 1000}),
          make({400, 67, 0.25f, true, 3}),
          make({9, 3, 0.3f, true, 1}),
          make({9, 5, 0.3f, true, 1, false, 3}),
          make({300, 64, 0.2f, true, 4, false, 2}),
          make({768, 128, 0.1f, true, 0, true}),
          make({8192, 1024, 0.1f, true, 0, true})};
}

const AddCases added(cases);

}  // namespace
}  // namespace ring::test
