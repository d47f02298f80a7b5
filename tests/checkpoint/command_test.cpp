// `ringmaster checkpoint inspect` and `verify`, run as by a user.

#include <cstdio>

#include "tests/checkpoint/fixture.h"
#include "tests/paths.h"

namespace ring::test {
namespace {

struct Outcome {
  int code;
  std::string text;  // standard output and error
};
Outcome run(const std::string& arguments) {
  FILE* pipe = ::popen((ring_binary() + " checkpoint " + arguments + " 2>&1").c_str(), "r");
  std::string text;
  char block[512];
  while (const std::size_t n = std::fread(block, 1, sizeof block, pipe)) text.append(block, n);
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

class Command : public testing::Test {
 protected:
  void SetUp() override {
    write_small(temp_.path() / "checkpoints", 10);
    newest_ = write_small(temp_.path() / "checkpoints", 20);
  }
  std::string folder() const { return temp_.path().string(); }
  TempFolder temp_;
  fs::path newest_;
};

TEST_F(Command, InspectPrintsTheNewestCheckpointOfARun) {
  const Outcome o = run("inspect " + folder());
  EXPECT_EQ(o.code, 0) << o.text;
  for (const char* part : {"step 20, written by 1 rank", "config: a: 1", "data.cursor = -20", "f32[37,16]  2.3 KiB",
                           "shard-00000.h5", "total: 7 tensors, 1718 elements"})
    EXPECT_TRUE(contains(o.text, part)) << part << " in " << o.text;
  EXPECT_TRUE(
      contains(run("inspect " + (temp_.path() / "checkpoints" / checkpoint_name(10)).string()).text, "step 10,"));
}

TEST_F(Command, VerifyNamesTheDamageAndExitsWithOne) {
  EXPECT_EQ(run("verify " + folder()).code, 0);
  const SavedSlice slice = read_manifest(newest_).tensors.at("model.norm").slices[0];
  {
    std::fstream file(newest_ / "shard-00000.h5", std::ios::in | std::ios::out | std::ios::binary);
    const int old = (file.seekg(static_cast<std::streamoff>(slice.offset)), file.get());
    file.seekp(static_cast<std::streamoff>(slice.offset)).put(static_cast<char>(old ^ 8));
  }
  for (const std::string& path : {folder(), newest_.string() + "/"}) {
    const Outcome o = run("verify " + path);
    EXPECT_EQ(o.code, 1);
    EXPECT_TRUE(contains(o.text, "shard-00000.h5: the bytes of tensor 'model.norm'")) << o.text;
  }
  EXPECT_TRUE(contains(run("verify " + folder()).text, "1 of 2 checkpoints are damaged"));
}

TEST_F(Command, PathsWithoutACheckpointAreAnError) {
  const Outcome absent = run("inspect " + folder() + "/absent");
  EXPECT_EQ(absent.code, 1);
  EXPECT_TRUE(contains(absent.text, "absent does not exist")) << absent.text;
  fs::create_directory(temp_.path() / "empty");
  const Outcome empty = run("verify " + folder() + "/empty");
  EXPECT_EQ(empty.code, 1);
  EXPECT_TRUE(contains(empty.text, "is not a checkpoint")) << empty.text;
}

}  // namespace
}  // namespace ring::test
