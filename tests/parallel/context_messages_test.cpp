// Rounded messages of context parallelism: results against attention over the keys that each rank should see, errors
// against bounds from the number formats, bytes, and runs.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "kernels/fp8.h"
#include "kernels/tuning.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/parallel/context_messages.h"
#include "tests/parallel/training.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

// Runs attention in each of these ways, one after the other, on the same ranks.
std::vector<MessageResults> run_ways(const ContextCase& c, const MessageHeads& h, const MessageOperands& of,
                                     const ContextLayout& layout, const std::vector<MessageWay>& ways,
                                     const std::vector<std::shared_ptr<Tuning>>& tuning = {}) {
  std::vector<MessageResults> results(ways.size());
  std::mutex mutex;
  const auto errors = run_ranks(layout.ranks(), [&](Communicator& comm) {
    ExecContext ctx{Stream::cpu(1)};
    if (!tuning.empty()) ctx.tuning = tuning[static_cast<std::size_t>(comm.rank())];
    const auto shards = std::make_shared<const ContextShards>(layout.shards(comm.rank(), c.rows, c.documents));
    for (std::size_t i = 0; i < ways.size(); ++i) run_way(ways[i], c, h, of, shards, comm, ctx, results[i], mutex);
  });
  EXPECT_EQ(joined(errors), "");
  return results;
}

// Rounds a row of a head to e4m3 with the smallest power of two as scale with which no element saturates.
void round_to_fp8(float* row, std::int64_t dim) {
  float max = 0, scale = std::ldexp(1.0f, -126);
  for (std::int64_t i = 0; i < dim; ++i) max = std::max(max, std::abs(row[i]));
  while (max / scale > 448) scale *= 2;
  for (std::int64_t i = 0; i < dim; ++i) row[i] = from_e4m3(to_e4m3(row[i] / scale)) * scale;
}

std::vector<int> owners_of(const ContextLayout& layout, const ContextCase& c) {
  std::vector<int> owner(static_cast<std::size_t>(c.tokens()), -1);
  for (int r = 0; r < layout.ranks(); ++r)
    for_held_rows(layout.shards(r, c.rows, c.documents), r,
                  [&](std::int64_t, std::int64_t row) { owner[static_cast<std::size_t>(row)] = r; });
  return owner;
}

// Returns the results of one process for the queries of one rank, over keys and values as that rank sees them.
MessageResults as_seen_by(int rank, const ContextCase& c, const MessageHeads& h, MessageOperands of,
                          const std::vector<int>& owner, ContextMessages messages) {
  const ExecContext ctx{Stream::cpu(1)};
  const std::int64_t width = h.key * h.dim;
  for (std::int64_t row = 0; row < c.tokens(); ++row) {
    const bool own = owner[static_cast<std::size_t>(row)] == rank;
    for (std::int64_t i = 0; i < width && !own && messages == ContextMessages::fp8; i += h.dim)
      round_to_fp8(of.k.data() + row * width + i, h.dim), round_to_fp8(of.v.data() + row * width + i, h.dim);
    if (!own) std::fill_n(of.dout.data() + row * h.query * h.dim, h.query * h.dim, 0.0f);
  }
  const auto tensor = [&](const MessageFloats& from, std::int64_t heads) {
    return from_host(from, ctx.stream).view({c.tokens(), heads, h.dim});
  };
  Attention a;
  a.q = tensor(of.q, h.query), a.k = tensor(of.k, h.key), a.v = tensor(of.v, h.key), a.out = ctx.zeros(a.q.shape());
  a.lse = ctx.zeros({h.query, c.tokens()});
  a.queries = a.keys = c.documents, a.scale = h.scale, a.pattern = c.pattern;
  attention_kernel(a, ctx);
  AttentionBackward b{.q = a.q, .k = a.k, .v = a.v, .out = a.out, .lse = a.lse, .dout = tensor(of.dout, h.query)};
  b.dq = ctx.zeros(a.q.shape()), b.dk = ctx.zeros(a.k.shape()), b.dv = ctx.zeros(a.v.shape());
  b.queries = b.keys = c.documents, b.scale = a.scale, b.pattern = a.pattern;
  attention_backward_kernel(b, ctx);
  const auto floats = [&](const Tensor& t) { return to_host<float>(t.view({t.numel()}), ctx.stream); };
  return {floats(a.out), floats(b.dq), floats(b.dk), floats(b.dv)};
}

// Results, and for gradients of keys and values the sum of the magnitudes of all messages that were added.
struct ExpectedMessages {
  MessageResults results;
  MessageFloats dk_sent, dv_sent;
};

ExpectedMessages expected_messages(const ContextCase& c, const MessageHeads& h, const MessageOperands& of,
                                   const ContextLayout& layout, ContextMessages messages) {
  const std::vector<int> owner = owners_of(layout, c);
  ExpectedMessages all;
  for (MessageFloats* f : {&all.results.out, &all.results.dq}) f->resize(of.q.size());
  for (MessageFloats* f : {&all.results.dk, &all.results.dv, &all.dk_sent, &all.dv_sent}) f->resize(of.k.size());
  for (int r = 0; r < layout.ranks(); ++r) {
    const MessageResults seen = as_seen_by(r, c, h, of, owner, messages);
    const auto own = [&](std::size_t i, std::int64_t heads) {
      return owner[i / static_cast<std::size_t>(heads * h.dim)] == r;
    };
    for (std::size_t i = 0; i < of.q.size(); ++i)
      if (own(i, h.query)) all.results.out[i] = seen.out[i], all.results.dq[i] = seen.dq[i];
    const auto add = [&](MessageFloats& sum, MessageFloats& sent, const MessageFloats& one) {
      for (std::size_t i = 0; i < one.size(); ++i) {
        const bool rounds = !own(i, h.key) && messages != ContextMessages::exact;
        sum[i] += rounds ? to_float(to_bf16(one[i])) : one[i];
        if (rounds) sent[i] += std::abs(one[i]);
      }
    };
    add(all.results.dk, all.dk_sent, seen.dk), add(all.results.dv, all.dv_sent, seen.dv);
  }
  return all;
}

// Expects sums of gradients that differ by at most `roundings` of all messages, and by the rounding of f32.
void expect_gradients(const MessageFloats& got, const MessageFloats& want, const MessageFloats& sent,
                      double roundings) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_LE(std::abs(double{got[i]} - double{want[i]}), roundings * double{sent[i]} + 1e-5) << "element " << i;
}

// Bounds of f32 sums in a different order, relative to the norm, as in context_attention_test.cpp.
constexpr double kSumsOut = 1e-6, kSumsGradient = 2e-6;

void expect_messages(const MessageResults& got, const ExpectedMessages& want, double roundings) {
  EXPECT_LE(relative_distance(got.out, want.results.out), kSumsOut);
  EXPECT_LE(relative_distance(got.dq, want.results.dq), kSumsGradient);
  expect_gradients(got.dk, want.results.dk, want.dk_sent, roundings);
  expect_gradients(got.dv, want.results.dv, want.dv_sent, roundings);
}

class DistContextMessages : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

constexpr ContextMessages kAllMessages[] = {ContextMessages::exact, ContextMessages::bf16, ContextMessages::fp8};

// f32 gradients that differ in the last bits may round to neighbouring bf16 numbers, up to 2^-7 apart. With nodes a sum
// of messages is rounded again.
TEST_F(DistContextMessages, EachRankAttendsToRoundedKeysOfOthersAndToItsOwn) {
  const MessageHeads heads;
  for (const ContextCase& c : context_cases()) {
    if (c.name.ends_with("_plain")) continue;
    const MessageOperands of = random_message_operands(c.tokens(), heads);
    for (const int ranks : {2, 4})
      for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous}) {
        if (ranks == 2 && kind == ContextLayoutKind::contiguous) continue;
        const ContextLayout layout(kind, c.length, ranks, context_align({c.pattern}, c.length, 2 * ranks));
        std::vector<MessageWay> ways;
        for (const ContextMessages messages : {ContextMessages::bf16, ContextMessages::fp8})
          for (const auto& [name, make] : rounding_schedules()) ways.push_back({make, messages});
        const std::vector<MessageResults> results = run_ways(c, heads, of, layout, ways);
        auto got = results.begin();
        for (const ContextMessages messages : {ContextMessages::bf16, ContextMessages::fp8}) {
          const ExpectedMessages want = expected_messages(c, heads, of, layout, messages);
          for (const auto& [name, make] : rounding_schedules()) {
            SCOPED_TRACE(str(c.name, ", ", ranks, " ranks, ", name, ", ", to_string(messages)));
            expect_messages(*got++, want, std::ldexp(name == "ring_by_node" ? 2 : 1, -7));
          }
        }
      }
  }
}

// Keys of a rank's own node stay exact. For the ring between nodes, a node holds the rows of its ranks: zigzag over two
// nodes if the ranks have zigzag.
TEST_F(DistContextMessages, HybridRoundsMessagesBetweenNodes) {
  constexpr int kRanks = 4, kNodes = 2;
  const MessageHeads heads;
  for (const ContextCase& c : context_cases()) {
    if (c.name.ends_with("_plain")) continue;
    const MessageOperands of = random_message_operands(c.tokens(), heads);
    const std::int64_t align = context_align({c.pattern}, c.length, 2 * kRanks);
    const ContextLayout layout(ContextLayoutKind::zigzag, c.length, kRanks, align),
        nodes(ContextLayoutKind::zigzag, c.length, kNodes, align);
    for (const ContextMessages messages : {ContextMessages::bf16, ContextMessages::fp8}) {
      SCOPED_TRACE(str(c.name, ", ", to_string(messages)));
      MessageResults got;
      std::mutex mutex;
      const auto run = [&](Communicator& all, Communicator& node, Communicator& between) {
        const MakeMessages make = [&](Communicator&, ContextMessages m) {
          return make_hybrid({all, node, between}, {.messages = m});
        };
        const auto shards = std::make_shared<const ContextShards>(layout.shards(all.rank(), c.rows, c.documents));
        run_way({make, messages}, c, heads, of, shards, all, ExecContext{Stream::cpu(1)}, got, mutex);
      };
      ASSERT_EQ(joined(run_ranks_on_nodes(kRanks, kRanks / kNodes, run)), "");
      expect_messages(got, expected_messages(c, heads, of, nodes, messages), std::ldexp(1, -7));
    }
  }
}

TEST_F(DistContextMessages, BitsDependNeitherOnPrefetchNorOnGroupsOfHeads) {
  const MessageHeads heads;
  const ContextCase c{"", window(37, 3), 403, 2, documents_of(403, 2, {70, 1, -9, 150, 3, -40, 90})};
  const MessageOperands of = random_message_operands(c.tokens(), heads);
  const ContextLayout layout(ContextLayoutKind::zigzag, c.length, 3);
  for (const ContextMessages messages : {ContextMessages::bf16, ContextMessages::fp8}) {
    std::vector<MessageWay> ways;
    for (RingOptions o : {RingOptions{}, {.prefetch = 0}, {.prefetch = 5}, {.message_bytes = 1}}) {
      o.messages = messages;
      ways.push_back({[o](Communicator& comm, ContextMessages) { return make_ring(comm, o); }, messages});
    }
    const std::vector<MessageResults> results = run_ways(c, heads, of, layout, ways);
    for (const MessageResults& other : results) {
      EXPECT_EQ(results[0].out, other.out);
      EXPECT_EQ(results[0].dq, other.dq);
      EXPECT_EQ(results[0].dk, other.dk);
      EXPECT_EQ(results[0].dv, other.dv);
    }
  }
}

TEST_F(DistContextMessages, SendTheseBytes) {
  constexpr std::int64_t kLength = 1024, kRanks = 4, kRow = kLength / kRanks;
  const MessageHeads heads;
  const ContextCase c{"", dense(), kLength, 1, documents_of(kLength, 1, {})};
  const MessageOperands of = random_message_operands(c.tokens(), heads);
  const ContextLayout layout(ContextLayoutKind::contiguous, kLength, kRanks);
  for (const ContextMessages messages : kAllMessages) {
    // Per row of a head: K and V in the forward and in the backward, here f32, or a byte for each element and for the
    // scale; then their gradients.
    const std::int64_t keys = messages == ContextMessages::fp8 ? heads.dim + 1 : 4 * heads.dim;
    const std::int64_t gradients = (messages == ContextMessages::exact ? 4 : 2) * heads.dim;
    const std::int64_t row = heads.key * (2 * 2 * keys + 2 * gradients);
    const std::vector<MessageResults> results =
        run_ways(c, heads, of, layout,
                 {way_of("ring", messages), way_of("ring_by_heads", messages), way_of("gather", messages)});
    EXPECT_EQ(results[0].sent, (1 + 2 + 3) * kRow * row) << to_string(messages);
    EXPECT_EQ(results[1].sent, (1 + 2 + 3) * kRow * row) << to_string(messages);
    EXPECT_EQ(results[2].sent, kRanks * (kRanks - 1) * kRow * row) << to_string(messages);
  }
}

// Dense causal attention in fp64, and bounds of the errors that rounded messages cause, from the definition of the
// formats. Every element of received keys and values is off by at most 2^-4 of itself or, if it is subnormal in e4m3,
// by 2^-10 of a scale below max / 224; every gradient in a message by 2^-8 of itself.
class BoundedAttention {
 public:
  BoundedAttention(const MessageHeads& h, const MessageOperands& of, std::vector<int> owner, ContextMessages messages)
      : h_(h), of_(of), owner_(std::move(owner)), rounds_keys_(messages == ContextMessages::fp8) {
    for (MessageFloats* f : {&exact.out, &exact.dq, &exact.dk, &exact.dv, &bound.out, &bound.dq, &bound.dk, &bound.dv})
      f->resize(of.q.size());
    for (std::size_t i = 0; i < owner_.size(); ++i)
      for (std::int64_t head = 0; head < h.query; ++head) add_query(i, head);
  }
  MessageResults exact, bound;

 private:
  std::size_t at(std::size_t row, std::int64_t head) const {
    return (row * static_cast<std::size_t>(h_.query) + static_cast<std::size_t>(head)) *
           static_cast<std::size_t>(h_.dim);
  }
  // Bounds the error of element d of a row of a head at `row`, as query i sees row j.
  double error_of(const MessageFloats& x, std::size_t row, std::int64_t d, std::size_t i, std::size_t j) const {
    if (!rounds_keys_ || owner_[i] == owner_[j]) return 0;
    double max = 0;
    for (std::int64_t c = 0; c < h_.dim; ++c) max = std::max(max, std::abs(element(x, row, c)));
    return std::max(std::ldexp(std::abs(element(x, row, d)), -4), std::ldexp(max / 224, -10));
  }
  static double element(const MessageFloats& x, std::size_t row, std::int64_t d) {
    return double{x[row + static_cast<std::size_t>(d)]};
  }
  template <class Fn>
  double sum(const Fn& fn) const {
    double s = 0;
    for (std::int64_t d = 0; d < h_.dim; ++d) s += fn(d);
    return s;
  }
  static void add(MessageFloats& to, std::size_t row, std::int64_t d, double x) {
    to[row + static_cast<std::size_t>(d)] += static_cast<float>(x);
  }

  void add_query(std::size_t i, std::int64_t head) {
    const std::size_t qi = at(i, head);
    const double scale = double{h_.scale};
    const auto q = [&](std::int64_t d) { return element(of_.q, qi, d); };
    const auto dout = [&](std::int64_t d) { return element(of_.dout, qi, d); };
    std::vector<double> p;
    double all = 0, shift = 0;  // shift: of any score
    for (std::size_t j = 0; j <= i; ++j) {
      const std::size_t kj = at(j, head);
      p.push_back(std::exp(scale * sum([&](auto d) { return q(d) * element(of_.k, kj, d); })));
      all += p.back();
      shift = std::max(shift, scale * sum([&](auto d) { return std::abs(q(d)) * error_of(of_.k, kj, d, i, j); }));
    }
    for (double& x : p) x /= all;
    const double grows = std::exp(2 * shift) - 1;  // of any probability, relative
    std::vector<double> out(static_cast<std::size_t>(h_.dim)), dout_error = out;
    for (std::size_t j = 0; j <= i; ++j)
      for (std::int64_t d = 0; d < h_.dim; ++d) {
        const double v = element(of_.v, at(j, head), d), e = error_of(of_.v, at(j, head), d, i, j);
        out[static_cast<std::size_t>(d)] += p[j] * v;
        dout_error[static_cast<std::size_t>(d)] += p[j] * (grows * (std::abs(v) + e) + e);
      }
    const double mean = sum([&](auto d) { return dout(d) * out[static_cast<std::size_t>(d)]; });
    const double mean_error = sum([&](auto d) { return std::abs(dout(d)) * dout_error[static_cast<std::size_t>(d)]; });
    for (std::int64_t d = 0; d < h_.dim; ++d) {
      add(exact.out, qi, d, out[static_cast<std::size_t>(d)]);
      add(bound.out, qi, d, dout_error[static_cast<std::size_t>(d)]);
    }
    for (std::size_t j = 0; j <= i; ++j) {
      const std::size_t kj = at(j, head);
      const bool rounds = owner_[i] != owner_[j];
      const double gain = sum([&](auto d) { return dout(d) * element(of_.v, kj, d); }) - mean;
      const double gain_error =
          mean_error + sum([&](auto d) { return std::abs(dout(d)) * error_of(of_.v, kj, d, i, j); });
      const double ds = p[j] * gain, ds_error = p[j] * (grows * (std::abs(gain) + gain_error) + gain_error);
      const double last = rounds ? std::ldexp(1, -8) : 0;  // the message's rounding
      for (std::int64_t d = 0; d < h_.dim; ++d) {
        const double k = element(of_.k, kj, d), e = error_of(of_.k, kj, d, i, j);
        add(exact.dq, qi, d, scale * ds * k);
        add(bound.dq, qi, d, scale * (ds_error * (std::abs(k) + e) + std::abs(ds) * e));
        add(exact.dk, kj, d, scale * ds * q(d));
        add(bound.dk, kj, d, scale * std::abs(q(d)) * (ds_error + last * (std::abs(ds) + ds_error)));
        add(exact.dv, kj, d, p[j] * dout(d));
        add(bound.dv, kj, d, p[j] * std::abs(dout(d)) * (grows + last * (1 + grows)));
      }
    }
  }

  MessageHeads h_;
  const MessageOperands& of_;
  std::vector<int> owner_;
  bool rounds_keys_;
};

void expect_within(const MessageFloats& got, const MessageFloats& want, const MessageFloats& bound) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_LE(std::abs(double{got[i]} - double{want[i]}), double{bound[i]} + 1e-5) << "element " << i;
}

TEST_F(DistContextMessages, ErrorsAreWithinTheRoundingOfMessages) {
  const MessageHeads heads{2, 2, 64, 0.125f};
  const ContextCase c{"", dense(), 72, 1, documents_of(72, 1, {})};
  const MessageOperands of = random_message_operands(c.tokens(), heads);
  for (const int ranks : {2, 4}) {
    const ContextLayout layout(ContextLayoutKind::zigzag, c.length, ranks);
    for (const ContextMessages messages : kAllMessages) {
      const BoundedAttention want(heads, of, owners_of(layout, c), messages);
      for (const MessageResults& got :
           run_ways(c, heads, of, layout, {way_of("ring", messages), way_of("gather", messages)})) {
        SCOPED_TRACE(str(ranks, " ranks, ", to_string(messages)));
        expect_within(got.out, want.exact.out, want.bound.out);
        expect_within(got.dq, want.exact.dq, want.bound.dq);
        if (messages == ContextMessages::exact) continue;
        expect_within(got.dk, want.exact.dk, want.bound.dk);
        expect_within(got.dv, want.exact.dv, want.bound.dv);
        EXPECT_GT(relative_distance(got.dk, want.exact.dk), 1e-4) << "gradients were not rounded";
        EXPECT_EQ(relative_distance(got.out, want.exact.out) > 1e-4, messages == ContextMessages::fp8);
      }
    }
  }
}

// Wherever exact messages bring NaN or an infinity, so do rounded ones.
TEST_F(DistContextMessages, NaNAndInfinitiesArrive) {
  const MessageHeads heads;
  const ContextCase c{"", dense(), 64, 1, documents_of(64, 1, {})};
  const ContextLayout layout(ContextLayoutKind::contiguous, c.length, 2);
  const auto element = [&](std::int64_t row, std::int64_t head, std::int64_t all) {
    return static_cast<std::size_t>((row * all + head) * heads.dim + 3);
  };
  std::vector<MessageOperands> bad(4, random_message_operands(c.tokens(), heads));
  bad[0].k[element(5, 1, heads.key)] = NAN;
  bad[1].v[element(5, 1, heads.key)] = INFINITY;
  bad[2].k[element(5, 1, heads.key)] = -INFINITY;
  bad[3].dout[element(60, 5, heads.query)] = INFINITY;
  for (std::size_t i = 0; i < bad.size(); ++i)
    for (const char* name : {"ring", "gather"}) {
      const std::vector<MessageResults> results =
          run_ways(c, heads, bad[i], layout,
                   {way_of(name, ContextMessages::exact), way_of(name, ContextMessages::bf16),
                    way_of(name, ContextMessages::fp8)});
      const MessageResults& exact = results[0];
      for (const std::size_t m : {1u, 2u}) {
        const MessageResults& got = results[m];
        const std::string_view messages = to_string(kAllMessages[m]);
        std::int64_t lost = 0, arrived = 0;
        const auto compare = [&](const MessageFloats& want, const MessageFloats& is) {
          for (std::size_t n = 0; n < want.size(); ++n)
            if (!std::isfinite(want[n])) ++(std::isfinite(is[n]) ? lost : arrived);
        };
        compare(exact.out, got.out), compare(exact.dq, got.dq), compare(exact.dk, got.dk), compare(exact.dv, got.dv);
        EXPECT_EQ(lost, 0) << i << ", " << name << ", " << messages;
        EXPECT_GT(arrived, 0) << i << ", " << name << ", " << messages;
      }
    }
}

TEST_F(DistContextMessages, TheMeasuredScheduleIsStoredForThem) {
  const MessageHeads heads;
  const ContextCase c = context_cases()[0];
  const MessageOperands of = random_message_operands(c.tokens(), heads);
  const ContextLayout layout(ContextLayoutKind::zigzag, c.length, 2);
  const MakeMessages measured = [](Communicator& comm, ContextMessages m) {
    return make_measured_context(comm, {.messages = m});
  };
  const std::vector<std::shared_ptr<Tuning>> tuning = {std::make_shared<Tuning>(""), std::make_shared<Tuning>("")};
  std::vector<MessageWay> ways;
  for (const ContextMessages messages : kAllMessages) ways.push_back({measured, messages});
  run_ways(c, heads, of, layout, ways, tuning);
  const std::string text = tuning[0]->text();
  EXPECT_EQ(std::ranges::count(text, '\n'), 3) << text;
  for (const char* end : {", bf16 messages\": ", ", fp8 messages\": "}) {
    const std::size_t at = text.find(end);
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_FALSE(text.substr(at + std::string(end).size()).starts_with("\"all_to_all")) << text;
    const std::size_t begin = text.rfind('\n', at) == std::string::npos ? 1 : text.rfind('\n', at) + 2;
    const std::string key = text.substr(begin, text.find('"', begin) - begin);
    for (const auto& t : tuning) t->record(key, "gather");
  }
  const std::vector<MessageResults> both = run_ways(
      c, heads, of, layout, {{measured, ContextMessages::fp8}, way_of("gather", ContextMessages::fp8)}, tuning);
  EXPECT_EQ(both[0].sent, both[1].sent);
}

TEST_F(DistContextMessages, AllToAllIsRefused) {
  const auto errors = run_ranks(2, [&](Communicator& comm) {
    make_context_parallel(comm, ContextSchedule::all_to_all, {.messages = ContextMessages::bf16});
  });
  for (const std::string& e : errors) EXPECT_NE(e.find("messages are exact"), std::string::npos) << e;
}

TEST(ContextMessagesSetting, NamesItsChoices) {
  Config c = tiny_config();
  const std::string error = error_of([&] { override_config(c, {"parallel.cp_messages=int8"}); });
  for (const char* part : {"parallel.cp_messages", "exact", "bf16", "fp8", "int8"})
    EXPECT_NE(error.find(part), std::string::npos) << error;
}

class DistContextMessagesTraining : public DistContextMessages {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }
  static TrainingOptions message_options(int steps, const char* schedule, ContextMessages messages) {
    TrainingOptions o;
    o.ranks = 2;
    o.steps = steps;
    o.overrides = {"model.context=64", "parallel.cp=2", str("parallel.cp_schedule=", schedule),
                   str("parallel.cp_messages=", to_string(messages))};
    return o;
  }
  static Training trained(const TrainingOptions& o) {
    Training t = train_on_ranks(o);
    EXPECT_EQ(t.errors, "");
    return t;
  }
  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("ringmaster-messages-" + std::to_string(getpid()))).string();
};

TEST_F(DistContextMessagesTraining, TrainAndResumeWithTheSameBits) {
  for (const char* schedule : {"ring", "gather"}) {
    const Training exact = trained(message_options(8, schedule, ContextMessages::exact));
    for (const ContextMessages messages : kAllMessages) {
      SCOPED_TRACE(str(schedule, ", ", to_string(messages)));
      TrainingOptions all = message_options(8, schedule, messages);
      all.dry = true;
      const Training whole = trained(all);
      for (std::size_t r = 0; r < whole.slabs.size(); ++r)
        EXPECT_NEAR(static_cast<double>(whole.dry_slabs[r]), static_cast<double>(whole.slabs[r]),
                    0.03 * static_cast<double>(whole.slabs[r]));
      EXPECT_LT(whole.losses.back(), whole.losses.front() - 0.05);
      const double difference = largest_loss_difference(exact, whole);
      EXPECT_EQ(difference > 0, messages != ContextMessages::exact);
      EXPECT_LT(difference, 1e-2);
      TrainingOptions half = message_options(4, schedule, messages), rest = half;
      half.save = str(folder_, "/", schedule, to_string(messages));
      rest.load = trained(half).checkpoint;
      const Training second = trained(rest);
      EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 4, whole.losses.end()));
      EXPECT_EQ(second.tensors, whole.tensors);
    }
  }
}

}  // namespace
}  // namespace ring::test
