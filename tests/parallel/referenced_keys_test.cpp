// With selected blocks, only the keys that a rank's queries selected are sent: plans and messages against every single
// query and key, and results against runs that send all keys.

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "core/philox.h"
#include "parallel/context/exchange.h"
#include "parallel/context/plan.h"
#include "tests/comm/ranks.h"
#include "tests/kept_blocks.h"
#include "tests/parallel/context_problem.h"

namespace ring {
namespace {

using test::ContextCase;

constexpr std::int32_t kBlock = 64;
constexpr std::int64_t kHeads = 4, kQueryHeads = 8, kDim = 8;

Pattern content() {
  const auto rule = [](std::int32_t keep, std::int32_t first) {
    return BlockRule{.kind = BlockRuleKind::content, .first = first, .keep = keep};
  };
  return test::block_sparse(kBlock, {rule(2, 0), rule(3, 1), rule(3, 0), rule(2, 0)});
}

std::vector<ContextCase> cases() {
  return {{"plain", content(), kBlock * 16, 1, test::documents_of(kBlock * 16, 1, {})},
          {"packed", content(), kBlock * 14 + 8, 2, test::documents_of(kBlock * 14 + 8, 2, {70, -9, 7, 700})}};
}

std::vector<ContextShards> shards_of(const ContextCase& c, ContextLayoutKind kind, int ranks, std::int64_t align) {
  std::vector<ContextShards> all;
  const ContextLayout layout(kind, c.length, ranks, align);
  for (int r = 0; r < ranks; ++r) all.push_back(layout.shards(r, c.rows, c.documents));
  return all;
}

// Position of a row of the micro-batch: its document, position there, block, and the block's row of a selection; the
// rank that holds it, and the row there.
struct Place {
  std::int32_t document = -1, position = 0, block = 0, list = 0;
  int rank = 0;
  std::int32_t row = 0;
};

std::vector<Place> places_of(const ContextCase& c, const ContextShards& shards) {
  std::vector<Place> places(static_cast<std::size_t>(c.tokens()));
  std::int32_t before = 0;
  for (std::size_t d = 0; d < c.documents.size(); ++d) {
    const Span& s = c.documents[d];
    const std::int32_t skipped = s.position % kBlock;
    for (std::int32_t i = 0; i < s.count; ++i) {
      Place& p = places[static_cast<std::size_t>(s.first + i)];
      p = {static_cast<std::int32_t>(d), i, (skipped + i) / kBlock, before + (skipped + i) / kBlock};
    }
    before += (skipped + s.count + kBlock - 1) / kBlock;
  }
  for (int r = 0; r < shards.ranks(); ++r)
    for (const LocalRows& h : shards.rows_by_rank[static_cast<std::size_t>(r)])
      for (std::int32_t i = 0; i < h.count; ++i) {
        Place& p = places[static_cast<std::size_t>(h.global + i)];
        p.rank = r, p.row = h.first + i;
      }
  return places;
}

bool sees(const Place& q, const Place& k) {
  return q.document >= 0 && q.document == k.document && k.position <= q.position;
}

// Words of a selection by row and head, for at most 32 blocks.
struct Selection {
  std::vector<std::int32_t> words;
  bool keeps(const Place& q, std::int64_t head, const Place& k) const {
    return static_cast<std::uint32_t>(words[static_cast<std::size_t>(q.list * kHeads + head)]) >> k.block & 1u;
  }
};

Selection random_selection(const std::vector<Place>& places) {
  std::int32_t rows = 0;
  for (const Place& p : places) rows = std::max(rows, p.list + 1);
  Selection s{std::vector<std::int32_t>(static_cast<std::size_t>(rows * kHeads))};
  for (const Place& p : places)
    for (std::int64_t h = 0; p.document >= 0 && h < kHeads; ++h) {
      const auto i = static_cast<std::size_t>(p.list * kHeads + h);
      const std::uint32_t earlier = (1u << p.block) - 1;
      const std::uint32_t some = random_bits({3, 5, 7}, 2 * i) & random_bits({3, 5, 7}, 2 * i + 1);
      s.words[i] = static_cast<std::int32_t>((some & earlier) | 1u << p.block);
    }
  return s;
}

// Returns the rows of rank `keys` that some query of rank `queries` sees and, if there is a selection, keeps in this
// head.
std::set<std::int32_t> wanted(const std::vector<Place>& places, int queries, int keys, const Selection* selection,
                              std::int64_t head) {
  std::set<std::int32_t> rows;
  for (const Place& k : places)
    for (const Place& q : places) {
      if (k.rank != keys || q.rank != queries || !sees(q, k)) continue;
      if (selection && !selection->keeps(q, head, k)) continue;
      rows.insert(k.row);
      break;
    }
  return rows;
}

std::set<std::int32_t> rows_of(const KeyRequest& need, std::int64_t head) {
  std::set<std::int32_t> rows;
  for (const RowCopy& c : need.copies)
    for (std::int32_t i = 0; i < c.count && (c.head < 0 || c.head == head); ++i)
      EXPECT_TRUE(rows.insert(c.row + i * c.stride).second) << "a row travels twice";
  return rows;
}

// Expects that every kept pair of the calls has a key that was sent from the right row.
void expect_keys_are_there(const KeyRequest& need, const std::vector<Place>& places, int queries, int keys,
                           const Selection& s) {
  std::map<std::int32_t, const Place*> query_at, key_at;
  for (const Place& p : places) {
    if (p.rank == queries) query_at[p.row] = &p;
    if (p.rank == keys) key_at[p.row] = &p;
  }
  for (std::int64_t h = 0; h < kHeads; ++h) {
    std::map<std::int32_t, std::int32_t> owner;
    for (const RowCopy& c : need.copies)
      for (std::int32_t i = 0; i < c.count && (c.head < 0 || c.head == h); ++i)
        owner[c.at + i * c.stride] = c.row + i * c.stride;
    std::int64_t pairs = 0, all = 0;
    for (const AttentionCall& round : need.calls)
      for (std::size_t b = 0; b < round.queries.size(); ++b)
        for (std::int32_t t = 0; t < round.queries[b].count; ++t)
          for (std::int32_t u = 0; u < round.keys[b].count; ++u) {
            const auto found = owner.find(round.keys[b].first + u);
            if (found == owner.end()) continue;
            const Place &q = *query_at.at(round.queries[b].first + t), &k = *key_at.at(found->second);
            ASSERT_EQ(q.document, k.document);
            pairs += sees(q, k) && s.keeps(q, h, k);
          }
    for (const auto& [i, q] : query_at)
      for (const auto& [j, k] : key_at) all += sees(*q, *k) && s.keeps(*q, h, *k);
    EXPECT_EQ(pairs, all);
  }
}

TEST(ReferencedKeysPlan, SendsTheRowsThatSomeQuerySelected) {
  for (const ContextCase& c : cases())
    for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous})
      for (const int ranks : {2, 3})
        for (const std::int64_t align : {1, 64}) {
          SCOPED_TRACE(str(c.name, ", ", ranks, " ranks, chunks at multiples of ", align));
          const ContextShards shards = shards_of(c, kind, ranks, align)[0];
          const std::vector<Place> places = places_of(c, shards);
          const Selection selection = random_selection(places);
          const std::int64_t rows = std::ssize(selection.words) / kHeads;
          KeyReferences known(rows, kHeads, 32);
          known.add(test::lists_of_bits(selection.words, 1, 32).data(), 0, rows);
          const ReferencedBlocks blocks = known.of({0, kHeads}, c.pattern);
          for (int i = 0; i < ranks; ++i)
            for (int j = 0; j < ranks; ++j) {
              if (i == j) continue;
              const KeyRequest need = needed_keys(shards, i, j, c.pattern, kHeads, SpanPositions::in_order, blocks);
              const KeyRequest by_any = needed_by_any(shards, {i}, j, c.pattern, kHeads, blocks);
              std::int64_t all = 0;
              for (std::int64_t h = 0; h < kHeads; ++h) {
                const std::set<std::int32_t> want = wanted(places, i, j, &selection, h);
                EXPECT_EQ(rows_of(need, h), want) << i << " of " << j << ", head " << h;
                EXPECT_EQ(rows_of(by_any, h), want) << i << " of " << j << ", head " << h;
                all += std::ssize(want);
              }
              EXPECT_EQ(need.row_heads(kHeads), all);
              EXPECT_GE(need.room(kHeads), all);
              expect_keys_are_there(need, places, i, j, selection);
            }
        }
}

TEST(ReferencedKeysPlan, SomeHeadsHaveTheirPartOfTheLists) {
  KeyReferences known(3, 3, 2);
  const std::int32_t lists[] = {0, 1, 2, 3, 4, kNoBlock};
  known.add(lists, 1, 1);
  const auto list_of = [&](const ReferencedBlocks& blocks, std::int32_t row, std::int32_t head) {
    return std::vector(blocks.row(row, head), blocks.row(row, head) + 2);
  };
  constexpr auto kNone = static_cast<std::uint32_t>(kNoBlock);
  const ReferencedBlocks last = known.of({1, 2}, content());
  EXPECT_EQ(list_of(last, 1, 0), (std::vector<std::uint32_t>{2, 3}));
  EXPECT_EQ(list_of(last, 1, 1), (std::vector<std::uint32_t>{4, kNone}));
  EXPECT_EQ(list_of(known.of({0, 3}, content()), 1, 0), (std::vector<std::uint32_t>{0, 1}));
  for (const std::int32_t row : {0, 2})
    EXPECT_EQ(list_of(known.of({0, 3}, content()), row, 2), (std::vector<std::uint32_t>{kNone, kNone}));
  EXPECT_EQ(KeyReferences().of({0, 3}, content()).kept, nullptr);
}

// Results of all ranks, by rows of the micro-batch.
struct Results {
  std::vector<float> out, dq, dk, dv;
  Selection selection;
  std::int64_t sent = 0, room = 0;  // room: capacity of the selection's lists
};

// Adds the rows that a rank selected, as words by row and head. Rows that this rank did not select lack their own
// block, except rows of block 0, which have nothing to choose from.
void add_own_rows(Selection& all, const std::vector<std::int32_t>& words, const std::vector<Place>& places) {
  all.words.resize(words.size());
  for (const Place& p : places)
    for (std::int64_t h = 0; p.document >= 0 && h < kHeads; ++h) {
      const auto i = static_cast<std::size_t>(p.list * kHeads + h);
      if (static_cast<std::uint32_t>(words[i]) >> p.block & 1u) all.words[i] |= words[i];
    }
}

using Make = std::function<std::unique_ptr<ContextParallel>(Communicator&, ContextKeys)>;

// Returns this rank's rows of normal numbers, which depend only on the row of the micro-batch.
Tensor random_rows(std::uint32_t which, const ContextShards& s, std::int64_t heads, const ExecContext& ctx) {
  const std::int64_t width = heads * kDim;
  const Tensor t = ctx.empty({s.tokens(s.rank), heads, kDim});
  for (const LocalRows& h : s.rows_by_rank[static_cast<std::size_t>(s.rank)])
    for (std::int64_t i = 0; i < h.count * width; ++i)
      t.data<float>()[h.first * width + i] =
          random_normal({13, which, 0}, static_cast<std::uint64_t>(h.global * width + i));
  return t;
}

void copy_to_batch_rows(std::vector<float>& all, const Tensor& t, const ContextShards& s) {
  const std::int64_t width = t.dim(1) * t.dim(2);
  all.resize(static_cast<std::size_t>(s.tokens() * width));
  for (const LocalRows& h : s.rows_by_rank[static_cast<std::size_t>(s.rank)])
    std::copy_n(t.data<float>() + h.first * width, h.count * width, all.data() + h.global * width);
}

Results on_ranks(const ContextCase& c, const std::vector<ContextShards>& shards, const Make& make, ContextKeys keys) {
  Results all;
  std::mutex mutex;
  const auto errors = test::run_ranks(static_cast<int>(shards.size()), [&](Communicator& comm) {
    const ExecContext ctx{Stream::cpu(1)};
    const auto mine = std::make_shared<const ContextShards>(shards[static_cast<std::size_t>(comm.rank())]);
    Attention a;
    a.q = random_rows(0, *mine, kQueryHeads, ctx), a.k = random_rows(1, *mine, kHeads, ctx);
    a.v = random_rows(2, *mine, kHeads, ctx), a.out = ctx.zeros(a.q.shape());
    a.lse = ctx.zeros({kQueryHeads, a.q.dim(0)});
    a.scale = 0.4f, a.pattern = c.pattern;
    const auto exchange = make(comm, keys);
    AttentionBackward b{.q = a.q, .k = a.k, .v = a.v, .out = a.out, .lse = a.lse};
    b.selection = exchange->forward({a}, mine, ctx, {});
    b.dout = random_rows(3, *mine, kQueryHeads, ctx);
    b.dq = ctx.zeros(a.q.shape()), b.dk = ctx.zeros(a.k.shape()), b.dv = ctx.zeros(a.v.shape());
    b.scale = a.scale, b.pattern = a.pattern;
    exchange->backward({b}, mine, ctx);
    comm.barrier().synchronize();
    const std::lock_guard lock(mutex);
    copy_to_batch_rows(all.out, a.out, *mine), copy_to_batch_rows(all.dq, b.dq, *mine);
    copy_to_batch_rows(all.dk, b.dk, *mine), copy_to_batch_rows(all.dv, b.dv, *mine);
    add_own_rows(all.selection, test::bits_of_kept(b.selection.kept, 1, ctx), places_of(c, *mine));
    all.room = b.selection.kept.dim(2);
    all.sent += exchange->bytes_sent();
  });
  EXPECT_EQ(test::joined(errors), "");
  return all;
}

// Returns the rows, counted per KV head, that are sent between ranks; selection: null if all previous keys are sent.
std::int64_t rows_between(const std::vector<Place>& places, int ranks, const Selection* selection) {
  std::int64_t rows = 0;
  for (int i = 0; i < ranks; ++i)
    for (int j = 0; j < ranks; ++j)
      for (std::int64_t h = 0; i != j && h < kHeads; ++h) rows += std::ssize(wanted(places, i, j, selection, h));
  return rows;
}

// Returns the bytes that ranks send each other for selections: as many rows as the rank whose queries have the most.
std::int64_t bytes_of_lists(const std::vector<Place>& places, int ranks, std::int64_t room) {
  std::vector<std::set<std::int32_t>> rows(static_cast<std::size_t>(ranks));
  for (const Place& p : places)
    if (p.document >= 0) rows[static_cast<std::size_t>(p.rank)].insert(p.list);
  std::int64_t most = 0;
  for (const auto& of_rank : rows) most = std::max<std::int64_t>(most, std::ssize(of_rank));
  return ranks * (ranks - 1) * most * kHeads * room * 4;
}

struct Schedule {
  std::string name;
  Make make;
  bool rounds = false;  // messages in fp8
  // Bytes of a row of a KV head: keys and values in the forward and the backward, and their gradients.
  std::int64_t key_bytes() const { return 2 * 2 * (rounds ? kDim + 1 : kDim * 4); }
  std::int64_t gradient_bytes() const { return 2 * kDim * (rounds ? 2 : 4); }
};
void PrintTo(const Schedule& s, std::ostream* out) { *out << s.name; }

class DistReferencedKeys : public testing::TestWithParam<Schedule> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(
    Schedules, DistReferencedKeys,
    testing::Values(
        Schedule{"ring", [](Communicator& c, ContextKeys k) { return make_ring(c, {.keys = k}); }},
        Schedule{"ring_ahead", [](Communicator& c, ContextKeys k) { return make_ring(c, {.prefetch = 3, .keys = k}); }},
        Schedule{"ring_by_node",
                 [](Communicator& c, ContextKeys k) { return make_ring(c, {.per_node = c.size() / 2, .keys = k}); }},
        Schedule{"ring_by_heads",
                 [](Communicator& c, ContextKeys k) { return make_ring(c, {.message_bytes = 1, .keys = k}); }},
        Schedule{"gather", [](Communicator& c, ContextKeys k) { return make_gather(c, k); }},
        Schedule{
            "ring_fp8",
            [](Communicator& c, ContextKeys k) { return make_ring(c, {.keys = k, .messages = ContextMessages::fp8}); },
            true},
        Schedule{"gather_fp8", [](Communicator& c, ContextKeys k) { return make_gather(c, k, ContextMessages::fp8); },
                 true}),
    [](const auto& info) { return info.param.name; });

TEST_P(DistReferencedKeys, AreTheOnlyKeysSentAndGiveTheSameBits) {
  for (const ContextCase& c : cases())
    for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous})
      for (const int ranks : {2, 4})
        for (const std::int64_t align : {1, 64}) {
          SCOPED_TRACE(str(c.name, ", ", ranks, " ranks, chunks at multiples of ", align));
          const std::vector<ContextShards> shards = shards_of(c, kind, ranks, align);
          const Results all = on_ranks(c, shards, GetParam().make, ContextKeys::all),
                        some = on_ranks(c, shards, GetParam().make, ContextKeys::referenced);
          EXPECT_EQ(some.selection.words, all.selection.words);
          EXPECT_EQ(some.out, all.out);
          EXPECT_EQ(some.dq, all.dq);
          EXPECT_EQ(some.dk, all.dk);
          EXPECT_EQ(some.dv, all.dv);
          EXPECT_LT(some.sent, all.sent);
          if (GetParam().name == "ring_by_node") continue;  // keys are forwarded within nodes
          const std::vector<Place> places = places_of(c, shards[0]);
          const std::int64_t referenced = rows_between(places, ranks, &some.selection);
          std::int64_t keys = rows_between(places, ranks, nullptr), gradients = keys, most = 0;
          for (int r = 0; r < ranks; ++r) most = std::max(most, shards[0].tokens(r));
          if (GetParam().name.starts_with("gather")) {
            keys = gradients = ranks * (ranks - 1) * most * kHeads;
            if (GetParam().rounds) gradients = (ranks - 1) * shards[0].tokens() * kHeads;  // without padding
          }
          EXPECT_LT(referenced, gradients);
          EXPECT_EQ(all.sent - some.sent, (keys - referenced) * GetParam().key_bytes() +
                                              (gradients - referenced) * GetParam().gradient_bytes() -
                                              2 * bytes_of_lists(places, ranks, some.room));
        }
}

}  // namespace
}  // namespace ring
