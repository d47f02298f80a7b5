#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "comm/self.h"
#include "core/philox.h"
#include "tests/comm/ranks.h"

namespace ring {
namespace {

const Stream& stream() {
  static const Stream s = Stream::cpu(1);
  return s;
}

float random_value(int rank, std::int64_t i) {
  return random_normal({7, static_cast<std::uint32_t>(rank), 1}, static_cast<std::uint64_t>(i));
}

Tensor random_tensor(std::int64_t n, int rank) {
  const Tensor t = Tensor::empty({n}, DType::f32, stream());
  for (std::int64_t i = 0; i < n; ++i) t.data<float>()[i] = random_value(rank, i);
  return t;
}

// Adds the ranks' values in rank order, which is the documented contract.
float sum_in_order(int size, std::int64_t i) {
  float sum = random_value(0, i);
  for (int r = 1; r < size; ++r) sum += random_value(r, i);
  return sum;
}

class DistCollectives : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
  // The barrier keeps a rank from closing its connections while another still receives from it.
  void expect_all(const test::RankFn& fn, const CommOptions& options = {}) {
    const auto with_barrier = [&fn](Communicator& c) {
      fn(c);
      c.barrier().wait(stream());
    };
    EXPECT_EQ(test::joined(test::run_ranks(GetParam(), with_barrier, options)), "");
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, DistCollectives, testing::Values(1, 2, 3, 4));

TEST_P(DistCollectives, AllReduceSumsInRankOrder) {
  // One element, fewer than ranks, one hop, two hops, and more than one segment.
  for (const std::int64_t n : {1, 2, 1000, 5001, 1'200'003})
    expect_all([n](Communicator& c) {
      const Tensor t = random_tensor(n, c.rank());
      c.all_reduce(t, Reduce::sum).wait(stream());
      for (std::int64_t i = 0; i < n; ++i)
        RING_CHECK(t.data<float>()[i] == sum_in_order(c.size(), i), "n ", n, ", element ", i);
    });
}

TEST_P(DistCollectives, AllReduceMaxKeepsNaN) {
  expect_all([](Communicator& c) {
    const Tensor t = random_tensor(100, c.rank());
    if (c.rank() == c.size() - 1) t.data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
    c.all_reduce(t, Reduce::max).wait(stream());
    for (std::int64_t i = 0; i < 100; ++i) {
      float want = random_value(0, i);
      for (int r = 1; r < c.size(); ++r) want = std::max(want, random_value(r, i));
      RING_CHECK(i == 3 ? std::isnan(t.data<float>()[i]) : t.data<float>()[i] == want, "element ", i);
    }
  });
}

TEST_P(DistCollectives, AllReduceSumsIntegersExactly) {
  expect_all([](Communicator& c) {
    const Tensor t = Tensor::empty({2}, DType::i32, stream());
    t.data<std::int32_t>()[0] = 16777217 + c.rank();  // not representable in fp32
    t.data<std::int32_t>()[1] = -c.rank();
    c.all_reduce(t, Reduce::sum).wait(stream());
    const int n = c.size();
    RING_CHECK(t.data<std::int32_t>()[0] == 16777217 * n + n * (n - 1) / 2, "got ", t.data<std::int32_t>()[0]);
    RING_CHECK(t.data<std::int32_t>()[1] == -n * (n - 1) / 2, "got ", t.data<std::int32_t>()[1]);
  });
}

TEST_P(DistCollectives, AllGatherWorksInAndOutOfPlace) {
  expect_all([](Communicator& c) {
    const std::int64_t n = 300;
    const Tensor out = Tensor::zeros({c.size() * n}, DType::f32, stream());
    const Tensor in_place = Tensor::zeros({c.size(), n}, DType::f32, stream());
    const Tensor mine = in_place.narrow(0, c.rank(), 1);
    copy(mine, random_tensor(n, c.rank()).view({1, n}), stream());
    Work a = c.all_gather(out, random_tensor(n, c.rank()));
    c.all_gather(in_place, mine).wait(stream());
    a.wait(stream());
    for (std::int64_t i = 0; i < c.size() * n; ++i) {
      const float want = random_value(static_cast<int>(i / n), i % n);
      RING_CHECK(out.data<float>()[i] == want && in_place.data<float>()[i] == want, "element ", i);
    }
  });
}

TEST_P(DistCollectives, ReduceScatterSumsInRankOrder) {
  for (const std::int64_t n : {1, 777, 400'000})
    expect_all([n](Communicator& c) {
      const Tensor in = random_tensor(n * c.size(), c.rank());
      const Tensor out = Tensor::zeros({n}, DType::f32, stream());
      c.reduce_scatter(out, in, Reduce::sum).wait(stream());
      for (std::int64_t i = 0; i < n; ++i)
        RING_CHECK(out.data<float>()[i] == sum_in_order(c.size(), c.rank() * n + i), "n ", n, ", element ", i);
    });
}

TEST_P(DistCollectives, BroadcastWorksFromEveryRoot) {
  expect_all([](Communicator& c) {
    for (int root = 0; root < c.size(); ++root) {
      const Tensor t = random_tensor(2000, c.rank());
      c.broadcast(t, root).wait(stream());
      for (std::int64_t i = 0; i < 2000; ++i) RING_CHECK(t.data<float>()[i] == random_value(root, i), "root ", root);
    }
  });
}

TEST_P(DistCollectives, SendRecvPassesValuesAroundTheRing) {
  expect_all([](Communicator& c) {
    const int to = (c.rank() + 1) % c.size(), from = (c.rank() + c.size() - 1) % c.size();
    for (const std::int64_t n : {1, 500'000}) {
      const Tensor in = Tensor::zeros({n}, DType::f32, stream());
      c.send_recv(random_tensor(n, c.rank()), to, in, from).wait(stream());
      for (std::int64_t i = 0; i < n; ++i) RING_CHECK(in.data<float>()[i] == random_value(from, i), "element ", i);
    }
    c.barrier().synchronize();
  });
}

TEST_P(DistCollectives, SumsOfHalfPrecisionRoundOnce) {
  for (const std::int64_t n : {3, 20'001, 2'100'001})
    expect_all([n](Communicator& c) {
      const Tensor t = Tensor::empty({n}, DType::bf16, stream());
      for (std::int64_t i = 0; i < n; ++i) t.data<bf16>()[i] = to_bf16(random_value(c.rank(), i));
      c.all_reduce(t, Reduce::sum).wait(stream());
      for (std::int64_t i = 0; i < n; ++i) {
        float sum = to_float(to_bf16(random_value(0, i)));
        for (int r = 1; r < c.size(); ++r) sum += to_float(to_bf16(random_value(r, i)));
        RING_CHECK(t.data<bf16>()[i].bits == to_bf16(sum).bits, "n ", n, ", element ", i);
      }
    });
}

TEST_P(DistCollectives, AllToAllTransposesParts) {
  for (const std::int64_t n : {0, 1, 7, 300'000})
    expect_all([n](Communicator& c) {
      const Tensor in = random_tensor(n * c.size(), c.rank()),
                   out = Tensor::zeros({n * c.size()}, DType::f32, stream());
      c.all_to_all(out, in).wait(stream());
      for (int from = 0; from < c.size(); ++from)
        for (std::int64_t i = 0; i < n; ++i)
          RING_CHECK(out.data<float>()[from * n + i] == random_value(from, c.rank() * n + i), "n ", n, ", part ", from);
    });
}

// Pieces with sizes around the limits of a round and several types. Their roots follow no order.
struct PieceCase {
  std::int64_t n;
  DType dtype;
};
const PieceCase kPieces[] = {{3, DType::bf16}, {5, DType::f32},          {0, DType::f32}, {600'000, DType::f32},
                             {7, DType::f32},  {1'000'001, DType::bf16}, {1, DType::i32}, {500'001, DType::f32}};

std::vector<OwnedPiece> segment_pairs_of(const Communicator& c) {
  std::vector<OwnedPiece> out;
  for (const PieceCase& k : kPieces) {
    const Tensor t = Tensor::empty({k.n}, k.dtype, stream());
    const int id = static_cast<int>(out.size());
    for (std::int64_t i = 0; i < k.n; ++i) {
      const float v = random_value(c.rank() + 10 * id, i);
      if (k.dtype == DType::f32) t.data<float>()[i] = v;
      if (k.dtype == DType::bf16) t.data<bf16>()[i] = to_bf16(v);
      if (k.dtype == DType::i32) t.data<std::int32_t>()[i] = static_cast<std::int32_t>(1000 * v);
    }
    out.push_back({t, id * 3 % c.size()});
  }
  return out;
}

double element(const Tensor& t, std::int64_t i) {
  if (t.dtype() == DType::bf16) return static_cast<double>(to_float(t.data<bf16>()[i]));
  return t.dtype() == DType::i32 ? t.data<std::int32_t>()[i] : static_cast<double>(t.data<float>()[i]);
}

// Returns the sum over ranks first to last of element i of piece `id`, as segment_pairs_of() fills it.
double piece_value(std::size_t id, std::int64_t i, int first, int last) {
  float sum = 0;
  for (int r = first; r <= last; ++r) {
    const float v = random_value(r + 10 * static_cast<int>(id), i);
    float x = v;
    if (kPieces[id].dtype == DType::bf16) x = to_float(to_bf16(v));
    if (kPieces[id].dtype == DType::i32) x = static_cast<float>(static_cast<std::int32_t>(1000 * v));
    sum = r == first ? x : sum + x;
  }
  return static_cast<double>(kPieces[id].dtype == DType::bf16 ? to_float(to_bf16(sum)) : sum);
}

TEST_P(DistCollectives, ReducePiecesSumsEachPieceAtItsRoot) {
  expect_all([](Communicator& c) {
    const std::vector<OwnedPiece> pieces = segment_pairs_of(c);
    c.reduce_pieces(pieces, Reduce::sum).wait(stream());
    c.reduce_pieces({}, Reduce::sum).wait(stream());
    for (std::size_t k = 0; k < pieces.size(); ++k)
      for (std::int64_t i = 0; pieces[k].root == c.rank() && i < pieces[k].tensor.numel(); ++i)
        RING_CHECK(element(pieces[k].tensor, i) == piece_value(k, i, 0, c.size() - 1), "piece ", k, ", element ", i);
  });
}

TEST_P(DistCollectives, BroadcastPiecesComeFromTheirRoots) {
  expect_all([](Communicator& c) {
    const std::vector<OwnedPiece> pieces = segment_pairs_of(c);
    c.broadcast_pieces(pieces).wait(stream());
    c.broadcast_pieces({}).wait(stream());
    for (std::size_t k = 0; k < pieces.size(); ++k)
      for (std::int64_t i = 0; i < pieces[k].tensor.numel(); ++i)
        RING_CHECK(element(pieces[k].tensor, i) == piece_value(k, i, pieces[k].root, pieces[k].root), "piece ", k);
  });
}

// Rank a sends (a + b) % 3 messages to rank b, each of a different size. Messages to oneself are copies.
TEST_P(DistCollectives, ExchangeSendsListsOfDifferentLengths) {
  CommOptions verify;
  verify.verify = true;
  expect_all(
      [](Communicator& c) {
        const auto count = [](int a, int b) { return (a + b) % 3; };
        const auto numel = [](int a, int b, int k) { return 1 + 1000 * a + 100 * b + 70'000 * k; };
        std::vector<Transfer> sends, receives;
        for (int p = c.size() - 1; p >= 0; --p)
          for (int k = 0; k < count(c.rank(), p); ++k)
            sends.push_back({random_tensor(numel(c.rank(), p, k), 100 * c.rank() + 10 * p + k), p});
        for (int p = 0; p < c.size(); ++p)
          for (int k = 0; k < count(p, c.rank()); ++k)
            receives.push_back({Tensor::zeros({numel(p, c.rank(), k)}, DType::f32, stream()), p});
        c.exchange(sends, receives).wait(stream());
        c.exchange({}, {}).wait(stream());
        std::size_t next = 0;
        for (int p = 0; p < c.size(); ++p)
          for (int k = 0; k < count(p, c.rank()); ++k, ++next)
            for (std::int64_t i = 0; i < receives[next].tensor.numel(); ++i)
              RING_CHECK(receives[next].tensor.data<float>()[i] == random_value(100 * p + 10 * c.rank() + k, i),
                         "message ", k, " from rank ", p, ", element ", i);
      },
      verify);
}

TEST_P(DistCollectives, SendAndRecvMatchEachOther) {
  expect_all([](Communicator& c) {
    const Tensor t = random_tensor(50, c.rank());
    if (c.rank() == 0)
      for (int p = 1; p < c.size(); ++p) c.send(t, p).synchronize();
    else
      c.recv(t, 0).synchronize();
    RING_CHECK(t.data<float>()[7] == random_value(0, 7), "rank ", c.rank());
  });
}

TEST_P(DistCollectives, QueuedOperationsRunInOrder) {
  CommOptions verify;
  verify.verify = true;
  expect_all(
      [](Communicator& c) {
        std::vector<Tensor> tensors;
        std::vector<Work> works;
        for (int k = 0; k < 30; ++k) {
          tensors.push_back(random_tensor(10 + 400 * k, c.rank()));
          works.push_back(c.all_reduce(tensors.back(), Reduce::sum));
        }
        works.back().wait(stream());
        for (int k = 0; k < 30; ++k) {
          RING_CHECK(works[static_cast<std::size_t>(k)].done(), "operation ", k, " is not done, but the last one is");
          const Tensor& t = tensors[static_cast<std::size_t>(k)];
          RING_CHECK(t.data<float>()[t.numel() - 1] == sum_in_order(c.size(), t.numel() - 1), "operation ", k);
        }
      },
      verify);
}

TEST_P(DistCollectives, PartsOfABufferGiveTheSameBits) {
  expect_all([](Communicator& c) {
    const std::int64_t n = 300'001;
    const Tensor whole = random_tensor(n, c.rank()), parts = random_tensor(n, c.rank());
    c.all_reduce(whole, Reduce::sum).wait(stream());
    for (std::int64_t begin = 0, size = 1; begin < n; begin += size, size = size * 3 + 1) {
      size = std::min(size, n - begin);
      c.all_reduce(parts.narrow(0, begin, size), Reduce::sum).wait(stream());
    }
    RING_CHECK(std::memcmp(whole.raw(), parts.raw(), whole.bytes()) == 0, "the cut changed the bits");
  });
}

// An event that is done once it is opened.
class Gate final : public EventImpl {
 public:
  bool done() const override { return open_.load(); }
  void synchronize() const override { open_.wait(false); }
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_{false};
};

TEST_P(DistCollectives, AnOperationStartsAfterItsEvent) {
  expect_all([](Communicator& c) {
    const auto gate = std::make_shared<Gate>();
    const Tensor t = Tensor::zeros({10}, DType::f32, stream());
    Work first = c.all_reduce(t, Reduce::sum, Event(gate));  // must not read t yet
    const Tensor later = random_tensor(10, c.rank());
    Work second = c.all_reduce(later, Reduce::sum);
    RING_CHECK(!first.done(), "ran before its event");
    for (int i = 0; i < 10; ++i) t.data<float>()[i] = 1;
    gate->open();
    second.wait(stream());
    RING_CHECK(first.done(), "the second operation overtook the first");
    RING_CHECK(t.data<float>()[0] == static_cast<float>(c.size()), "got ", t.data<float>()[0]);
  });
}

TEST(Communicator, ChecksItsArguments) {
  const auto c = make_self_communicator();
  const Tensor t = Tensor::zeros({4}, DType::f32, stream());
  EXPECT_THROW(c->all_reduce({}, Reduce::sum), Error);
  EXPECT_THROW(c->all_reduce(Tensor::zeros({4}, DType::u8, stream()), Reduce::sum), Error);
  EXPECT_THROW(c->all_reduce(Tensor::zeros({4, 4}, DType::f32, stream()).narrow(1, 0, 2), Reduce::sum), Error);
  EXPECT_THROW(c->all_gather(t, Tensor::zeros({3}, DType::f32, stream())), Error);
  EXPECT_THROW(c->all_gather(t, Tensor::zeros({4}, DType::i32, stream())), Error);
  EXPECT_THROW(c->reduce_scatter(t, Tensor::zeros({8}, DType::f32, stream()), Reduce::sum), Error);
  EXPECT_THROW(c->broadcast(t, 1), Error);
  EXPECT_THROW(c->broadcast(t, -1), Error);
  EXPECT_THROW(c->send(t, 0), Error);
  EXPECT_THROW(c->recv(t, 1), Error);
  EXPECT_THROW(c->all_to_all(t, t), Error);
  EXPECT_THROW(c->all_to_all(t, Tensor::zeros({3}, DType::f32, stream())), Error);
  EXPECT_THROW(c->all_to_all(t, Tensor::zeros({4}, DType::i32, stream())), Error);
  EXPECT_THROW(c->reduce_pieces({{t, 0}, {t, 1}}, Reduce::sum), Error);
  EXPECT_THROW(c->reduce_pieces({{Tensor::zeros({4}, DType::u8, stream()), 0}}, Reduce::sum), Error);
  EXPECT_THROW(c->broadcast_pieces({{{}, 0}}), Error);
  EXPECT_THROW(c->exchange({{t, 1}}, {}), Error);
  EXPECT_THROW(c->exchange({{t, 0}}, {}), Error);
  EXPECT_THROW(c->exchange({}, {{t, 0}}), Error);
  EXPECT_THROW(c->exchange({{t, 0}}, {{Tensor::zeros({3}, DType::f32, stream()), 0}}), Error);
}

TEST(Communicator, SelfMovesInputToOutput) {
  const auto c = make_self_communicator();
  const Tensor in = random_tensor(5, 0), out = Tensor::zeros({5}, DType::f32, stream());
  c->all_gather(out, in).wait(stream());
  EXPECT_EQ(std::memcmp(out.raw(), in.raw(), in.bytes()), 0);
  fill_zero(out, stream());
  c->reduce_scatter(out, in, Reduce::max).wait(stream());
  EXPECT_EQ(std::memcmp(out.raw(), in.raw(), in.bytes()), 0);
  fill_zero(out, stream());
  c->send_recv(in, 0, out, 0).wait(stream());
  EXPECT_EQ(std::memcmp(out.raw(), in.raw(), in.bytes()), 0);
  fill_zero(out, stream());
  c->all_to_all(out, in).wait(stream());
  EXPECT_EQ(std::memcmp(out.raw(), in.raw(), in.bytes()), 0);
  fill_zero(out, stream());
  c->exchange({{in, 0}}, {{out, 0}}).wait(stream());
  EXPECT_EQ(std::memcmp(out.raw(), in.raw(), in.bytes()), 0);
}

}  // namespace
}  // namespace ring
