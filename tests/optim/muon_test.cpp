// Muon, compared with a float64 implementation: plain loops over the formulas of optim/muon.h.
#include "optim/muon.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "core/host_tensor.h"
#include "core/step_state.h"
#include "optim/groups.h"
#include "optim/optimizer.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

ExecContext cpu(int threads) { return {Stream::cpu(threads)}; }

struct Matrix {
  std::size_t rows, columns;
  Values v;
  double& operator()(std::size_t i, std::size_t j) { return v[i * columns + j]; }
  double operator()(std::size_t i, std::size_t j) const { return v[i * columns + j]; }
};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.columns, Values(a.rows * b.columns)};
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t k = 0; k < a.columns; ++k)
      for (std::size_t j = 0; j < b.columns; ++j) c(i, j) += a(i, k) * b(k, j);
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t{a.columns, a.rows, Values(a.v.size())};
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < a.columns; ++j) t(j, i) = a(i, j);
  return t;
}

double norm(const Values& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum);
}

double distance(const Values& a, const Values& b) {
  Values difference = a;
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] -= b[i];
  return norm(difference);
}

// Returns the result of iterating x -> 3.4445 x - 4.7750 (x x^T) x + 2.0315 (x x^T)^2 x.
Matrix orthogonalised(Matrix x, int iterations) {
  const double size = norm(x.v);
  for (double& v : x.v) v /= size;
  for (int n = 0; n < iterations; ++n) {
    const Matrix once = product(product(x, transposed(x)), x), twice = product(product(x, transposed(x)), once);
    for (std::size_t i = 0; i < x.v.size(); ++i) x.v[i] = 3.4445 * x.v[i] - 4.7750 * once.v[i] + 2.0315 * twice.v[i];
  }
  return x;
}

struct Reference {
  Matrix value, momentum;
  void step(const Values& gradient, double clip, double lr, double decay, const MuonConfig& c) {
    Matrix u = value;
    for (std::size_t i = 0; i < u.v.size(); ++i) {
      momentum.v[i] = c.momentum * momentum.v[i] + clip * gradient[i];
      u.v[i] = c.nesterov ? clip * gradient[i] + c.momentum * momentum.v[i] : momentum.v[i];
    }
    u = orthogonalised(u, static_cast<int>(c.iterations));
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(u.rows, u.columns)));
    for (std::size_t i = 0; i < u.v.size(); ++i) value.v[i] = value.v[i] * (1 - lr * decay) - lr * scale * u.v[i];
  }
};

// q, k and v of three sizes in one matrix, gate and up that begin between multiples of 16, one tall and two wide
// matrices, and a vector and a table that AdamW updates.
struct Model {
  Model(const OptimizerConfig& config, const ParamTypes& types, const ExecContext& ctx) {
    const Init normal{Init::Kind::normal, 0.3f};
    params.add({{"norm", 0, 24, normal}}, 0);
    params.add({{"table", 0, 40, normal}}, 24).table = true;
    params.add({{"q", 0, 32, normal}, {"k", 0, 16, normal}, {"v", 0, 8, normal}}, 24);
    params.add({{"gate", 0, 37, normal}, {"up", 0, 37, normal}}, 23);
    params.add({{"tall", 0, 50, normal}}, 24);
    params.add({{"wide", 0, 24, normal}}, 50);
    params.add({{"other", 0, 24, normal}}, 50);
    bind_groups(config, params);
    params.allocate(ctx, 5, types);
    shard = own_everything(params);
  }
  Matrix read(const Tensor& flat, const std::string& name, const ExecContext& ctx) const {
    for (const Param* p : params.layout())
      for (const LogicalParam& part : p->parts)
        if (part.name == name)
          return {static_cast<std::size_t>(part.rows), static_cast<std::size_t>(p->shape.size() == 2 ? p->shape[1] : 1),
                  read_values(p->part_of(flat, part), ctx)};
    fail("no parameter ", name);
  }
  Parameters params;
  OwnedShard shard;
};

const std::vector<std::string> kMatrices = {"q", "k", "v", "gate", "up", "tall", "wide", "other"};

struct Step {
  float lr, clip, decay;
  bool accepted;
};
Step step_at(int t, const OptimizerConfig& c) {
  return {static_cast<float>(c.lr) / static_cast<float>(1 + t), t % 3 ? 1.0f : 0.4f, t % 2 ? 1.0f : 0.5f, t != 7};
}

Tensor state_of_step(int t, const OptimizerConfig& c, const ExecContext& ctx) {
  const Step s = step_at(t, c);
  StepState state;
  state.step = static_cast<std::uint32_t>(t), state.lr = s.lr, state.clip = s.clip, state.decay_scale = s.decay,
  state.accepted = s.accepted;
  std::vector<std::uint8_t> bytes(sizeof state);
  std::memcpy(bytes.data(), &state, sizeof state);
  return from_host(bytes, ctx.stream);
}

void fill_gradients(const Model& m, int t, const ExecContext& ctx) {
  const Tensor& g = m.params.gradients;
  copy(g, make_tensor(g.shape(), g.dtype(), random_values(str("gradient", t), g.numel()), ctx), ctx.stream);
}

// Returns the values after `steps` steps, by name.
std::map<std::string, Matrix> trained(const OptimizerConfig& config, const ParamTypes& types, const ExecContext& ctx,
                                      int steps = 20) {
  Model m(config, types, ctx);
  Optimizer optimizer(config, m.shard, 3, ctx);
  for (int t = 0; t < steps; ++t) {
    optimizer.begin_step();
    fill_gradients(m, t, ctx);
    optimizer.update(state_of_step(t, config, ctx), ctx);
  }
  optimizer.wait_for_copies(ctx.stream);
  std::map<std::string, Matrix> all;
  for (const Param* p : m.params.layout())
    for (const LogicalParam& part : p->parts) all[part.name] = m.read(m.params.values, part.name, ctx);
  return all;
}

std::map<std::string, Reference> reference(const OptimizerConfig& config, const ParamTypes& types,
                                           const ExecContext& ctx, int steps = 20) {
  Model m(config, types, ctx);
  std::map<std::string, Reference> all;
  for (const std::string& name : kMatrices) {
    const Matrix value = m.read(m.params.values, name, ctx);
    all[name] = {value, {value.rows, value.columns, Values(value.v.size())}};
  }
  for (int t = 0; t < steps; ++t) {
    fill_gradients(m, t, ctx);
    const Step s = step_at(t, config);
    for (auto& [name, r] : all)
      if (s.accepted)
        r.step(m.read(m.params.gradients, name, ctx).v, static_cast<double>(s.clip), static_cast<double>(s.lr),
               config.weight_decay * static_cast<double>(s.decay), config.muon);
  }
  return all;
}

OptimizerConfig config_of(bool nesterov = true) {
  OptimizerConfig c;
  c.kind = "muon";
  c.lr = 0.02;
  c.weight_decay = 0.3;
  c.muon.nesterov = nesterov;
  return c;
}

// Errors are relative to the change of the values. In f32, Newton-Schulz is exact to about 2e-6 (five iterations of
// GEMMs with rounded sums). In bf16 it is exact to 1.6 % (the same in float64 with every GEMM rounded), and a step's
// error is as random as its gradient.
void expect_reference(const OptimizerConfig& config, const ParamTypes& types, const ExecContext& ctx, double bound) {
  const auto got = trained(config, types, ctx), before = trained(config, types, ctx, 0);
  for (const auto& [name, want] : reference(config, types, ctx)) {
    const double way = distance(want.value.v, before.at(name).v);
    EXPECT_GT(way, 0.01 * norm(want.value.v)) << name;
    EXPECT_LT(distance(got.at(name).v, want.value.v), bound * way) << name;
  }
}

TEST(Muon, MatchesFloat64ForTwentySteps) {
  for (const int threads : {1, 3})
    for (const bool nesterov : {true, false}) expect_reference(config_of(nesterov), {}, cpu(threads), 1e-5);
  OptimizerConfig other = config_of();
  other.muon.iterations = 3;
  other.muon.momentum = 0.5;
  expect_reference(other, {}, cpu(2), 1e-5);
}

TEST(Muon, LeavesTablesAndVectorsToAdamW) {
  const ExecContext ctx = cpu(2);
  OptimizerConfig adamw = config_of();
  adamw.kind = "adamw";
  const auto muon = trained(config_of(), {}, ctx), all = trained(adamw, {}, ctx);
  for (const char* name : {"norm", "table"}) EXPECT_EQ(muon.at(name).v, all.at(name).v) << name;
  EXPECT_NE(muon.at("q").v, all.at("q").v);
  OptimizerConfig some = config_of();
  some.groups = {{.match = {"k", "wide"}, .kind = "adamw"}};
  const auto mixed = trained(some, {}, ctx);
  for (const char* name : {"norm", "table", "k", "wide"}) EXPECT_EQ(mixed.at(name).v, all.at(name).v) << name;
  for (const char* name : {"q", "v", "other", "tall"}) EXPECT_EQ(mixed.at(name).v, muon.at(name).v) << name;
}

// A group's learning rate and decay apply to its matrices, but not to other matrices of the same size.
TEST(Muon, UsesTheRatesOfGroups) {
  const ExecContext ctx = cpu(1);
  OptimizerConfig all = config_of(), rates = config_of(), decays = config_of();
  all.weight_decay = rates.weight_decay = decays.weight_decay = 0;
  rates.groups = {{.match = {"v", "other"}, .lr = 0.08}};
  decays.groups = {{.match = {"v", "other"}, .weight_decay = 0.5}};
  const auto plain = trained(all, {}, ctx, 1), before = trained(all, {}, ctx, 0);
  const auto quick = trained(rates, {}, ctx, 1), decayed = trained(decays, {}, ctx, 1);
  const Step s = step_at(0, all);
  for (const char* name : {"v", "other"}) {
    const double way = distance(plain.at(name).v, before.at(name).v);
    EXPECT_NEAR(distance(quick.at(name).v, before.at(name).v), 4 * way, 1e-3 * way) << name;
    const double decay = static_cast<double>(s.lr) * 0.5 * static_cast<double>(s.decay) * norm(before.at(name).v);
    EXPECT_NEAR(distance(decayed.at(name).v, plain.at(name).v), decay, 1e-3 * decay) << name;
  }
  for (const auto& after : {quick, decayed}) EXPECT_EQ(after.at("wide").v, plain.at("wide").v) << "as large as `other`";
}

TEST(Muon, UpdatesAreAsLargeAsThoseOfAdamW) {
  const ExecContext ctx = cpu(1);
  OptimizerConfig c = config_of();
  c.weight_decay = 0;
  const auto after = trained(c, {}, ctx, 1), before = trained(c, {}, ctx, 0);
  for (const char* name : {"q", "tall", "wide"}) {
    const double rms =
        distance(after.at(name).v, before.at(name).v) / std::sqrt(static_cast<double>(before.at(name).v.size())) / c.lr;
    EXPECT_GT(rms, 0.12) << name;
    EXPECT_LT(rms, 0.28) << name;
  }
}

TEST(Muon, ChunksFromTheHostGiveTheSameBits) {
  const ExecContext ctx = cpu(2);
  OptimizerConfig c = config_of();
  const auto here = trained(c, {}, ctx);
  for (const StateOffload offload : {StateOffload::states, StateOffload::all, StateOffload::weights})
    for (const std::int64_t bytes : {64, 5000, 12000, 1 << 26})
      for (const std::int64_t staging : {std::int64_t{0}, 4 * bytes}) {
        c.offload = offload;
        c.offload_chunk_bytes = bytes;
        c.offload_staging_bytes = staging;
        for (const auto& [name, value] : trained(c, {}, ctx)) EXPECT_EQ(value.v, here.at(name).v) << name << bytes;
        Model m(c, {}, ctx);
        const Optimizer optimizer(c, m.shard, 3, ctx);
        EXPECT_EQ(staging_bytes(c, m.shard, {}), optimizer.device_bytes());
        EXPECT_EQ(state_bytes(c, m.shard), optimizer.state_bytes());
      }
}

class GpuMuon : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(GpuMuon, MatchesFloat64ForTwentySteps) {
  const ExecContext ctx{Stream::create({Backend::cuda, 0})};
  for (const bool nesterov : {true, false}) {
    expect_reference(config_of(nesterov), {}, ctx, 0.03);
    expect_reference(config_of(nesterov), {.weights = DType::bf16}, ctx, 0.03);
    expect_reference(config_of(nesterov), {.gradients = DType::bf16}, ctx, 0.03);
  }
}

// In bf16, values of about 0.3 are rounded stochastically to steps of 2^-9. With a learning rate of 0.5 such a step is
// 1 % of their change.
TEST_F(GpuMuon, RoundsStochastically) {
  const ExecContext ctx{Stream::create({Backend::cuda, 0})};
  OptimizerConfig c = config_of();
  c.moments = MomentType::bf16;
  expect_reference(c, {}, ctx, 0.04);
  c.master = DType::bf16;
  c.lr = 0.5;
  expect_reference(c, {.master = DType::bf16, .weights = DType::bf16, .gradients = DType::bf16}, ctx, 0.06);
}

TEST_F(GpuMuon, HasTheSameBitsEveryTimeAndFromTheHost) {
  const ExecContext ctx{Stream::create({Backend::cuda, 0})};
  OptimizerConfig c = config_of();
  const ParamTypes copies{.weights = DType::bf16};
  const auto first = trained(c, copies, ctx);
  for (const StateOffload offload : {StateOffload::none, StateOffload::states, StateOffload::all}) {
    c.offload = offload;
    c.offload_chunk_bytes = 5000;
    for (const auto& [name, value] : trained(c, copies, ctx)) EXPECT_EQ(value.v, first.at(name).v) << name;
  }
}

}  // namespace
}  // namespace ring::test
