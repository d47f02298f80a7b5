// Damage of every kind is found and named, and the checkpoint before is used.

#include <algorithm>

#include "checkpoint/files.h"
#include "tests/checkpoint/fixture.h"

namespace ring::test {
namespace {

class Damage : public testing::Test {
 protected:
  void SetUp() override {
    write_small(folder(), 10);
    path_ = write_small(folder(), 20);
    ASSERT_EQ(newest(), 20);
  }
  const fs::path& folder() const { return temp_.path(); }
  fs::path file(const std::string& name) const { return path_ / name; }
  std::int64_t newest() const {
    const auto found = find_newest_verified(folder());
    return found ? found->manifest.step : -1;
  }
  // Expects that the newest checkpoint is refused for a reason that names `what`, and that the one before loads whole.
  void expect_refused(const std::string& what) const {
    const std::string problems = joined(verify_checkpoint(path_));
    ASSERT_TRUE(contains(problems, what)) << what << " in: " << problems;
    const auto found = find_newest_verified(folder());
    ASSERT_TRUE(found && found->manifest.step == 10);
    SmallState loaded(0);
    load_state(found->path, loaded.state, stream());
    ASSERT_TRUE(loaded.equals(SmallState(10)));
  }

  TempFolder temp_;
  fs::path path_;
};

void overwrite(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

TEST_F(Damage, AFlippedByteAnywhereIsNamed) {
  for (const std::string name : {"shard-00000.h5", "manifest.json"}) {
    const std::string good = read_text(file(name));
    const std::size_t stride = std::max<std::size_t>(1, good.size() / 60);
    for (std::size_t at = 0; at < good.size(); at += stride) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
      overwrite(file(name), bad);
      expect_refused(name);
    }
    overwrite(file(name), good);
    ASSERT_EQ(newest(), 20);
  }
}

TEST_F(Damage, AFlippedByteInATensorNamesTheTensor) {
  const Manifest m = read_manifest(path_);
  for (const auto& [name, t] : m.tensors) {
    if (t.slices[0].bytes == 0) continue;
    const std::string good = read_text(file("shard-00000.h5"));
    std::string bad = good;
    bad[t.slices[0].offset + t.slices[0].bytes - 1] ^= 1;
    overwrite(file("shard-00000.h5"), bad);
    expect_refused("shard-00000.h5: the bytes of tensor '" + name + "'");
    overwrite(file("shard-00000.h5"), good);
  }
}

TEST_F(Damage, ATruncatedFileIsNamedAtAnyLength) {
  for (const std::string name : {"shard-00000.h5", "manifest.json"}) {
    const std::string good = read_text(file(name));
    for (std::size_t k = 0; k < 50; ++k) {
      overwrite(file(name), good.substr(0, k < 10 ? k : k * good.size() / 50));
      expect_refused(name);
    }
    overwrite(file(name), good.substr(0, good.size() - 1));
    expect_refused(name);
    overwrite(file(name), good + "x");
    expect_refused(name);
    overwrite(file(name), good);
  }
}

TEST_F(Damage, ATruncatedShardNamesTheFirstLostTensor) {
  const Manifest m = read_manifest(path_);
  const SavedSlice& slice = m.tensors.at("model.norm").slices[0];
  fs::resize_file(file("shard-00000.h5"), slice.offset + slice.bytes - 1);
  expect_refused("truncated from tensor 'model.norm' on");
}

TEST_F(Damage, AMissingShardIsNamed) {
  fs::remove(file("shard-00000.h5"));
  expect_refused("shard-00000.h5 is missing");
}

TEST_F(Damage, AMissingManifestIsNamed) {
  fs::remove(file("manifest.json"));
  expect_refused("manifest.json is missing");
}

TEST_F(Damage, AnEmptyFolderIsRefused) {
  fs::remove_all(path_);
  fs::create_directory(path_);
  expect_refused("manifest.json is missing");
}

TEST_F(Damage, FoldersInPlaceOfFilesAreRefused) {
  fs::remove(file("shard-00000.h5"));
  fs::create_directory(file("shard-00000.h5"));
  expect_refused("shard-00000.h5: it is a directory");
  fs::remove(file("manifest.json"));
  fs::create_directory(file("manifest.json"));
  expect_refused("manifest.json");
}

TEST_F(Damage, AShardOfAnotherCheckpointIsRefused) {
  fs::copy_file(folder() / checkpoint_name(10) / "shard-00000.h5", file("shard-00000.h5"),
                fs::copy_options::overwrite_existing);
  expect_refused("shard-00000.h5: the bytes of tensor");
}

TEST_F(Damage, AForeignShardIsRefused) {
  overwrite(file("shard-00000.h5"), "something else");
  expect_refused("shard-00000.h5 has 14 bytes");
}

TEST_F(Damage, AForeignManifestIsRefused) {
  const std::string body = "{\n \"format\": \"other\",\n";
  overwrite(file("manifest.json"), body + " \"xxh3\": \"" + hash_of(body) + "\"\n}\n");
  expect_refused("format is \"other\"");
  overwrite(file("manifest.json"), "[]");
  expect_refused("manifest.json");
}

TEST_F(Damage, TheManifestOfAnotherStepIsRefused) {
  fs::copy_file(folder() / checkpoint_name(10) / "manifest.json", file("manifest.json"),
                fs::copy_options::overwrite_existing);
  expect_refused("manifest.json is of step 10");
}

TEST_F(Damage, OnlyDamagedCheckpointsAreAnErrorAndNoneIsNot) {
  fs::remove(file("manifest.json"));
  fs::remove(folder() / checkpoint_name(10) / "manifest.json");
  EXPECT_TRUE(contains(error_of([&] { find_newest_verified(folder()); }), "is intact (2 damaged"));
  const TempFolder empty;
  EXPECT_FALSE(find_newest_verified(empty.path()).has_value());
  EXPECT_FALSE(find_newest_verified(empty.path() / "absent").has_value());
}

TEST_F(Damage, UnfinishedAttemptsAreNeitherUsedNorKept) {
  const fs::path stale = folder() / "step-000000030.tmp-123", doomed = folder() / "step-000000005.tmp-removed";
  fs::copy(path_, stale);
  fs::copy(path_, doomed);
  fs::create_directory(folder() / "notes.tmp-1");
  EXPECT_EQ(newest(), 20);
  EXPECT_EQ(list_checkpoints(folder()).size(), 2u);
  EXPECT_EQ(remove_stale_entries(folder()), 2);
  EXPECT_FALSE(fs::exists(stale) || fs::exists(doomed));
  EXPECT_TRUE(fs::exists(folder() / "notes.tmp-1"));
  EXPECT_EQ(newest(), 20);
}

TEST_F(Damage, LoadingNoticesChangesAfterVerification) {
  std::string bytes = read_text(file("shard-00000.h5"));
  bytes[read_manifest(path_).tensors.at("model.norm").slices[0].offset] ^= 4;
  overwrite(file("shard-00000.h5"), bytes);
  SmallState loaded(0);
  EXPECT_TRUE(
      contains(error_of([&] { load_state(path_, loaded.state, stream()); }), "tensor 'model.norm' was read with"));
  fs::resize_file(file("shard-00000.h5"), 100);
  EXPECT_TRUE(contains(error_of([&] { load_state(path_, loaded.state, stream()); }), "has 100 bytes"));
}

// These manifests have the right hash and still contradict themselves.
TEST(ManifestParts, ContradictionsAreNamed) {
  const auto problem = [](const std::function<void(Manifest&)>& change) {
    Manifest m;
    m.files = {{"shard-00000.h5", 1000, "h"}};
    m.tensors["w"] = {DType::f32, {4}, {{{{0}, {4}}, "shard-00000.h5", 100, 16, "h"}}};
    change(m);
    return error_of([&] { parse_manifest(to_text(m)); });
  };
  EXPECT_EQ(problem([](Manifest&) {}), "");
  EXPECT_TRUE(contains(problem([](Manifest& m) { m.files[0].name = "../secret"; }), "'../secret' is not the name"));
  EXPECT_TRUE(
      contains(problem([](Manifest& m) { m.tensors["w"].slices[0].file = "x"; }), "'x', which the manifest's list"));
  EXPECT_TRUE(contains(problem([](Manifest& m) { m.tensors["w"].slices[0].offset = 985; }), "ends at byte 985 + 16"));
  EXPECT_TRUE(contains(problem([](Manifest& m) { m.tensors["w"].slices[0].offset = ~0ull; }), "ends at byte"));
  EXPECT_TRUE(contains(problem([](Manifest& m) { m.tensors["w"].slices[0].bytes = 12; }), "12 bytes for a slice"));
  EXPECT_TRUE(contains(problem([](Manifest& m) { m.tensors["w"].global_shape = {5}; }), "has 5 elements"));
  EXPECT_TRUE(
      contains(problem([](Manifest& m) { m.tensors["w"].slices.push_back(m.tensors["w"].slices[0]); }), "overlap"));
  EXPECT_TRUE(contains(problem([](Manifest& m) { m.tensors["w"].slices[0].region.start = {1}; }), "exceeds the shape"));
  EXPECT_TRUE(
      contains(problem([](Manifest& m) { m.tensors["w"].slices[0].region.size = {-4}; }), "at least 0, got [-4]"));
}

}  // namespace
}  // namespace ring::test
