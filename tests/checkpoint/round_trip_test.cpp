// Saved states are loaded bit for bit, and states that do not fit are refused by name.

#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/checkpoint/fixture.h"

namespace ring::test {
namespace {

TEST(RoundTrip, EveryTensorAndValueIsLoadedBitForBit) {
  const TempFolder folder;
  const fs::path path = write_small(folder.path() / "checkpoints", 41);
  EXPECT_EQ(path.filename(), "step-000000041");
  EXPECT_EQ(joined(verify_checkpoint(path, true)), "");

  const SmallState expected(41);
  SmallState loaded(7);
  ASSERT_FALSE(loaded.equals(expected));
  const Manifest manifest = load_state(path, loaded.state, stream());
  EXPECT_TRUE(loaded.equals(expected));
  EXPECT_EQ(manifest.step, 41);
  EXPECT_EQ(manifest.world, 1);
  EXPECT_EQ(manifest.metadata, R"({"config":"a: 1"})");
}

TEST(RoundTrip, ExtremeValuesKeepTheirBits) {
  const TempFolder folder;
  std::vector<double> numbers = {0.0,
                                 -0.0,
                                 0.1,
                                 std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::denorm_min(),
                                 std::numeric_limits<double>::max(),
                                 std::nextafter(1.0, 2.0),
                                 std::nan("")};
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const auto registry = [](std::vector<double>& d, std::int64_t& i, std::uint64_t& u) {
    State s;
    for (std::size_t k = 0; k < d.size(); ++k) s.add("d" + std::to_string(k), &d[k]);
    s.add("i", &i);
    s.add("u", &u);
    return s;
  };
  const fs::path path = write_checkpoint(folder.path(), 0, registry(numbers, least, most).snapshot(stream()), "{}");
  std::vector<double> loaded(numbers.size(), 5.0);
  std::int64_t i = 1;
  std::uint64_t u = 1;
  State state = registry(loaded, i, u);
  load_state(path, state, stream());
  for (std::size_t k = 0; k + 1 < numbers.size(); ++k)
    EXPECT_EQ(std::memcmp(&loaded[k], &numbers[k], sizeof(double)), 0) << k;
  EXPECT_TRUE(std::isnan(loaded.back()));
  EXPECT_EQ(i, least);
  EXPECT_EQ(u, most);
}

TEST(RoundTrip, TheSameStateGivesTheSameShard) {
  const TempFolder a, b;
  EXPECT_EQ(read_manifest(write_small(a.path(), 5)).files[0].xxh3,
            read_manifest(write_small(b.path(), 5)).files[0].xxh3);
}

TEST(RoundTrip, TheSameStepReplacesTheFirst) {
  const TempFolder folder;
  write_small(folder.path(), 3);
  const SmallState other(99);
  const fs::path path = write_checkpoint(folder.path(), 3, other.state.snapshot(stream()), "{}");
  SmallState loaded(0);
  load_state(path, loaded.state, stream());
  EXPECT_TRUE(loaded.equals(other));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

TEST(State, RefusesWhatItCannotSave) {
  State s;
  const Tensor t = filled({4, 6}, DType::f32, 1);
  std::int64_t value = 0;
  s.add("a", t);
  EXPECT_TRUE(contains(error_of([&] { s.add("a", t); }), "'a' was added twice"));
  EXPECT_TRUE(contains(error_of([&] { s.add("a", &value); }), "'a' was added twice"));
  EXPECT_TRUE(contains(error_of([&] { s.add("x/y", t); }), "'x/y'"));
  EXPECT_TRUE(contains(error_of([&] { s.add("", t); }), "needs a name"));
  EXPECT_TRUE(contains(error_of([&] { s.add("b", Tensor()); }), "'b' is an undefined tensor"));
  EXPECT_TRUE(contains(error_of([&] { s.add("c", t.narrow(1, 0, 3)); }), "'c' is strided"));
  EXPECT_TRUE(contains(error_of([&] { s.add({"d", {8, 6}, {5, 0}, t}); }), "'d': slice [4,6] at [5,0] exceeds"));
  EXPECT_TRUE(contains(error_of([&] { s.add({"e", {24}, {0}, t}); }), "'e'"));
  EXPECT_TRUE(contains(error_of([&] { s.add("f", static_cast<double*>(nullptr)); }), "'f' is a null pointer"));
}

TEST(Load, NamesDifferencesAndChangesNothing) {
  const TempFolder folder;
  const fs::path path = write_small(folder.path(), 1);
  Tensor embedding = filled({37, 8}, DType::f32, 5), fresh = filled({2}, DType::f32, 6),
         half = filled({5, 7, 3}, DType::i32, 7), norm = filled({16}, DType::f32, 8);
  std::int64_t counter = 77;
  State state;
  state.add("model.embedding", embedding);
  state.add("model.half", half);
  state.add("model.norm", norm);
  state.add("feature.history", fresh);
  state.add("data.counter", &counter);
  const std::string error = error_of([&] { load_state(path, state, stream()); });
  EXPECT_TRUE(contains(error, "missing in the checkpoint: feature.history")) << error;
  EXPECT_TRUE(contains(error, "data.carry")) << error;
  EXPECT_TRUE(contains(error, "data.cursor")) << error;
  for (const char* part : {"model.embedding: f32[37,16]", "f32[37,8]", "model.half: bf16[5,7,3]", "i32[5,7,3]",
                           "data.counter: u64", "i64 here"})
    EXPECT_TRUE(contains(error, part)) << part << " is not in: " << error;
  EXPECT_TRUE(same_bytes(norm, filled({16}, DType::f32, 8)));
  EXPECT_EQ(counter, 77);
}

// In these tests, metadata lists the names that the checkpoint was saved with, separated by blanks.
PartialLoadPolicy with_names_in_metadata(KeyMismatch* heard) {
  const auto saved = [](const std::string& metadata) {
    std::istringstream names(nlohmann::json::parse(metadata).at("names").get<std::string>());
    return std::set<std::string>(std::istream_iterator<std::string>(names), {});
  };
  return {saved, [heard](const KeyMismatch& mismatch, const std::string&) { *heard = mismatch; }};
}

TEST(Load, MaySkipTensorsBelowAPrefix) {
  const TempFolder folder;
  Tensor w = filled({4}, DType::f32, 1), gone = filled({3}, DType::f32, 2), kept = filled({5}, DType::f32, 3);
  State saved;
  saved.add("model.w", w);
  saved.add("optimizer.m.w", gone);
  saved.add("optimizer.m.x", kept);
  const char* const metadata = R"({"names": "optimizer.m.w optimizer.m.x"})";
  const fs::path path = write_checkpoint(folder.path(), 1, saved.snapshot(stream()), metadata);
  Tensor other_w = filled({4}, DType::f32, 4), fresh = filled({3}, DType::f32, 5), x = filled({5}, DType::f32, 6);
  State state;
  state.add("model.w", other_w);
  state.add("optimizer.momentum.w", fresh);
  state.add("optimizer.m.x", x);
  EXPECT_TRUE(contains(error_of([&] { load_state(path, state, stream()); }), "optimizer.momentum.w"));
  KeyMismatch heard;
  state.allow_partial_load("optimizer.", with_names_in_metadata(&heard));
  load_state(path, state, stream());
  EXPECT_EQ(heard.missing, std::vector<std::string>{"optimizer.momentum.w"});
  EXPECT_EQ(heard.unexpected, std::vector<std::string>{"optimizer.m.w"});
  EXPECT_TRUE(same_bytes(other_w, w));
  EXPECT_TRUE(same_bytes(x, kept));
  EXPECT_TRUE(same_bytes(fresh, filled({3}, DType::f32, 5)));
  Tensor shorter = filled({2}, DType::f32, 6);
  State cut;
  cut.add("model.w", w);
  cut.add("optimizer.m.x", shorter);
  cut.allow_partial_load("optimizer.", with_names_in_metadata(&heard));
  EXPECT_TRUE(contains(error_of([&] { load_state(path, cut, stream()); }), "optimizer.m.x: f32[5]"));
}

TEST(Load, MaySkipValuesBelowAPrefix) {
  const TempFolder folder;
  std::int64_t step = 7, gone = 3;
  State saved;
  saved.add("step", &step);
  saved.add("old.count", &gone);
  const fs::path path =
      write_checkpoint(folder.path(), 1, saved.snapshot(stream()), R"({"names": "old.count old.lost"})");
  std::int64_t loaded = 0, fresh = 5, lost = 6;
  KeyMismatch heard;
  State state;
  state.add("step", &loaded);
  state.add("old.fresh", &fresh);
  state.allow_partial_load("old.", with_names_in_metadata(&heard));
  load_state(path, state, stream());
  EXPECT_EQ(loaded, 7);
  EXPECT_EQ(fresh, 5);
  EXPECT_EQ(heard.missing, std::vector<std::string>{"old.fresh"});
  EXPECT_EQ(heard.unexpected, std::vector<std::string>{"old.count"});
  state.add("old.lost", &lost);
  const std::string error = error_of([&] { load_state(path, state, stream()); });
  EXPECT_TRUE(contains(error, "missing in the checkpoint: old.lost")) << error;
}

// The metadata names optimizer.m.v, which is missing, but not optimizer.m.w, which exists.
TEST(Load, NamesTensorsThatTheCheckpointLost) {
  const TempFolder folder;
  Tensor w = filled({4}, DType::f32, 1), v = filled({4}, DType::f32, 2);
  State saved;
  saved.add("optimizer.m.w", w);
  const fs::path path = write_checkpoint(folder.path(), 1, saved.snapshot(stream()), R"({"names": "optimizer.m.v"})");
  State state;
  state.add("optimizer.m.v", v);
  KeyMismatch heard;
  state.allow_partial_load("optimizer.", with_names_in_metadata(&heard));
  const std::string error = error_of([&] { load_state(path, state, stream()); });
  EXPECT_TRUE(contains(error, path.string())) << error;
  EXPECT_TRUE(contains(error, "missing in the checkpoint: optimizer.m.v")) << error;
  EXPECT_TRUE(contains(error, "only in the checkpoint: optimizer.m.w")) << error;
  EXPECT_TRUE(contains(error, "run.init_from")) << error;
  EXPECT_TRUE(heard.missing.empty() && heard.unexpected.empty());
}

TEST(Load, ConvertsBetweenFloatTypes) {
  const TempFolder folder;
  const std::vector<float> numbers = {1.0f, -0.3f, 1e-40f, 3.4e38f, 1.00390625f, 1.01171875f, 0.0f};
  Tensor exact = from_host(numbers, stream()), rounded = Tensor::empty({7}, DType::bf16, stream());
  for (std::size_t i = 0; i < numbers.size(); ++i) rounded.data<bf16>()[i] = to_bf16(numbers[i]);
  State saved;
  saved.add("a", exact);
  saved.add("b", rounded);
  const fs::path path = write_checkpoint(folder.path(), 1, saved.snapshot(stream()), "{}");
  Tensor a = Tensor::empty({7}, DType::bf16, stream()), b = Tensor::empty({7}, DType::f32, stream());
  State other;
  other.add("a", a);
  other.add("b", b);
  load_state(path, other, stream());
  EXPECT_TRUE(same_bytes(a, rounded));
  for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(b.data<float>()[i], to_float(to_bf16(numbers[i])));
  EXPECT_EQ(b.data<float>()[4], 1.0f) << "a tie goes to the even neighbour";
  EXPECT_EQ(b.data<float>()[5], 1.015625f) << "a tie goes to the even neighbour";
}

TEST(Load, WeightsOnlyLoadsOnePrefix) {
  const TempFolder folder;
  const fs::path path = write_small(folder.path(), 12);
  const SmallState expected(12), untouched(3);
  SmallState loaded(3);
  const WeightsReport report = load_weights(path, loaded.state, "model.", stream());
  EXPECT_TRUE(report.complete());
  EXPECT_EQ(report.matching.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bytes(loaded.tensors[i], expected.tensors[i])) << i;
  for (std::size_t i = 3; i < loaded.tensors.size(); ++i)
    EXPECT_TRUE(same_bytes(loaded.tensors[i], untouched.tensors[i])) << i;
  EXPECT_EQ(loaded.note, untouched.note);
}

TEST(Load, WeightsOnlyReportsWhatDoesNotFit) {
  const TempFolder folder;
  const fs::path path = write_small(folder.path(), 12);
  Tensor embedding = filled({40, 16}, DType::f32, 1), norm = filled({16}, DType::f32, 2),
         extra = filled({1}, DType::f32, 3);
  State state;
  state.add("model.embedding", embedding);
  state.add("model.norm", norm);
  state.add("model.extra", extra);
  const std::string error = error_of([&] { load_weights(path, state, "model.", stream()); });
  EXPECT_TRUE(contains(error, "missing in the checkpoint: model.extra")) << error;
  EXPECT_TRUE(contains(error, "only in the checkpoint: model.half")) << error;
  EXPECT_TRUE(contains(error, "model.embedding: f32[37,16]") && contains(error, "f32[40,16]")) << error;
  EXPECT_TRUE(same_bytes(norm, filled({16}, DType::f32, 2)));
  const WeightsReport report = load_weights(path, state, "model.", stream(), /*strict=*/false);
  EXPECT_EQ(report.matching, std::vector<std::string>{"model.norm"});
  EXPECT_TRUE(same_bytes(norm, SmallState(12).tensors[1]));
  EXPECT_TRUE(contains(error_of([&] { load_weights(path, state, "nets.", stream()); }), "'nets....'"));
}

TEST(Write, BadArgumentsAreNamed) {
  const TempFolder folder;
  const SmallState s(1);
  const auto write = [&](const fs::path& where, const std::string& metadata, const Retention& keep) {
    return error_of([&] { write_checkpoint(where, 1, s.state.snapshot(stream()), metadata, keep); });
  };
  EXPECT_TRUE(contains(write(folder.path(), "{}", {0, 0}), "keep_last is 0"));
  EXPECT_TRUE(contains(write(folder.path(), "{}", {1, -1}), "keep_every is -1"));
  EXPECT_TRUE(contains(write(folder.path(), "not json", {}), "cannot be written as JSON"));
  EXPECT_TRUE(contains(write(folder.path(), "[1]", {}), "metadata is [1]"));
  std::ofstream(folder.path() / "file") << "x";
  EXPECT_TRUE(contains(write(folder.path() / "file", "{}", {}), "file/step-000000001"));
  EXPECT_EQ(list_checkpoints(folder.path()).size(), 0u);
  EXPECT_EQ(remove_stale_entries(folder.path()), 0);  // failed writes remove their files
}

TEST(Write, StringsThatAreNotTextAreRefused) {
  const TempFolder folder;
  std::string bytes = "\xff\xfe";
  State s;
  s.add("raw", &bytes);
  EXPECT_TRUE(contains(error_of([&] { write_checkpoint(folder.path(), 1, s.snapshot(stream()), "{}"); }), "'raw'"));
}

}  // namespace
}  // namespace ring::test
