// Manifests of strange kinds, sizes and depths, and with numbers that make no sense.

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "checkpoint/files.h"
#include "tests/checkpoint/fixture.h"

namespace ring::test {
namespace {

std::string with_hash(const std::string& body) { return body + " \"xxh3\": \"" + hash_of(body) + "\"\n}\n"; }

class StrangeManifest : public testing::Test {
 protected:
  void SetUp() override {
    write_small(temp_.path(), 10);
    path_ = write_small(temp_.path(), 20) / "manifest.json";
    fs::remove(path_);
  }
  // Expects that the manifest is named and skipped quickly.
  void expect_skipped(const std::string& what) const {
    const std::string problems = joined(verify_checkpoint(path_.parent_path()));
    EXPECT_TRUE(contains(problems, "manifest.json") && contains(problems, what)) << problems;
    EXPECT_EQ(find_newest_verified(temp_.path())->manifest.step, 10);
  }
  TempFolder temp_;
  fs::path path_;
};

TEST_F(StrangeManifest, ANamedPipeIsSkippedWithoutWaiting) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  expect_skipped("a named pipe, not a file");
}

TEST_F(StrangeManifest, ADirectoryIsSkipped) {
  fs::create_directory(path_);
  expect_skipped("a directory, not a file");
}

TEST_F(StrangeManifest, ALoopOfLinksIsSkipped) {
  fs::create_symlink("manifest.json", path_);
  expect_skipped("symbolic links");
}

TEST_F(StrangeManifest, ADeviceIsSkipped) {
  fs::create_symlink("/dev/zero", path_);
  expect_skipped("a device, not a file");
}

TEST_F(StrangeManifest, FortyGigabytesAreSkipped) {
  std::ofstream(path_) << "{";
  fs::resize_file(path_, std::uintmax_t{40} << 30);  // a sparse file takes no space
  expect_skipped("42949672960 bytes, but at most 268435456");
}

TEST_F(StrangeManifest, AMillionLevelsAreSkipped) {
  std::ofstream(path_) << with_hash("{\"metadata\": " + std::string(1000000, '[') + std::string(1000000, ']') + ",");
  expect_skipped("levels deep");
}

TEST_F(StrangeManifest, AShardThatIsAPipeIsNamed) {
  write_small(temp_.path(), 20);
  const fs::path shard = path_.parent_path() / "shard-00000.h5";
  fs::remove(shard);
  ASSERT_EQ(::mkfifo(shard.c_str(), 0600), 0);
  const std::string problems = joined(verify_checkpoint(path_.parent_path()));
  EXPECT_TRUE(contains(problems, "shard-00000.h5: it is a named pipe")) << problems;
}

// Parses a manifest of one tensor w, f32[4] in shard-00000.h5, with the JSON value at `place` replaced. Returns the
// error.
std::string problem_with(const std::string& place, const nlohmann::json& value) {
  Manifest m;
  m.files = {{"shard-00000.h5", 1000, "h"}};
  m.values["cursor"] = std::int64_t{3};
  m.tensors["w"] = {DType::f32, {4}, {{{{0}, {4}}, "shard-00000.h5", 100, 16, "h"}}};
  nlohmann::json j = nlohmann::json::parse(to_text(m));
  j.erase("xxh3");
  j[nlohmann::json::json_pointer(place)] = value;
  std::string body = j.dump();
  body.back() = ',';
  return error_of([&] { parse_manifest(with_hash(body)); });
}

TEST(ManifestNumbers, AreWholeAndInRange) {
  EXPECT_EQ(problem_with("/step", 7), "");
  const std::string slice = "/tensors/w/slices/0";
  for (const char* place : {"/step", "/layout/world", "/values/cursor/i64", "/files/shard-00000.h5/bytes",
                            "/tensors/w/shape/0", "/tensors/w/slices/0/offset", "/tensors/w/slices/0/bytes",
                            "/tensors/w/slices/0/start/0", "/tensors/w/slices/0/size/0"})
    for (const nlohmann::json& value : {nlohmann::json(1.5), nlohmann::json(1e300), nlohmann::json(true),
                                        nlohmann::json("4"), nlohmann::json::parse("99999999999999999999999")})
      EXPECT_TRUE(contains(problem_with(place, value), "whole number")) << place << " " << value;
  for (const char* place : {"/files/shard-00000.h5/bytes", "/tensors/w/slices/0/offset", "/step", "/layout/world"})
    EXPECT_NE(problem_with(place, -1), "") << place;
  EXPECT_NE(problem_with("/layout/world", 0), "");
  EXPECT_NE(problem_with("/layout/world", std::int64_t{1} << 32), "");
  for (const char* place : {"/values", "/files", "/tensors", "/metadata", "/layout"})
    EXPECT_NE(problem_with(place, nlohmann::json::array({1})), "") << place;
  EXPECT_NE(problem_with("/tensors/w/shape", nlohmann::json::array({1, 1, 1, 1, 1, 1, 4})), "");  // too many dims
}

TEST(ManifestNumbers, ProductsDoNotOverflow) {
  const std::int64_t half = std::int64_t{1} << 32;
  const auto tensor = [](const nlohmann::json& shape, const nlohmann::json& start, std::uint64_t bytes) {
    return nlohmann::json{{"dtype", "f32"},
                          {"shape", shape},
                          {"slices",
                           {{{"start", start},
                             {"size", shape},
                             {"file", "shard-00000.h5"},
                             {"offset", 0},
                             {"bytes", bytes},
                             {"xxh3", "h"}}}}};
  };
  // 2^32 x 2^32 elements are 0 modulo 2^64, and so are their bytes.
  EXPECT_TRUE(contains(problem_with("/tensors/w", tensor({half, half}, {0, 0}, 0)), "larger than any memory"));
  EXPECT_TRUE(contains(problem_with("/tensors/w", tensor({half, half, 0}, {0, 0, 0}, 0)), "larger than any memory"));
  EXPECT_TRUE(contains(problem_with("/tensors/w", tensor({std::int64_t{1} << 61}, {0}, 1)), "larger than any memory"));
  EXPECT_TRUE(contains(problem_with("/tensors/w/slices/0/start/0", INT64_MAX), "exceeds the shape"));
}

TEST(ManifestNumbers, TensorsDoNotShareBytes) {
  Manifest m;
  m.files = {{"shard-00000.h5", 1000, "h"}};
  for (const std::uint64_t second : {116u, 115u, 100u}) {
    m.tensors["a"] = {DType::f32, {4}, {{{{0}, {4}}, "shard-00000.h5", 100, 16, "h"}}};
    m.tensors["b"] = {DType::f32, {4}, {{{{0}, {4}}, "shard-00000.h5", second, 16, "h"}}};
    const std::string problem = error_of([&] { parse_manifest(to_text(m)); });
    EXPECT_EQ(contains(problem, "two tensors share the byte"), second != 116) << problem;
  }
}

// A tensor of many slices is checked in about as many steps, along whichever dim it is sharded.
TEST(ManifestNumbers, ManySlicesAreCheckedQuickly) {
  constexpr std::int64_t kSlices = 20000;
  for (const bool rows : {true, false}) {
    SavedTensor t{DType::f32, rows ? Shape{kSlices, 3} : Shape{3, kSlices}, {}};
    for (std::int64_t i = 0; i < kSlices; ++i)
      t.slices.push_back({rows ? Region{{i, 0}, {1, 3}} : Region{{0, i}, {3, 1}}, "f", 0, 12, ""});
    EXPECT_EQ(error_of([&] { check_cover("w", t); }), "");
    t.slices[7].region = t.slices[kSlices - 1].region;
    EXPECT_TRUE(contains(error_of([&] { check_cover("w", t); }), "overlap"));
  }
}

}  // namespace
}  // namespace ring::test
