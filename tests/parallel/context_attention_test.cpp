// Attention over sequences that are sharded among ranks, forward and backward, against one process that holds
// everything.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "autograd/ops.h"
#include "core/philox.h"
#include "kernels/tuning.h"
#include "parallel/context/exchange.h"
#include "tests/comm/ranks.h"
#include "tests/parallel/context_problem.h"

namespace ring {

static void PrintTo(ContextLayoutKind kind, std::ostream* out) { *out << to_string(kind); }

namespace {

using test::ContextCase;

struct Heads {
  std::int64_t query = 8, key = 4, dim = 8;
  float dropout = 0, soft_cap = 0;
  bool sinks = false;
};

// Elements by rows of the micro-batch. random_floats(which, n): 0 gives the input, 1 the gradient of the output.
using Floats = std::vector<float>;
Floats random_floats(std::uint32_t which, std::int64_t n) {
  Floats v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = random_normal({11, which, 0}, i);
  return v;
}

// Changes one token by a large amount, so that the means of its block change, too.
Floats inputs_of(const ContextCase& c, std::int64_t width) {
  Floats v = random_floats(0, c.tokens() * width);
  for (std::int64_t i = 0; c.changed >= 0 && i < width; ++i)
    v[static_cast<std::size_t>(c.changed * width + i)] += i % 2 ? 30.0f : -30.0f;
  return v;
}

struct ContextResults {
  Floats out, gradient;
  Floats pooling{}, gates{};    // gradients of learned pools, summed over ranks
  Floats sinks{};               // gradient of the sinks, summed over ranks
  std::int64_t bytes_sent = 0;  // over all ranks, forward and backward
  double pairs = 0;             // number of pairs that rank 0 reports
};

// Copies the rows that a rank holds out of a whole matrix, and back.
struct Rows {
  const ContextShards& shards;
  int rank;

  template <class Fn>
  void each(const Fn& fn) const {
    for (const LocalRows& h : shards.rows_by_rank[static_cast<std::size_t>(rank)])
      for (std::int32_t i = 0; i < h.count; ++i) fn(h.first + i, h.global + i);
  }
  Tensor take_rows(const Floats& all, std::int64_t width, const ExecContext& ctx) const {
    const Tensor t = ctx.empty({shards.tokens(rank), width});
    each([&](std::int64_t at, std::int64_t row) {
      std::copy_n(all.data() + row * width, width, t.data<float>() + at * width);
    });
    return t;
  }
  void put(Floats& all, const Tensor& t, std::int64_t width) const {
    each([&](std::int64_t at, std::int64_t row) {
      std::copy_n(t.data<float>() + at * width, width, all.data() + row * width);
    });
  }
};

Tensor positions_of(const ContextCase& c, const ExecContext& ctx) {
  const Tensor t = ctx.zeros({c.tokens()}, DType::i32);
  for (const Span& d : c.documents)
    for (std::int32_t i = 0; i < d.count; ++i) t.data<std::int32_t>()[d.first + i] = i;
  return t;
}

// Adds learned weights and gates of pools of several sizes; gates depend on the row's position.
void learn_pools(SelfAttention& o, const Sequences& seqs, const ExecContext& ctx) {
  const std::int64_t rows = seqs.positions.numel();
  Floats gates;
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t h = 0; h < o.heads; ++h)
      gates.push_back(static_cast<float>((seqs.positions.data<std::int32_t>()[n] * 7 + h * 3) % 11 - 5) / 3);
  const Floats pooling = random_floats(2, pool_weights_numel(o.attention.pattern, o.kv_heads, o.head_dim));
  o.pooling = {from_host(pooling, ctx.stream), std::make_shared<GradSlot>()};
  o.pool_gates = {from_host(gates, ctx.stream).view({rows, o.heads}), std::make_shared<GradSlot>()};
}

struct OpResults {
  Tensor out, pooling, gates;  // gradients of learned pools, if there are any
  Tensor sinks;                // gradient of the sinks; undefined without sinks
};

// Runs the op, with rotation, on qkv [N, (Hq + 2 Hk) D].
OpResults run_op(Run& run, const Var& qkv, const Sequences& seqs, const Pattern& pattern, const Heads& heads,
                 const Tensor& dout) {
  SelfAttention o{.heads = heads.query,
                  .kv_heads = heads.key,
                  .head_dim = heads.dim,
                  .attention = {0.4f, heads.soft_cap, pattern, heads.dropout, 5}};
  Floats frequencies;
  for (std::int64_t i = 0; i < heads.dim / 2; ++i) frequencies.push_back(std::pow(0.1f, static_cast<float>(i)));
  o.inv_freq = from_host(frequencies, run.ctx.stream);
  if (pattern.pools.size() > 1) learn_pools(o, seqs, run.ctx);
  if (heads.sinks) o.sinks = {from_host(random_floats(3, heads.query), run.ctx.stream), std::make_shared<GradSlot>()};
  const Var y = self_attention(run, qkv, seqs, o);
  run.tape->backward(y.slot, dout, run.ctx);
  const auto gradient = [](const Var& v) { return v.slot ? v.slot->grad : Tensor{}; };
  return {y.value, gradient(o.pooling), gradient(o.pool_gates), gradient(o.sinks)};
}

std::int64_t qkv_width(const Heads& h) { return (h.query + 2 * h.key) * h.dim; }

ContextResults on_one(const ContextCase& c, const Heads& heads) {
  const ExecContext ctx{Stream::cpu(1)};
  std::vector<std::int32_t> starts, lengths;
  for (const Span& d : c.documents) starts.push_back(d.first), lengths.push_back(d.count);
  const Sequences seqs = Sequences::packed(starts, lengths, c.length, positions_of(c, ctx));
  const std::int64_t width = qkv_width(heads), wide = heads.query * heads.dim;
  Tape tape;
  Run run{ctx, &tape};
  const Rows all{ContextLayout(ContextLayoutKind::contiguous, c.length, 1).shards(0, c.rows, c.documents), 0};
  const Var qkv{all.take_rows(inputs_of(c, width), width, ctx), std::make_shared<GradSlot>()};
  const OpResults r =
      run_op(run, qkv, seqs, c.pattern, heads, all.take_rows(random_floats(1, c.tokens() * wide), wide, ctx));
  const auto floats = [&](const Tensor& t) {
    return t.defined() ? to_host<float>(t.view({-1}), ctx.stream) : Floats{};
  };
  return {floats(r.out), floats(qkv.slot->grad), floats(r.pooling), floats(r.gates), floats(r.sinks)};
}

// Runs this rank's share of the op.
void on_rank(const ContextCase& c, const Heads& heads, const ContextLayout& layout, ContextParallel& exchange, int rank,
             ContextResults& results, std::shared_ptr<Tuning> tuning = nullptr) {
  ExecContext ctx{Stream::cpu(1)};
  ctx.tuning = std::move(tuning);
  const auto shards = std::make_shared<const ContextShards>(layout.shards(rank, c.rows, c.documents));
  const Rows mine{*shards, rank};
  const std::int64_t width = qkv_width(heads), wide = heads.query * heads.dim;
  const Tensor positions = ctx.empty({shards->tokens(rank)}, DType::i32), everywhere = positions_of(c, ctx);
  const Tensor rows = ctx.empty(positions.shape(), DType::i32);
  mine.each([&](std::int64_t at, std::int64_t row) {
    positions.data<std::int32_t>()[at] = everywhere.data<std::int32_t>()[row];
    rows.data<std::int32_t>()[at] = static_cast<std::int32_t>(row);
  });
  Tape tape;
  Run run{ctx, &tape};
  run.layout.cp = &exchange;
  run.layout.rows = rows;
  const Var qkv{mine.take_rows(inputs_of(c, width), width, ctx), std::make_shared<GradSlot>()};
  const OpResults r = run_op(run, qkv, Sequences::sharded(shards, positions), c.pattern, heads,
                             mine.take_rows(random_floats(1, c.tokens() * wide), wide, ctx));
  mine.put(results.out, r.out, wide);
  mine.put(results.gradient, qkv.slot->grad, width);
  if (rank == 0) results.pairs = exchange.pairs(shards, c.pattern, heads.key);
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto add = [](Floats& sum, const Tensor& t) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += t.data<float>()[i];
  };
  add(results.sinks, r.sinks);
  if (!r.pooling.defined()) return;
  mine.put(results.gates, r.gates, heads.query);
  add(results.pooling, r.pooling);
}

double distance(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

using MakeExchange = std::function<std::unique_ptr<ContextParallel>(const ContextRanks&)>;

// Returns the number of ranks per node in tests with nodes.
int test_ranks_on_node(int ranks) { return ranks == 4 ? 2 : 1; }

// Runs the cases one after the other on the same ranks. per_node: ranks per node; 0 means test_ranks_on_node().
std::vector<ContextResults> on_ranks(const std::vector<ContextCase>& cases, const Heads& heads, ContextLayoutKind kind,
                                     int ranks, const MakeExchange& make,
                                     const std::vector<std::shared_ptr<Tuning>>& tuning = {}, int per_node = 0) {
  std::vector<ContextResults> results;
  for (const ContextCase& c : cases) {
    results.push_back({Floats(static_cast<std::size_t>(c.tokens() * heads.query * heads.dim), NAN),
                       Floats(static_cast<std::size_t>(c.tokens() * qkv_width(heads)), NAN)});
    if (heads.sinks) results.back().sinks.resize(static_cast<std::size_t>(heads.query));
    if (c.pattern.pools.size() < 2) continue;
    results.back().pooling.resize(static_cast<std::size_t>(pool_weights_numel(c.pattern, heads.key, heads.dim)));
    results.back().gates.resize(static_cast<std::size_t>(c.tokens() * heads.query), NAN);
  }
  std::mutex mutex;
  if (per_node == 0) per_node = test_ranks_on_node(ranks);
  const auto errors =
      test::run_ranks_on_nodes(ranks, per_node, [&](Communicator& comm, Communicator& node, Communicator& between) {
        const auto exchange = make({comm, node, between});
        for (std::size_t i = 0; i < cases.size(); ++i) {
          const std::int64_t align = context_align({cases[i].pattern}, cases[i].length, 2 * ranks);
          const std::int64_t before = exchange->bytes_sent();
          const ContextLayout layout = kind == ContextLayoutKind::balanced
                                           ? ContextLayout({cases[i].pattern}, heads.key, cases[i].length, ranks)
                                           : ContextLayout(kind, cases[i].length, ranks, align);
          on_rank(cases[i], heads, layout, *exchange, comm.rank(), results[i],
                  tuning.empty() ? nullptr : tuning[static_cast<std::size_t>(comm.rank())]);
          const std::lock_guard lock(mutex);
          results[i].bytes_sent += exchange->bytes_sent() - before;
        }
        comm.barrier().synchronize();
      });
  EXPECT_EQ(test::joined(errors), "");
  return results;
}

const std::map<std::string, MakeExchange>& schedules() {
  static const std::map<std::string, MakeExchange> all = {
      {"ring", [](const ContextRanks& r) { return make_ring(r.all, {}); }},
      {"ring_by_node",
       [](const ContextRanks& r) { return make_ring(r.all, {.per_node = test_ranks_on_node(r.all.size())}); }},
      {"ring_by_heads", [](const ContextRanks& r) { return make_ring(r.all, {.message_bytes = 1}); }},
      {"gather", [](const ContextRanks& r) { return make_gather(r.all); }},
      {"all_to_all", [](const ContextRanks& r) { return make_all_to_all(r.all); }},
      {"hybrid", [](const ContextRanks& r) { return make_hybrid(r, {}); }}};
  return all;
}

// Bounds for f32 sums in a different order: relative to the norm, for any number of ranks.
constexpr double kOut = 1e-6, kGradient = 2e-6;

class DistContext : public testing::TestWithParam<std::tuple<std::string, int, ContextLayoutKind>> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
std::string name_of(const testing::TestParamInfo<DistContext::ParamType>& info) {
  const auto& [schedule, ranks, kind] = info.param;
  return str(schedule, "_", ranks, "_", to_string(kind));
}
INSTANTIATE_TEST_SUITE_P(Schedules, DistContext,
                         testing::Combine(testing::Values("ring", "ring_by_node", "ring_by_heads", "gather",
                                                          "all_to_all", "hybrid"),
                                          testing::Values(2, 3, 4),
                                          testing::Values(ContextLayoutKind::zigzag, ContextLayoutKind::contiguous)),
                         name_of);

TEST_P(DistContext, EveryPatternEqualsOneProcess) {
  const auto& [schedule, ranks, kind] = GetParam();
  const std::vector<ContextCase> cases = test::context_cases();
  for (const float dropout : {0.0f, 0.3f}) {
    if (ranks == 3 && dropout > 0) continue;
    const Heads heads = ranks == 3 ? Heads{6, 3, 8, dropout} : Heads{.dropout = dropout};
    const std::vector<ContextResults> got = on_ranks(cases, heads, kind, ranks, schedules().at(schedule));
    for (std::size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(str(cases[i].name, ", dropout ", dropout));
      const ContextResults want = on_one(cases[i], heads);
      EXPECT_LE(distance(got[i].out, want.out), kOut);
      EXPECT_LE(distance(got[i].gradient, want.gradient), kGradient);
    }
  }
}

class DistContextCases : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

TEST_F(DistContextCases, SoftCapsAndSinksEqualOneProcess) {
  const std::vector<ContextCase> cases = {
      {"dense", {}, 150, 1, test::documents_of(150, 1, {60, 90})},
      {"window", {.branches = {{.window = 20}}}, 150, 1, test::documents_of(150, 1, {60, 90})}};
  const Heads heads{.soft_cap = 0.5f, .sinks = true};
  for (const auto& [name, make] : schedules()) {
    const std::vector<ContextResults> got = on_ranks(cases, heads, ContextLayoutKind::zigzag, 2, make);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(name + " " + cases[i].name);
      const ContextResults want = on_one(cases[i], heads);
      EXPECT_GT(distance(want.out, on_one(cases[i], {}).out), 1e-2);
      EXPECT_LE(distance(got[i].out, want.out), kOut);
      EXPECT_LE(distance(got[i].gradient, want.gradient), kGradient);
      EXPECT_LE(distance(got[i].sinks, want.sinks), kGradient);
    }
  }
}

// Fewer tokens than chunks, and rows in which a rank holds only padding.
TEST_F(DistContextCases, EmptyShardsAndShardsOfPaddingEqualOneProcess) {
  std::vector<ContextCase> cases;
  for (const auto& [name, pattern] : test::context_patterns()) {
    cases.push_back({name + "_short", pattern, 3, 2, test::documents_of(3, 2, {})});
    cases.push_back({name + "_padding", pattern, 200, 1, test::documents_of(200, 1, {30, -120, 20, -30})});
    cases.push_back({name + "_nothing", pattern, 64, 1, test::documents_of(64, 1, {-64})});
  }
  for (const auto& [name, make] : schedules())
    for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous}) {
      const std::vector<ContextResults> got = on_ranks(cases, {}, kind, 4, make);
      for (std::size_t i = 0; i < cases.size(); ++i) {
        SCOPED_TRACE(name + " " + cases[i].name);
        const ContextResults want = on_one(cases[i], {});
        if (cases[i].documents.empty()) {
          EXPECT_EQ(got[i].out, want.out);
          EXPECT_EQ(got[i].gradient, want.gradient);
        } else {
          EXPECT_LE(distance(got[i].out, want.out), kOut);
          EXPECT_LE(distance(got[i].gradient, want.gradient), kGradient);
        }
      }
    }
}

// Documents of very different lengths, which a rank holds in several parts.
TEST_F(DistContextCases, BalancedLayoutsEqualOneProcess) {
  std::vector<ContextCase> cases;
  for (const auto& [name, pattern] : test::context_patterns())
    cases.push_back({name, pattern, 420, 2, test::documents_of(420, 2, {10, 1, -9, 250, 3, -40, 20})});
  for (const auto& [name, make] : schedules())
    for (const auto& [ranks, dropout] : {std::pair{2, 0.3f}, {4, 0.0f}}) {
      const Heads heads{.dropout = dropout};
      const std::vector<ContextResults> got = on_ranks(cases, heads, ContextLayoutKind::balanced, ranks, make);
      for (std::size_t i = 0; i < cases.size(); ++i) {
        SCOPED_TRACE(str(name, " on ", ranks, " ranks, ", cases[i].name, ", dropout ", dropout));
        const ContextResults want = on_one(cases[i], heads);
        EXPECT_LE(distance(got[i].out, want.out), kOut);
        EXPECT_LE(distance(got[i].gradient, want.gradient), kGradient);
      }
    }
}

Pattern selected_blocks() {
  const BlockRule content{.kind = BlockRuleKind::content, .local = 1, .first = 1, .keep = 3};
  return test::block_sparse(64, {content, {.kind = BlockRuleKind::local_global, .local = 2}});
}
Pattern selected_by_mass() {
  return test::block_sparse(64, {{.kind = BlockRuleKind::content, .local = 1, .keep = 5, .mass = 0.55f}});
}
// Selected blocks, pools of several sizes, one of them longer than a rank's contiguous part, and both.
std::vector<Pattern> chosen_patterns(const std::string& schedule) {
  const Pattern selected = selected_blocks();
  Pattern pooled = test::window(20), dense = test::dense(), both = selected;
  pooled.pools = {8, 50, 300};
  dense.pools = {7};
  both.pools = {16};
  if (schedule == "hybrid") return {pooled, dense};  // hybrid refuses selections
  return {selected, selected_by_mass(), pooled, dense, both};
}
std::vector<ContextCase> chosen_cases(const std::string& schedule) {
  std::vector<ContextCase> cases;
  for (const Pattern& p : chosen_patterns(schedule)) {
    cases.push_back({"plain", p, 515, 2, test::documents_of(515, 2, {})});
    cases.push_back({"packed", p, 643, 2, test::documents_of(643, 2, {70, 1, -9, 350, 3, -40})});
  }
  return cases;
}

void expect_near(const ContextResults& got, const ContextResults& want) {
  EXPECT_LE(distance(got.out, want.out), kOut);
  EXPECT_LE(distance(got.gradient, want.gradient), kGradient);
  if (want.pooling.empty()) return;
  EXPECT_LE(distance(got.pooling, want.pooling), kGradient);
  EXPECT_LE(distance(got.gates, want.gates), kGradient);
}

TEST_F(DistContextCases, SelectedBlocksAndPoolsEqualOneProcess) {
  for (const auto& [name, make] : schedules())
    for (const int ranks : {2, 4})
      for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous}) {
        const std::vector<ContextCase> cases = chosen_cases(name);
        const std::vector<ContextResults> got = on_ranks(cases, {}, kind, ranks, make);
        for (std::size_t i = 0; i < cases.size(); ++i) {
          SCOPED_TRACE(str(name, " ", i, " ", cases[i].name, ", ", ranks, " ranks"));
          expect_near(got[i], on_one(cases[i], {}));
        }
      }
}

// Pools without gates or weights, of rows shorter than a pool, or of rows of which ranks hold padding or nothing.
TEST_F(DistContextCases, PoolsOfShortRowsAndOfEmptyRanksEqualOneProcess) {
  std::vector<ContextCase> cases;
  for (const std::vector<std::int32_t>& sizes : {std::vector{4}, {4, 33}}) {
    Pattern p = test::window(5);
    p.pools = sizes;
    cases.push_back({"short", p, 3, 2, test::documents_of(3, 2, {})});
    cases.push_back({"one_pool", p, 5, 1, test::documents_of(5, 1, {})});
    cases.push_back({"padding", p, 200, 2, test::documents_of(200, 2, {30, -120, 20, -30})});
  }
  for (const auto& [name, make] : schedules())
    for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous}) {
      const std::vector<ContextResults> got = on_ranks(cases, {}, kind, 4, make);
      for (std::size_t i = 0; i < cases.size(); ++i) {
        SCOPED_TRACE(name + " " + cases[i].name);
        expect_near(got[i], on_one(cases[i], {}));
      }
    }
}

// Most changes are at the ends of blocks and pools: anything that saw the whole block would change.
TEST_F(DistContextCases, SelectedBlocksAndPoolsDoNotLookAhead) {
  constexpr std::int64_t kLength = 515;
  const Heads heads;
  for (const auto& [name, make] : schedules())
    for (const Pattern& p : chosen_patterns(name)) {
      std::vector<ContextCase> cases;
      for (const std::int64_t changed : {-1, 1, 100, 128, 299, 319, 383, 447, 511})
        cases.push_back({"", p, kLength, 1, test::documents_of(kLength, 1, {}), changed});
      const std::vector<ContextResults> got = on_ranks(cases, heads, ContextLayoutKind::zigzag, 2, make);
      for (std::size_t i = 1; i < cases.size(); ++i) {
        const auto before = static_cast<std::ptrdiff_t>(cases[i].changed * heads.query * heads.dim);
        const auto first = [&](const ContextResults& r) { return Floats(r.out.begin(), r.out.begin() + before); };
        const auto last = [&](const ContextResults& r) { return Floats(r.out.begin() + before, r.out.end()); };
        EXPECT_TRUE(same_bits(first(got[i]), first(got[0]))) << name << ", " << cases[i].changed;
        EXPECT_FALSE(same_bits(last(got[i]), last(got[0]))) << name << ", " << cases[i].changed;
      }
    }
}

TEST_F(DistContextCases, BitsDoNotDependOnHowKeysAreSent) {
  std::vector<ContextCase> cases = test::context_cases();
  std::ranges::move(chosen_cases("ring"), std::back_inserter(cases));
  const auto with = [&](const RingOptions& options) {
    return on_ranks(cases, {}, ContextLayoutKind::zigzag, 3,
                    [=](const ContextRanks& r) { return make_ring(r.all, options); });
  };
  const std::vector<ContextResults> one = with({});
  for (const RingOptions& o : {RingOptions{}, {.prefetch = 0}, {.prefetch = 5}, {.message_bytes = 1}}) {
    const std::vector<ContextResults> other = with(o);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(str(cases[i].name, ", prefetch ", o.prefetch, ", messages of ", o.message_bytes));
      EXPECT_TRUE(same_bits(one[i].out, other[i].out));
      EXPECT_TRUE(same_bits(one[i].gradient, other[i].gradient));
    }
  }
}

TEST_F(DistContextCases, NodesGiveTheSameBitsTwice) {
  const std::vector<ContextCase> cases = test::context_cases();
  const auto by_node = [&] {
    return on_ranks(cases, {}, ContextLayoutKind::contiguous, 4, schedules().at("ring_by_node"));
  };
  const std::vector<ContextResults> one = by_node(), other = by_node();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_TRUE(same_bits(one[i].out, other[i].out)) << cases[i].name;
    EXPECT_TRUE(same_bits(one[i].gradient, other[i].gradient)) << cases[i].name;
  }
}

// All ranks run the schedule that rank 0 has recorded or measures, whatever other ranks have recorded.
TEST_F(DistContextCases, AllRanksUseTheMeasuredSchedule) {
  const std::vector<ContextCase> cases = {test::context_cases()[0]};
  const MakeExchange measured = [](const ContextRanks& r) { return make_measured_context(r.all, {}); };
  std::vector<std::shared_ptr<Tuning>> tuning = {std::make_shared<Tuning>(""), std::make_shared<Tuning>("")};
  const auto run = [&](const MakeExchange& make) {
    return on_ranks(cases, {}, ContextLayoutKind::contiguous, 2, make, tuning)[0];
  };
  EXPECT_LE(distance(run(measured).gradient, on_one(cases[0], {}).gradient), kGradient);
  const std::string text = tuning[0]->text();
  EXPECT_EQ(text, tuning[1]->text());
  ASSERT_EQ(text.find("\"context attention, "), 0u) << text;
  const std::string key = text.substr(1, text.find('"', 1) - 1);
  std::map<std::string, double> pairs;
  for (const char* name : {"ring", "gather", "all_to_all"}) {
    tuning[0]->record(key, name);
    tuning[1]->record(key, "ring");
    const ContextResults chosen = run(measured), want = run(schedules().at(name));
    EXPECT_TRUE(same_bits(chosen.gradient, want.gradient)) << name;
    EXPECT_EQ(chosen.bytes_sent, want.bytes_sent) << name;
    EXPECT_EQ(chosen.pairs, want.pairs) << name;
    pairs[name] = chosen.pairs;
    EXPECT_EQ(tuning[1]->text(), tuning[0]->text()) << name;
  }
  EXPECT_EQ(pairs["gather"], pairs["ring"]);
  EXPECT_GT(pairs["all_to_all"], pairs["ring"]) << "rank 0 holds the early rows in a ring";
}

TEST_F(DistContextCases, BothDirectionsShareTheMeasuredSchedule) {
  const std::vector<ContextCase> cases = {test::context_cases()[0]};
  const MakeExchange measured = [](const ContextRanks& r) { return make_measured_context(r.all, {}); };
  const std::vector<std::shared_ptr<Tuning>> tuning = {std::make_shared<Tuning>(""), std::make_shared<Tuning>("")};
  on_ranks(cases, {.dropout = 0.3f}, ContextLayoutKind::zigzag, 2, measured, tuning);
  const std::string text = tuning[0]->text();
  EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
  EXPECT_NE(text.find(", dropout\": "), std::string::npos) << text;
}

TEST_F(DistContextCases, NodesThatDoNotDivideAreRefused) {
  const auto errors = test::run_ranks(3, [&](Communicator& comm) { make_ring(comm, {.per_node = 2}); });
  for (const std::string& e : errors) EXPECT_NE(e.find("2 ranks per node"), std::string::npos) << e;
}

TEST(ContextNodes, AreFoundIfTheyHaveEqualRanks) {
  EXPECT_EQ(ranks_per_node({0, 0, 1, 1, 2, 2}), 2);
  EXPECT_EQ(ranks_per_node({5, 5, 5}), 3);
  EXPECT_EQ(ranks_per_node({0, 0, 1}), 3);
  EXPECT_EQ(ranks_per_node({0, 1, 0, 1}), 4);
  EXPECT_EQ(ranks_per_node({0, 0, 1, 1, 1, 1}), 6);
  EXPECT_EQ(ranks_per_node({3, 1, 2}), 1);
}

TEST_F(DistContextCases, LocalPatternsSendLittle) {
  constexpr std::int64_t kLength = 1024, kRanks = 4;
  const Heads heads;
  std::vector<ContextCase> cases;
  for (const Pattern& p : {test::dense(), test::window(33), test::dilated({{64, 1}, {256, 2}, {1024, 8}})})
    cases.push_back({"", p, kLength, 1, test::documents_of(kLength, 1, {})});
  const std::vector<ContextResults> got =
      on_ranks(cases, heads, ContextLayoutKind::contiguous, kRanks, schedules().at("ring"));
  // K and V are sent in the forward and in the backward, and their gradients back, all in f32 here.
  const std::int64_t row = 3 * 2 * heads.key * heads.dim * std::int64_t{sizeof(float)};
  EXPECT_EQ(got[0].bytes_sent, (1 + 2 + 3) * kLength / kRanks * row);
  EXPECT_EQ(got[1].bytes_sent, 3 * 32 * row);
  EXPECT_EQ(got[2].bytes_sent, (1 + 2 + 3) * kLength / kRanks / 8 * row);
}

// Eight ranks, as two nodes of four and as four nodes of two.
TEST_F(DistContextCases, HybridOfSeveralNodesEqualsOneProcess) {
  const std::vector<ContextCase> cases = test::context_cases();
  for (const int per_node : {2, 4})
    for (const float dropout : {0.0f, 0.3f}) {
      const auto kind = per_node == 2 ? ContextLayoutKind::zigzag : ContextLayoutKind::contiguous;
      const Heads heads{.dropout = dropout};
      const auto got = on_ranks(cases, heads, kind, 8, schedules().at("hybrid"), {}, per_node);
      for (std::size_t i = 0; i < cases.size(); ++i) {
        SCOPED_TRACE(str(cases[i].name, ", ", per_node, " ranks per node, dropout ", dropout));
        expect_near(got[i], on_one(cases[i], heads));
      }
    }
}

// Two nodes of two ranks. Between nodes, the ring sends the keys and values of the first node's half of the rows in the
// forward and in the backward, and returns their gradients. Inside a node, a rank sends half of the heads of its
// quarter of the rows: q, k, v and the output in the forward; q, k, v, the output, its gradient and all three gradients
// in the backward; and the log-sum-exp of its peer's rows and of its own.
TEST_F(DistContextCases, HybridSendsTheseBytes) {
  constexpr std::int64_t kLength = 1024, kRanks = 4, kFloat = sizeof(float);
  const Heads h;
  const std::vector<ContextCase> cases = {{"", test::dense(), kLength, 1, test::documents_of(kLength, 1, {})}};
  const auto got = on_ranks(cases, h, ContextLayoutKind::contiguous, kRanks, schedules().at("hybrid"));
  const std::int64_t between = kLength / 2 * 3 * 2 * h.key * h.dim * kFloat;
  const std::int64_t inside = kLength / 2 * (6 * (h.query + h.key) * h.dim + 2 * h.query) * kFloat;
  EXPECT_EQ(got[0].bytes_sent, between + inside);
}

TEST_F(DistContextCases, HybridRefusesPatternsThatSelect) {
  const std::vector<ContextCase> cases = {{"", selected_blocks(), 256, 1, test::documents_of(256, 1, {})}};
  const auto errors = test::run_ranks_on_nodes(2, 1, [&](Communicator& all, Communicator& node, Communicator& between) {
    ContextResults r{Floats(256 * 64), Floats(256 * 128)};
    on_rank(cases[0], {}, ContextLayout(ContextLayoutKind::contiguous, 256, 2), *make_hybrid({all, node, between}, {}),
            all.rank(), r);
  });
  for (const std::string& e : errors) EXPECT_NE(e.find("patterns that select blocks"), std::string::npos) << e;
}

TEST_F(DistContextCases, AllToAllRefusesHeadsThatDoNotDivide) {
  const ContextCase c{"", test::dense(), 12, 1, test::documents_of(12, 1, {})};
  const auto errors = test::run_ranks(3, [&](Communicator& comm) {
    ContextResults r{Floats(12 * 64), Floats(12 * 128)};
    on_rank(c, {}, ContextLayout(ContextLayoutKind::zigzag, 12, 3), *make_all_to_all(comm), comm.rank(), r);
  });
  for (const std::string& e : errors) EXPECT_NE(e.find("4 KV heads do not divide"), std::string::npos) << e;
}

TEST(ContextShardsWithoutExchange, AreRefused) {
  const ExecContext ctx{Stream::cpu(1)};
  const auto shards = std::make_shared<const ContextShards>(
      ContextLayout(ContextLayoutKind::zigzag, 8, 2).shards(0, 1, test::documents_of(8, 1, {})));
  ring::Run run{ctx};
  const Var qkv{ctx.zeros({4, 24}), nullptr};
  const Sequences seqs = Sequences::sharded(shards, ctx.zeros({4}, DType::i32));
  EXPECT_THROW(self_attention(run, qkv, seqs, {}), Error);
}

}  // namespace
}  // namespace ring
