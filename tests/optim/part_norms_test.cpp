// Norms of the model's parts, compared with plain sums over the gradients of parameters with matching names.

#include <gtest/gtest.h>

#include <map>

#include "model/decoder.h"
#include "model/scopes.h"
#include "optim/gradient_norm.h"

namespace ring::test {
namespace {

ModelConfig config_of(bool tied, Positions positions) {
  ModelConfig c;
  c.vocab_size = 37;
  c.context = 24;
  c.layers = 3;
  c.width = 32;
  c.heads = 4;
  c.biases = Biases::all;
  c.tied_embeddings = tied;
  c.positions = positions;
  return c.resolved();
}

// Returns a name up to its number, or to the first dot: "blocks.2", "embedding".
std::string part_of(const std::string& name) {
  const std::size_t dot = name.find('.');
  return name.substr(0, name.starts_with("blocks.") ? name.find('.', dot + 1) : dot);
}

class PartNormsTest : public testing::TestWithParam<bool> {
 protected:
  PartNormsTest() : model(config_of(GetParam(), GetParam() ? Positions::learned : Positions::rope)) {
    model.parameters().allocate(ctx, 1);
    float* const g = model.parameters().gradients.data<float>();
    for (const Param* p : model.parameters().layout())
      for (const LogicalParam& part : p->parts) {
        const std::int64_t columns = p->shape.size() == 2 ? p->shape[1] : 1;
        for (std::int64_t i = part.first_row * columns; i < (part.first_row + part.rows) * columns; ++i) {
          const double value = g[p->offset + i] = static_cast<float>((p->offset + i) * 31 % 17) - 8;
          squares[part_of(part.name)] += value * value;
        }
      }
  }

  const ExecContext ctx{Stream::cpu(2)};
  Decoder model;
  std::map<std::string, double> squares;
};
INSTANTIATE_TEST_SUITE_P(TiedOrNot, PartNormsTest, testing::Bool());

TEST_P(PartNormsTest, EqualPlainSums) {
  const PartNorms norms(own_everything(model.parameters()), model, true, ctx);
  const std::map<ScopeKind, std::string> names = {
      {scopes::embedding, "embedding"}, {scopes::final_norm, "final_norm"}, {scopes::loss_head, "head"}};
  for (int again = 0; again < 2; ++again) {
    const std::vector<float> got = to_host<float>(norms.measure(ctx), ctx.stream);
    ASSERT_EQ(got.size(), squares.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      const ScopeId part = norms.parts()[i];
      const std::string name = part.is_repeated() ? str("blocks.", part.number) : names.at(part.kind);
      ASSERT_TRUE(squares.contains(name)) << name;
      EXPECT_NEAR(got[i], squares.at(name), 1e-6 * squares.at(name)) << name;
    }
  }
}

TEST_P(PartNormsTest, GradientsOfOtherRanksDoNotCount) {
  const PartNorms norms(own_everything(model.parameters()), model, false, ctx);
  for (const float square : to_host<float>(norms.measure(ctx), ctx.stream)) EXPECT_EQ(square, 0);
}

}  // namespace
}  // namespace ring::test
