// Several ranks write a checkpoint together. Any number of ranks, sharded along any dims, reads it.

#include "checkpoint/files.h"
#include "tests/checkpoint/fixture.h"

namespace ring::test {
namespace {

// Rank r's shard along a dim. Sizes differ by at most one.
struct Cut {
  std::int64_t start, size;
};
Cut cut_of(std::int64_t total, int rank, int world) {
  const std::int64_t from = total * rank / world, to = total * (rank + 1) / world;
  return {from, to - from};
}

std::int64_t global_value(const Shape& shape, const Shape& point) {
  std::int64_t v = 0;
  for (int i = 0; i < shape.size(); ++i) v = v * shape[i] + point[i];
  return v;
}

// Calls visit(slot of the value, global index) for every element of the shard.
void for_each_element(const StateTensor& t, const std::function<void(std::int32_t&, const Shape&)>& visit) {
  Shape point = t.start;
  for (std::int64_t e = 0; e < t.local.numel(); ++e) {
    std::int64_t rest = e;
    for (int i = t.local.shape().size() - 1; i >= 0; --i) {
      point[i] = t.start[i] + rest % t.local.shape()[i];
      rest /= t.local.shape()[i];
    }
    visit(t.local.data<std::int32_t>()[e], point);
  }
}

StateTensor make_part(const std::string& name, const Shape& shape, int dim, int rank, int world) {
  Shape start = shape, size = shape;
  for (int i = 0; i < shape.size(); ++i) start[i] = 0;
  if (dim >= 0) {
    const Cut c = cut_of(shape[dim], rank, world);
    start[dim] = c.start;
    size[dim] = c.size;
  }
  return {name, shape, start, Tensor::zeros(size, DType::i32, Stream::cpu(1))};
}

struct Spec {
  std::string name;
  Shape shape;
};
const std::vector<Spec>& specs() {
  static const std::vector<Spec> all = {
      {"vector", {11}}, {"matrix", {7, 10}}, {"cube", {5, 4, 9}}, {"deep", {3, 2, 5, 4}}, {"thin", {1, 3}}};
  return all;
}

// Returns a state whose tensors are sharded along different dims or not at all. `shift` changes the dims, so that
// saving and loading shard differently.
State make_state(int rank, int world, int shift) {
  State s;
  int k = shift;
  for (const Spec& spec : specs())
    s.add(make_part(spec.name, spec.shape, k++ % (spec.shape.size() + 1) - 1, rank, world));
  return s;
}

void fill_with_global_values(State& s) {
  for (const auto& [name, t] : s.tensors())
    for_each_element(t, [&](std::int32_t& v, const Shape& p) {
      v = 1 + static_cast<std::int32_t>(global_value(t.global_shape, p));
    });
}

int wrong_elements(const State& s) {
  int wrong = 0;
  for (const auto& [name, t] : s.tensors())
    for_each_element(t, [&](std::int32_t& v, const Shape& p) { wrong += v != 1 + global_value(t.global_shape, p); });
  return wrong;
}

TEST(Reshard, EveryPairOfWorldsAndShardedDimsWorks) {
  for (int from : {1, 2, 3, 4})
    for (int saved_cut : {0, 1, 2}) {
      const TempFolder folder;
      const auto errors = run_ranks(from, [&](const WriterGroup& group) {
        State s = make_state(group.rank, from, saved_cut);
        fill_with_global_values(s);
        write_checkpoint(folder.path(), 9, s.snapshot(stream()), "{}", {}, group);
      });
      ASSERT_EQ(joined(errors), joined(std::vector<std::string>(errors.size())));
      const fs::path path = folder.path() / checkpoint_name(9);
      ASSERT_EQ(joined(verify_checkpoint(path)), "");
      EXPECT_EQ(read_manifest(path).world, from);
      for (int to : {1, 2, 3})
        for (int wanted_cut : {0, 1, 2, 3})
          for (int rank = 0; rank < to; ++rank) {
            State s = make_state(rank, to, wanted_cut);
            load_state(path, s, stream());
            EXPECT_EQ(wrong_elements(s), 0)
                << from << " ranks to " << to << ", cuts " << saved_cut << " " << wanted_cut;
          }
    }
}

TEST(Reshard, ReplicatedTensorsAreWrittenOnceAndSpreadOverRanks) {
  const TempFolder folder;
  run_ranks(3, [&](const WriterGroup& group) {
    State s;
    for (int i = 0; i < 6; ++i) s.add("t" + std::to_string(i), filled({64}, DType::f32, static_cast<std::uint64_t>(i)));
    write_checkpoint(folder.path(), 1, s.snapshot(stream()), "{}", {}, group);
  });
  const Manifest m = read_manifest(folder.path() / checkpoint_name(1));
  EXPECT_EQ(m.tensor_bytes(), 6u * 64 * 4);
  std::map<std::string, int> files;
  for (const auto& [name, t] : m.tensors) {
    ASSERT_EQ(t.slices.size(), 1u);
    ++files[t.slices[0].file];
  }
  EXPECT_EQ(files.size(), 3u);
  for (const auto& [file, count] : files) EXPECT_EQ(count, 2) << file;
}

TEST(Reshard, RanksThatDisagreeFailWithTheReason) {
  const auto attempt = [&](const std::function<void(State&, int)>& add) {
    const TempFolder folder;
    const auto errors = run_ranks(2, [&](const WriterGroup& group) {
      State s;
      add(s, group.rank);
      write_checkpoint(folder.path(), 1, s.snapshot(stream()), "{}", {}, group);
    });
    EXPECT_EQ(errors[0].empty(), errors[1].empty());
    EXPECT_TRUE(fs::is_empty(folder.path()));
    return errors[1];
  };
  EXPECT_TRUE(contains(attempt([](State& s, int r) { s.add("w", filled({4 + r}, DType::f32, 1)); }),
                       "'w' is f32[4] on rank 0 and f32[5] on rank 1"));
  EXPECT_TRUE(contains(attempt([](State& s, int r) {
                         s.add({"gap", {8}, {r * 5}, filled({3}, DType::f32, 1)});
                       }),
                       "'gap' of shape [8] has 8 elements, but its slices hold 6"));
  EXPECT_TRUE(contains(attempt([](State& s, int r) {
                         s.add({"lap", {8}, {r * 3}, filled({4}, DType::f32, 1)});
                       }),
                       "'lap': slices"));
  static std::int64_t cursor[2] = {5, 6};
  EXPECT_TRUE(
      contains(attempt([](State& s, int r) { s.add("cursor", &cursor[r]); }), "'cursor' is {\"i64\":5} on rank 0"));
  EXPECT_TRUE(contains(attempt([](State& s, int r) {
                         if (r) s.add("only", &cursor[r]);
                       }),
                       "'only' exists on rank 1"));
}

TEST(Reshard, MeasuredValuesMayDifferAndRankZerosIsSaved) {
  const TempFolder folder;
  const auto errors = run_ranks(2, [&](const WriterGroup& group) {
    double seconds = 1.5 + group.rank;
    State s;
    s.add("seconds", &seconds, StateScope::rank0);
    write_checkpoint(folder.path(), 1, s.snapshot(stream()), "{}", {}, group);
  });
  EXPECT_EQ(joined(errors), "\n\n");
  double seconds = 0;
  State s;
  s.add("seconds", &seconds);
  load_state(folder.path() / checkpoint_name(1), s, stream());
  EXPECT_EQ(seconds, 1.5);
}

TEST(Reshard, AFailureOnOneRankIsAnErrorOnAll) {
  const TempFolder folder;
  const auto errors = run_ranks(2, [&](const WriterGroup& group) {
    State s;
    s.add({"w", {8}, {group.rank * 4}, filled({4}, DType::f32, 1)});
    WriterGroup mine = group;
    int calls = 0;
    // After the plan is made, a folder takes the name of rank 1's shard, so that the shard cannot be created.
    mine.all_gather = [&, rank = group.rank](const std::string& own) {
      auto all = group.all_gather(own);
      if (rank == 1 && calls++ == 0)
        for (const auto& entry : fs::directory_iterator(folder.path()))
          fs::create_directory(entry.path() / "shard-00001.h5");
      return all;
    };
    write_checkpoint(folder.path(), 1, s.snapshot(stream()), "{}", {}, mine);
  });
  for (const std::string& e : errors) {
    EXPECT_TRUE(contains(e, "rank 1: ")) << e;
    EXPECT_TRUE(contains(e, "shard-00001.h5")) << e;
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Region, RunsCoverTheIntersectionOnce) {
  const Region source{{2, 1, 0}, {4, 5, 6}}, target{{3, 0, 2}, {5, 4, 3}};
  const Region both = intersect(source, target);
  EXPECT_EQ(both.numel(), 3 * 3 * 3);
  std::vector<int> seen_from(120), seen_to(60);
  std::int64_t last = -1;
  for_each_run(source, target, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    EXPECT_GT(from, last);
    last = from + count - 1;
    for (std::int64_t i = 0; i < count; ++i) {
      ++seen_from.at(static_cast<std::size_t>(from + i));
      ++seen_to.at(static_cast<std::size_t>(to + i));
    }
  });
  EXPECT_EQ(std::count(seen_from.begin(), seen_from.end(), 1), 27);
  EXPECT_EQ(std::count(seen_to.begin(), seen_to.end(), 1), 27);
  EXPECT_EQ(std::count(seen_to.begin(), seen_to.end(), 0), 33);
}

TEST(Files, RangesHashLikeTheirBytesAlone) {
  const TempFolder folder;
  std::string text(9'000'001, ' ');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(pattern(3, i));
  write_text(folder.path() / "f", text);
  const std::vector<ByteRange> ranges = {{0, 1}, {1, 0}, {100, 5'000'000}, {5'000'100, 3'900'000}, {8'999'999, 2}};
  const FileHashes h = hash_file(folder.path() / "f", ranges, true);
  EXPECT_EQ(h.bytes, text.size());
  EXPECT_EQ(h.whole, hash_of(text));
  for (std::size_t i = 0; i < ranges.size(); ++i)
    EXPECT_EQ(h.ranges[i], hash_of(std::string_view(text).substr(ranges[i].offset, ranges[i].bytes))) << i;
}

}  // namespace
}  // namespace ring::test
