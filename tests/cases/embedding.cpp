#include "core/philox.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

std::vector<Values> embedding_oracle(std::int64_t width, const std::vector<Values>& in) {
  Values y;
  for (double id : in[0])
    for (std::int64_t c = 0; c < width; ++c)
      y.push_back(in[1][static_cast<std::size_t>(static_cast<std::int64_t>(id) * width + c)]);
  return {y};
}

OpCase make_embedding(std::int64_t n, std::int64_t rows, std::int64_t width, bool bench = false) {
  OpCase c;
  c.op = "embedding";
  c.name = str("N", n, "_V", rows, "_C", width);
  Values ids;
  const RandomSite site{.seed = 1, .site = site_of(c.name)};
  for (std::int64_t i = 0; i < n; ++i)
    ids.push_back(
        static_cast<double>(random_bits(site, static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(rows)));
  c.inputs = {{.name = "ids", .shape = {n}, .values = ids, .differentiable = false, .dtype = DType::i32},
              {.name = "table", .shape = {rows, width}}};
  c.oracle = [width](const std::vector<Values>& in) { return embedding_oracle(width, in); };
  c.run = [](Run& run, const std::vector<Var>& in) { return std::vector<Var>{embedding(run, in[0].value, in[1])}; };
  c.bytes = 8 * static_cast<double>(n * width);
  c.backward_bytes = 4 * static_cast<double>(n * width + rows * width);
  c.bench = bench;
  return c;
}

std::vector<OpCase> embedding_cases() {
  return {make_embedding(1, 1, 1),      make_embedding(64, 5, 8),           make_embedding(33, 300, 37),
          make_embedding(1200, 65, 40), make_embedding(768, 65, 128, true), make_embedding(8192, 32000, 1024, true)};
}

const AddCases added_embeddings(embedding_cases);

}  // namespace
}  // namespace ring::test
