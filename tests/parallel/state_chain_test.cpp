// Convolution and delta rule over sequences that are divided among ranks, among chunks, or among both, against one
// process that computes whole documents.

#include "parallel/context/state_chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "autograd/linear_attention.h"
#include "core/host_tensor.h"
#include "core/philox.h"
#include "kernels/linear_attention/gated_delta.h"
#include "parallel/context/chunked_context.h"
#include "parallel/context/exchange.h"
#include "tests/comm/ranks.h"
#include "tests/parallel/context_problem.h"

namespace ring::test {
namespace {

using Floats = std::vector<float>;
constexpr std::int64_t kColumns = 40, kTaps = 4, kGates = 4, kOut = 16;
constexpr GatedDeltaRule kDelta{1, 2, 12, 8, 0.3f, 1};  // kColumns columns, kGates gates, kOut outputs

struct Problem {
  std::string name;
  std::int64_t length, rows;
  std::vector<Span> documents;
  std::int64_t changed = -1;  // if >= 0, inputs from this token on are changed

  std::int64_t tokens() const { return length * rows; }

  // Returns the elements of a tensor [N,width].
  Floats numbers(std::uint32_t which, std::int64_t width) const {
    Floats v(static_cast<std::size_t>(tokens() * width));
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = random_normal({11, which, 0}, i);
    for (std::int64_t i = changed * width; changed >= 0 && i < std::ssize(v); ++i) v[static_cast<std::size_t>(i)] += 3;
    return v;
  }
  Floats x() const { return numbers(0, kColumns); }
  Floats dout() const { return numbers(2, kOut); }
  Floats gates() const {
    Floats v = numbers(1, kGates);
    for (std::size_t i = 0; i < v.size(); ++i)
      v[i] = i % kGates < 2 ? -0.05f * std::abs(v[i]) : 1 / (1 + std::exp(-v[i]));
    return v;
  }
};

Problem problem(const std::string& name, std::int64_t length, std::int64_t rows,
                const std::vector<std::int32_t>& lengths) {
  return {name, length, rows, documents_of(length, rows, lengths)};
}

// 240 rows and 24 rows divide among 2, 3 and 4 ranks. With 24 rows, parts are shorter than the convolution.
const std::vector<Problem>& problems() {
  static const std::vector<Problem> all = {problem("whole", 240, 1, {}),
                                           problem("two_rows", 240, 2, {}),
                                           problem("packed", 240, 2, {70, 1, -9, 50, 3, -40, 20}),
                                           problem("short_documents", 240, 1, {2, 2, 1, 3, 20, 1, 1, 30, 60, 60}),
                                           problem("padding", 240, 2, {-130, 30, -70}),
                                           problem("tiny", 24, 1, {}),
                                           problem("tiny_packed", 24, 2, {1, 5, 1, 8, -3})};
  return all;
}

// y [N,kOut], gradients of x, gates and of the convolution's weights, summed over ranks and chunks.
struct Results {
  Floats y, dx, dgates;
  std::vector<double> dw = std::vector<double>(static_cast<std::size_t>(kColumns * kTaps));
  std::int64_t bytes_sent = 0;

  explicit Results(const Problem& p)
      : y(static_cast<std::size_t>(p.tokens() * kOut)),
        dx(static_cast<std::size_t>(p.tokens() * kColumns)),
        dgates(static_cast<std::size_t>(p.tokens() * kGates)) {}
};

Floats weights() {
  Floats v(static_cast<std::size_t>(kColumns * kTaps));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = random_normal({11, 3, 0}, i);
  return v;
}

// A process that computes some rows of a problem at a time.
class Computer {
 public:
  Computer(const Problem& p, Results& results, const SavePolicy& saving) : p_(p), results_(results), saving_(saving) {}
  const ExecContext& ctx() const { return ctx_; }

  // rows: of the micro-batch, in the order of the process. Without `backward`, nothing is recorded.
  void compute(const std::vector<std::int32_t>& rows, const Sequences& seqs, ContextExchange* cp, bool backward) {
    Tape tape;
    Run run{.ctx = ctx_, .tape = backward ? &tape : nullptr, .saving = saving_};
    run.layout.cp = cp;
    const auto variable = [](const Tensor& t) { return Var{t, std::make_shared<GradSlot>()}; };
    const Var x = variable(take(p_.x(), kColumns, rows)), gates = variable(take(p_.gates(), kGates, rows));
    const Var w = variable(from_host(weights(), ctx_.stream));
    const Var qkv = short_conv(run, x, w, seqs, {}, kDelta.layer);
    const Var y = gated_delta(run, qkv, gates, seqs, kDelta);
    put(results_.y, y.value, rows);
    if (!backward) return;
    tape.backward(y.slot, take(p_.dout(), kOut, rows).view(y.value.shape()), ctx_);
    put(results_.dx, x.slot->grad, rows);
    put(results_.dgates, gates.slot->grad, rows);
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < results_.dw.size(); ++i)
      results_.dw[i] += static_cast<double>(w.slot->grad.data<float>()[i]);
  }

  Sequences sharded(const std::shared_ptr<const ContextShards>& shards, std::size_t rows) const {
    return Sequences::sharded(shards, ctx_.zeros({static_cast<std::int64_t>(rows)}, DType::i32));
  }

 private:
  Tensor take(const Floats& all, std::int64_t width, const std::vector<std::int32_t>& rows) const {
    const Tensor t = ctx_.empty({std::ssize(rows), width});
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::copy_n(all.data() + rows[i] * width, width, t.data<float>() + static_cast<std::int64_t>(i) * width);
    return t;
  }
  static void put(Floats& all, const Tensor& t, const std::vector<std::int32_t>& rows) {
    const std::int64_t width = t.numel() / t.dim(0);
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::copy_n(t.data<float>() + static_cast<std::int64_t>(i) * width, width, all.data() + rows[i] * width);
  }

  const ExecContext ctx_{Stream::cpu(1)};
  const Problem& p_;
  Results& results_;
  const SavePolicy saving_;
};

Results on_one(const Problem& p) {
  Results results(p);
  Computer computer(p, results, {});
  std::vector<std::int32_t> starts, lengths, rows;
  for (const Span& d : p.documents) starts.push_back(d.first), lengths.push_back(d.count);
  for (std::int32_t i = 0; i < p.tokens(); ++i) rows.push_back(i);
  const Tensor positions = computer.ctx().zeros({p.tokens()}, DType::i32);
  computer.compute(rows, Sequences::packed(starts, lengths, p.length, positions), nullptr, true);
  return results;
}

Results on_ranks(const Problem& p, const ContextLayout& layout, const SavePolicy& saving = {}) {
  Results results(p);
  std::mutex mutex;
  EXPECT_EQ(
      joined(run_ranks(layout.ranks(),
                       [&](Communicator& comm) {
                         Computer computer(p, results, saving);
                         const std::unique_ptr<ContextParallel> cp = make_gather(comm);
                         const auto shards =
                             std::make_shared<const ContextShards>(layout.shards(comm.rank(), p.rows, p.documents));
                         const auto rows = global_rows(shards->rows_by_rank[static_cast<std::size_t>(comm.rank())]);
                         computer.compute(rows, computer.sharded(shards, rows.size()), cp.get(), true);
                         const std::lock_guard lock(mutex);
                         results.bytes_sent += cp->bytes_sent();
                       })),
      "");
  return results;
}

// ranks: number of ranks among which each chunk is divided.
Results in_chunks(const Problem& p, int chunks, int ranks, bool on_host = false, std::int64_t align = 1) {
  Results results(p);
  const ContextLayout layout(ContextLayoutKind::contiguous, p.length, chunks, align);
  const auto run = [&](Communicator* comm) {
    Computer computer(p, results, {});
    ChunkedContext context(computer.ctx(), on_host ? std::size_t{1} << 30 : 0, comm);
    const int rank = comm ? comm->rank() : 0;
    const auto slices = slices_of_parts(layout, ranks, 1);
    const auto compute = [&](int chunk, ChunkedContext::Keep keep, bool backward) {
      auto shards = std::make_shared<ContextShards>(layout.shards(chunk, 1, p.documents));
      if (comm) {
        const auto whole = std::exchange(
            shards, std::make_shared<ContextShards>(slices[static_cast<std::size_t>(chunk)].shards(rank, 1, {})));
        shards->chunks = whole;
      }
      const ContextLayout::Chunk mine = slices[static_cast<std::size_t>(chunk)].chunks(rank).front();
      std::vector<std::int32_t> rows;
      for (std::int64_t i = mine.begin; i < mine.end; ++i)
        rows.push_back(static_cast<std::int32_t>(layout.chunks(chunk).front().begin + i));
      const ChunkedContext::Chunk computing(&context, shards, keep);
      computer.compute(rows, computer.sharded(shards, rows.size()), &context, backward);
    };
    for (int chunk = 0; chunk + 1 < chunks; ++chunk) compute(chunk, ChunkedContext::Keep::for_backward, false);
    for (int chunk = chunks; chunk-- > 0;) compute(chunk, ChunkedContext::Keep::nothing, true);
  };
  if (ranks == 1)
    run(nullptr);
  else
    EXPECT_EQ(joined(run_ranks(ranks, [&](Communicator& comm) { run(&comm); })), "");
  return results;
}

template <class Got, class Want>
double distance_of(const Got& got, const Want& want) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(difference / norm);
}

void expect_near(const Results& got, const Results& want) {
  constexpr double kBound = 2e-6;  // f32 sums in a different order
  EXPECT_LE(distance_of(got.y, want.y), kBound);
  EXPECT_LE(distance_of(got.dx, want.dx), kBound);
  EXPECT_LE(distance_of(got.dgates, want.dgates), kBound);
  EXPECT_LE(distance_of(got.dw, want.dw), kBound);
}

class DistStateChain : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

TEST_F(DistStateChain, RanksEqualOneProcess) {
  for (const Problem& p : problems()) {
    const Results one = on_one(p);
    for (const int ranks : {2, 3, 4})
      for (const ContextLayoutKind kind : {ContextLayoutKind::contiguous, ContextLayoutKind::zigzag}) {
        SCOPED_TRACE(str(p.name, ", ", ranks, " ranks, ", to_string(kind)));
        expect_near(on_ranks(p, {kind, p.length, ranks}), one);
      }
  }
}

TEST_F(DistStateChain, BalancedLayoutsEqualOneProcess) {
  for (const Problem& p : problems())
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(str(p.name, ", ", ranks, " ranks"));
      expect_near(on_ranks(p, ContextLayout({dense()}, 1, p.length, ranks)), on_one(p));
    }
}

// Documents that lie within the rows of one rank need no message.
TEST_F(DistStateChain, OnlyDocumentsOnSeveralRanksSendStates) {
  const ContextLayout layout(ContextLayoutKind::contiguous, 240, 4);
  EXPECT_EQ(on_ranks(problem("", 240, 1, {60, 20, 40, 60, 60}), layout).bytes_sent, 0);
  const std::int64_t state = 4 * kOut * 12, inputs = 4 * (kTaps - 1) * kColumns;  // f32
  EXPECT_EQ(on_ranks(problem("", 240, 1, {50, 20, 50, 60, 60}), layout).bytes_sent, 2 * (state + inputs));
  EXPECT_EQ(on_ranks(problem("", 240, 1, {}), layout).bytes_sent, 2 * 3 * (state + inputs));
}

TEST_F(DistStateChain, ChunksEqualOneProcess) {
  for (const Problem& p : problems()) {
    if (p.rows > 1) continue;
    const Results one = on_one(p);
    for (const int chunks : {2, 3, 7})
      for (const int ranks : {1, 2, 3}) {
        if (p.length < 4 * chunks * ranks / 3) continue;  // a rank would have no row of a chunk
        SCOPED_TRACE(str(p.name, ", ", chunks, " chunks, ", ranks, " ranks"));
        const Results chunked = in_chunks(p, chunks, ranks);
        expect_near(chunked, one);
        const Results on_host = in_chunks(p, chunks, ranks, true);
        EXPECT_EQ(on_host.y, chunked.y);
        EXPECT_EQ(on_host.dx, chunked.dx);
      }
  }
}

TEST_F(DistStateChain, PartsAtMultiplesOfTheKernelsChunkHaveTheBitsOfOneProcess) {
  const Problem p = problem("", 12 * kDeltaChunk, 1, {2 * kDeltaChunk});
  const Results one = on_one(p);
  EXPECT_EQ(on_ranks(p, {ContextLayoutKind::contiguous, p.length, 4, kDeltaChunk}).y, one.y);
  EXPECT_EQ(on_ranks(p, {ContextLayoutKind::zigzag, p.length, 3, kDeltaChunk}).y, one.y);
  EXPECT_EQ(in_chunks(p, 3, 1, false, kDeltaChunk).y, one.y);
}

TEST_F(DistStateChain, LaterTokensHaveNoEffect) {
  Problem p = problem("", 240, 1, {});
  const ContextLayout layout(ContextLayoutKind::zigzag, p.length, 4);
  const auto compute = [&](bool chunked) { return chunked ? in_chunks(p, 3, 2).y : on_ranks(p, layout).y; };
  for (const bool chunked : {false, true}) {
    p.changed = -1;
    const Floats before = compute(chunked);
    for (const std::int64_t changed : {1, 59, 60, 61, 150, 239}) {
      p.changed = changed;
      const Floats after = compute(chunked);
      const auto rows = changed * kOut;
      EXPECT_TRUE(std::equal(before.begin(), before.begin() + rows, after.begin())) << changed;
      EXPECT_FALSE(std::equal(before.begin() + rows, before.end(), after.begin() + rows)) << changed;
    }
  }
}

TEST_F(DistStateChain, RecomputationChangesNoBit) {
  const Problem& p = problems()[2];
  const ContextLayout layout(ContextLayoutKind::zigzag, p.length, 3);
  const Results saved = on_ranks(p, layout);
  for (const bool all : {false, true}) {
    const Results again = on_ranks(p, layout, {.recompute = true, .recompute_attention = all});
    EXPECT_EQ(again.y, saved.y);
    EXPECT_EQ(again.dx, saved.dx);
    EXPECT_EQ(again.dgates, saved.dgates);
  }
}

// The runs of rank 1 of two, zigzag: 60 to 119 and 120 to 179.
TEST(StateChain, PartsCoverAllRowsAndKeepWholeDocumentsTogether) {
  const ContextLayout layout(ContextLayoutKind::zigzag, 240, 2);
  const auto parts_of = [&](const std::vector<std::int32_t>& lengths) {
    std::string text;
    for (const StatePart& p : DocumentStates(nullptr).parts(layout.shards(1, 1, documents_of(240, 1, lengths)))) {
      text += str(p.starts ? ">" : "", p.first, "+", p.count, p.continues ? ">" : "", "[");
      for (const Span& d : p.documents) text += str(d.first, "+", d.count, " ");
      text += "] ";
    }
    return text;
  };
  EXPECT_EQ(parts_of({}), ">0+60>[0+60 ] >60+60>[0+60 ] ");
  EXPECT_EQ(parts_of({60, 60, 60}), "0+60[0+60 ] 60+60[0+60 ] ");
  EXPECT_EQ(parts_of({70, 20, -5, 15, 20}),
            ">0+10[0+10 ] 10+40[0+20 25+15 ] 50+10>[0+10 ] >60+10[0+10 ] 70+50>[0+50 ] ");
  EXPECT_EQ(parts_of({-240}), "0+60[] 60+60[] ");
}

}  // namespace
}  // namespace ring::test
