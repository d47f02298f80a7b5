#include "core/philox.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

struct DropoutSetting {
  std::int64_t n, width;
  float rate;
  bool residual;
  std::int64_t first_row = 0;
  bool bench = false;
  std::int64_t step = 0;  // > 0: row n is row n * step + 2 of the micro-batch
};

constexpr std::uint32_t kSite = 77;

// The mask as defined: element e is kept if its uniform number is at least the rate.
std::vector<Values> dropout_oracle(const DropoutSetting& s, const RandomSite& site, const std::vector<Values>& in) {
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

Tensor rows_of(const DropoutSetting& s, const ExecContext& ctx) {
  std::vector<std::int32_t> rows;
  for (std::int64_t n = 0; n < s.n; ++n) rows.push_back(static_cast<std::int32_t>(n * s.step + 2));
  return from_host(rows, ctx.stream);
}

OpCase make_dropout(const DropoutSetting& s) {
  OpCase c;
  c.op = "dropout_add";
  c.name = str("N", s.n, "_C", s.width, "_p", static_cast<int>(s.rate * 100), s.residual ? "_residual" : "", "_from",
               s.first_row, s.step > 0 ? "_rows" : "");
  c.inputs = {{.name = "x", .shape = {s.n, s.width}}};
  if (s.residual) c.inputs.push_back({.name = "residual", .shape = {s.n, s.width}});
  c.oracle = [s](const std::vector<Values>& in) {
    return dropout_oracle(s, {.seed = 11, .step = 5, .site = kSite}, in);
  };
  c.run = [s](Run& run, const std::vector<Var>& in) {
    Run mine = run;
    mine.seed = 11;
    mine.step = 5;
    mine.first_row = s.first_row;
    if (s.step > 0) mine.layout.rows = rows_of(s, run.ctx);
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

std::vector<OpCase> dropout_cases() {
  return {make_dropout({1, 1, 0.5f, false}),
          make_dropout({7, 37, 0.1f, true}),
          make_dropout({5, 8, 0.0f, true}),
          make_dropout({7, 37, 0.9f, false, 1000}),
          make_dropout({400, 67, 0.25f, true, 3}),
          make_dropout({9, 3, 0.3f, true, 1}),
          make_dropout({9, 5, 0.3f, true, 1, false, 3}),
          make_dropout({300, 64, 0.2f, true, 4, false, 2}),
          make_dropout({768, 128, 0.1f, true, 0, true}),
          make_dropout({8192, 1024, 0.1f, true, 0, true})};
}

const AddCases added_dropouts(dropout_cases);

}  // namespace
}  // namespace ring::test
