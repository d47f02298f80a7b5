// Attention over sequences in chunks that several ranks share (train.sequence_chunk with parallel.cp), against its
// definition in float64.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "core/host_tensor.h"
#include "parallel/context/chunked_context.h"
#include "tests/cases/attention_oracle.h"
#include "tests/comm/ranks.h"
#include "tests/parallel/context_problem.h"

namespace ring::test {
namespace {

using Floats = std::vector<float>;
constexpr std::int64_t kSharedHeads = 8, kSharedKvHeads = 4, kSharedDim = 8, kFirstRow = 1000;
constexpr float kSharedScale = 0.4f;

struct SharedProblem {
  Pattern pattern;
  std::vector<Span> documents;
  std::int64_t tokens;
  OracleDropout dropout{.first_row = kFirstRow};

  Floats numbers(std::uint32_t which, std::int64_t heads) const {
    Floats v(static_cast<std::size_t>(tokens * heads * kSharedDim));
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = random_normal({11, which, 0}, i);
    return v;
  }
  Floats q() const { return numbers(0, kSharedHeads); }
  Floats k() const { return numbers(1, kSharedKvHeads); }
  Floats v() const { return numbers(2, kSharedKvHeads); }
  Floats dout() const { return numbers(3, kSharedHeads); }
};

// [N,H,D] each.
template <class T>
struct AttentionTensors {
  std::vector<T> out, dq, dk, dv;
  explicit AttentionTensors(std::int64_t tokens)
      : out(static_cast<std::size_t>(tokens * kSharedHeads * kSharedDim)),
        dq(out.size()),
        dk(static_cast<std::size_t>(tokens * kSharedKvHeads * kSharedDim)),
        dv(dk.size()) {}
};

// Adds one query of a head: P = m exp(score - lse), out = sum of F P v, dP = F dout.v, dS = P (dP - dout.out), where m
// is how often a pair counts and F its dropout factor.
void add_row_of_head(const SharedProblem& p, const Values& q, const Values& k, const Values& v, const Values& dout,
                     const Span& document, std::int64_t head, std::int32_t row, AttentionTensors<double>& r) {
  const std::int64_t kv = head / (kSharedHeads / kSharedKvHeads);
  const auto at_query = [&](auto& x) { return x.data() + (row * kSharedHeads + head) * kSharedDim; };
  const auto at_key = [&](auto& x, std::int64_t u) { return x.data() + (u * kSharedKvHeads + kv) * kSharedDim; };
  const auto position = [&](std::int32_t n) { return n - document.first + document.position; };
  struct Key {
    std::int64_t row;
    double p, factor;
  };
  std::vector<Key> keys;
  double sum = 0;
  for (std::int32_t u = document.first; u <= row; ++u) {
    const int m = multiplicity(p.pattern, static_cast<std::int32_t>(kv), position(row), position(u), document.position);
    if (m == 0) continue;
    const double score = static_cast<double>(kSharedScale) * dot(at_query(q), at_key(k, u), kSharedDim);
    keys.push_back({u, m * std::exp(score), p.dropout.factor(row, head, position(u))});
    sum += keys.back().p;
  }
  for (Key& key : keys) {
    key.p /= sum;
    for (int i = 0; i < kSharedDim; ++i) at_query(r.out)[i] += key.factor * key.p * at_key(v, key.row)[i];
  }
  const double mean = dot(at_query(dout), at_query(r.out), kSharedDim);
  for (const Key& key : keys) {
    const double dp = key.factor * dot(at_query(dout), at_key(v, key.row), kSharedDim);
    const double ds = key.p * (dp - mean) * static_cast<double>(kSharedScale);
    for (int i = 0; i < kSharedDim; ++i) {
      at_query(r.dq)[i] += ds * at_key(k, key.row)[i];
      at_key(r.dk, key.row)[i] += ds * at_query(q)[i];
      at_key(r.dv, key.row)[i] += key.factor * key.p * at_query(dout)[i];
    }
  }
}

AttentionTensors<double> by_definition(const SharedProblem& p) {
  const auto doubles = [](const Floats& x) { return Values(x.begin(), x.end()); };
  const Values q = doubles(p.q()), k = doubles(p.k()), v = doubles(p.v()), dout = doubles(p.dout());
  AttentionTensors<double> r(p.tokens);
  for (const Span& d : p.documents)
    for (std::int64_t head = 0; head < kSharedHeads; ++head)
      for (std::int32_t row = d.first; row < d.first + d.count; ++row)
        add_row_of_head(p, q, k, v, dout, d, head, row, r);
  return r;
}

// One rank, or the only one. Computes its rows of each chunk.
class SharingRank {
 public:
  SharingRank(const SharedProblem& p, const ContextLayout& layout, Communicator* comm, bool on_host,
              AttentionTensors<float>& results)
      : p_(p),
        layout_(layout),
        rank_(comm ? comm->rank() : 0),
        slices_(slices_of_parts(layout, comm ? comm->size() : 1, 1)),
        shared_(comm != nullptr),
        chunked_(ctx_, on_host ? std::size_t{1} << 30 : 0, comm),
        results_(results) {}

  void run() {
    for (int chunk = 0; chunk + 1 < layout_.ranks(); ++chunk) visit(chunk, ChunkedContext::Keep::for_backward, false);
    for (int chunk = layout_.ranks(); chunk-- > 0;) visit(chunk, ChunkedContext::Keep::nothing, true);
  }

 private:
  std::shared_ptr<const ContextShards> shards(int chunk) const {
    const auto chunks = std::make_shared<const ContextShards>(layout_.shards(chunk, 1, p_.documents));
    if (!shared_) return chunks;
    auto s = std::make_shared<ContextShards>(slices_[static_cast<std::size_t>(chunk)].shards(rank_, 1, {}));
    s->chunks = chunks;
    return s;
  }
  // Returns this rank's rows of a tensor [N,heads,D].
  Tensor rows(const Floats& all, std::int64_t heads) const {
    const Tensor t = ctx_.empty({count_, heads, kSharedDim});
    std::copy_n(all.data() + first_ * heads * kSharedDim, t.numel(), t.data<float>());
    return t;
  }
  void store(Floats& all, const Tensor& t) const {
    std::copy_n(t.data<float>(), t.numel(), all.data() + first_ * t.dim(1) * kSharedDim);
  }

  void visit(int chunk, ChunkedContext::Keep keep, bool backward) {
    const ContextLayout::Chunk mine = slices_[static_cast<std::size_t>(chunk)].chunks(rank_).front();
    first_ = layout_.chunks(chunk).front().begin + mine.begin, count_ = mine.end - mine.begin;
    const auto of_chunk = shards(chunk);
    const ChunkedContext::Chunk computing(&chunked_, of_chunk, keep);
    ContextExchange& layer = chunked_.of_layer(1);
    Attention a{.q = rows(p_.q(), kSharedHeads),
                .k = rows(p_.k(), kSharedKvHeads),
                .v = rows(p_.v(), kSharedKvHeads),
                .scale = kSharedScale};
    a.pattern = p_.pattern;
    if (p_.dropout.rate > 0) a.dropout = {p_.dropout.rate, p_.dropout.site, kFirstRow + first_};
    a.out = ctx_.empty(a.q.shape()), a.lse = ctx_.empty({kSharedHeads, count_});
    layer.forward({a}, of_chunk, ctx_, {});
    store(results_.out, a.out);
    if (!backward) return;
    AttentionBackward b{
        .q = a.q, .k = a.k, .v = a.v, .out = a.out, .lse = a.lse, .dout = rows(p_.dout(), kSharedHeads)};
    b.dq = ctx_.empty(a.q.shape()), b.dk = ctx_.empty(a.k.shape()), b.dv = ctx_.empty(a.v.shape());
    b.scale = a.scale, b.pattern = a.pattern, b.dropout = a.dropout;
    layer.backward({b}, of_chunk, ctx_);
    store(results_.dq, b.dq), store(results_.dk, b.dk), store(results_.dv, b.dv);
  }

  const ExecContext ctx_{Stream::cpu(1)};
  const SharedProblem& p_;
  const ContextLayout& layout_;
  const int rank_;
  const std::vector<ContextLayout> slices_;
  const bool shared_;
  ChunkedContext chunked_;
  AttentionTensors<float>& results_;  // each rank writes to its rows alone
  std::int64_t first_ = 0, count_ = 0;
};

using SharedProblems = std::vector<std::pair<std::string, SharedProblem>>;

std::vector<AttentionTensors<float>> in_chunks_on_ranks(const SharedProblems& problems, int chunks, int ranks,
                                                        bool on_host) {
  std::vector<AttentionTensors<float>> results;
  for (const auto& [name, p] : problems) results.emplace_back(p.tokens);
  const auto run_all = [&](Communicator* comm) {
    for (std::size_t i = 0; i < problems.size(); ++i) {
      const SharedProblem& p = problems[i].second;
      const ContextLayout layout(ContextLayoutKind::contiguous, p.tokens, chunks,
                                 context_align({p.pattern}, p.tokens, chunks));
      SharingRank(p, layout, comm, on_host, results[i]).run();
    }
  };
  if (ranks == 1) {
    run_all(nullptr);
  } else {
    EXPECT_EQ(joined(run_ranks(ranks, [&](Communicator& comm) { run_all(&comm); })), "");
  }
  return results;
}

// 256 tokens: four chunks have long branches of their own, three are not equally long.
SharedProblems causal_problems(float dropout) {
  SharedProblems all;
  for (const auto& [name, pattern] : context_patterns()) {
    if (!pattern.causal) continue;
    for (const bool packed : {false, true}) {
      const std::vector<std::int32_t> lengths = {70, 1, -9, 100};
      SharedProblem p{pattern, documents_of(256, 1, packed ? lengths : std::vector<std::int32_t>{}), 256};
      p.dropout.rate = dropout;
      all.emplace_back(name + (packed ? "_packed" : ""), p);
    }
  }
  return all;
}

double distance_from(const Floats& got, const Values& want) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += want[i] * want[i];
  }
  return std::sqrt(difference / norm);
}

void expect_definition(const AttentionTensors<float>& got, const AttentionTensors<double>& want) {
  constexpr double kOut = 1e-6, kGradient = 2e-6;  // of sums in f32
  EXPECT_LE(distance_from(got.out, want.out), kOut);
  EXPECT_LE(distance_from(got.dq, want.dq), kGradient);
  EXPECT_LE(distance_from(got.dk, want.dk), kGradient);
  EXPECT_LE(distance_from(got.dv, want.dv), kGradient);
}

class DistSharedChunks : public testing::TestWithParam<float> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(Dropout, DistSharedChunks, testing::Values(0.0f, 0.3f),
                         [](const auto& info) { return info.param > 0 ? "dropout" : "plain"; });

// Each head is computed by one rank from the rows of the whole chunk, so ranks do not change the rounding, and masks
// are the same as in one process.
TEST_P(DistSharedChunks, EqualTheDefinitionWithTheBitsOfOneProcess) {
  const SharedProblems problems = causal_problems(GetParam());
  for (const int chunks : {3, 4}) {
    const auto one = in_chunks_on_ranks(problems, chunks, 1, false);
    for (const int ranks : {2, 4}) {
      const auto shared = in_chunks_on_ranks(problems, chunks, ranks, ranks == 2);
      for (std::size_t i = 0; i < problems.size(); ++i) {
        SCOPED_TRACE(str(problems[i].first, ", ", chunks, " chunks, ", ranks, " ranks"));
        if (ranks == 2) expect_definition(shared[i], by_definition(problems[i].second));
        EXPECT_EQ(shared[i].out, one[i].out);
        EXPECT_EQ(shared[i].dq, one[i].dq);
        EXPECT_EQ(shared[i].dk, one[i].dk);
        EXPECT_EQ(shared[i].dv, one[i].dv);
      }
    }
  }
}

}  // namespace
}  // namespace ring::test
