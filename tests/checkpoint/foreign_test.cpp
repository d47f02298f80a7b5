// Other files among the checkpoints: they keep no run from starting, and are not removed.

#include <sys/stat.h>

#include "checkpoint/files.h"
#include "tests/checkpoint/fixture.h"

namespace ring::test {
namespace {

class Foreign : public testing::Test {
 protected:
  const fs::path& folder() const { return temp_.path(); }
  fs::path at(const std::string& name) const { return folder() / name; }
  void file(const std::string& name) const { std::ofstream(at(name)) << "somebody's"; }
  void folder_with_notes(const std::string& name) const {
    fs::create_directories(at(name));
    file(name + "/notes.txt");
  }
  std::int64_t newest() const {
    const auto found = find_newest_verified(folder());
    return found ? found->manifest.step : -1;
  }

  // Creates all kinds of foreign files and folders. Returns their names.
  std::vector<std::string> create_foreign_files() const {
    const std::string digits = "000000010", step = "step-" + digits;
    file("notes.txt");
    file("step-000000011");
    file("step-000000012.tmp-99");
    folder_with_notes("step-000000013");
    folder_with_notes("step-10");
    folder_with_notes("step-0000000010");
    folder_with_notes("step-00000001x");
    folder_with_notes("step--00000010");
    folder_with_notes("step-000000014.tmp-mine");
    folder_with_notes("step-00000015.tmp-7");
    folder_with_notes(step + "\xff\xfe");
    fs::create_directory(at("step-000000016"));
    fs::create_symlink("nowhere", at("step-000000017"));
    fs::create_symlink("step-000000018", at("step-000000018"));  // a loop
    EXPECT_EQ(::mkfifo(at("step-000000019").c_str(), 0600), 0);
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder())) names.push_back(entry.path().filename().string());
    return names;
  }
  void expect_there(const std::vector<std::string>& names) const {
    for (const std::string& name : names) EXPECT_TRUE(fs::exists(fs::symlink_status(at(name)))) << name;
  }

  TempFolder temp_;
};

TEST_F(Foreign, FilesAreNotTakenForCheckpoints) {
  const auto names = create_foreign_files();
  EXPECT_TRUE(list_checkpoints(folder()).empty());
  EXPECT_EQ(newest(), -1);
  EXPECT_EQ(remove_stale_entries(folder()), 0);
  remove_all_checkpoints(folder());
  expect_there(names);
  EXPECT_EQ(list_foreign_files(folder()).size(), 6u);  // steps 11, 13 and 16 to 19
}

TEST_F(Foreign, CheckpointsAreWrittenKeptAndRemovedBesideOtherFiles) {
  const auto names = create_foreign_files();
  for (const std::int64_t step : {5, 20, 30, 40}) write_small(folder(), step, {2, 0});
  EXPECT_EQ(newest(), 40);
  const auto all = list_checkpoints(folder());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].step, 30);
  expect_there(names);
}

TEST_F(Foreign, AFileWithTheNameOfANewCheckpointIsSetAside) {
  create_foreign_files();
  for (const std::int64_t step : {11, 13, 16, 17, 18, 19}) {
    const std::string name = checkpoint_name(step);
    write_small(folder(), step);
    EXPECT_EQ(newest(), step);
    EXPECT_TRUE(fs::exists(fs::symlink_status(at(name + ".not-a-checkpoint-1")))) << name;
  }
  EXPECT_EQ(read_text(at("step-000000013.not-a-checkpoint-1/notes.txt")), "somebody's");
}

TEST_F(Foreign, ALinkedCheckpointCountsAndOnlyTheLinkIsRemoved) {
  const TempFolder elsewhere;
  write_small(elsewhere.path(), 10);
  fs::create_symlink(elsewhere.path() / checkpoint_name(10), at(checkpoint_name(10)));
  EXPECT_EQ(newest(), 10);
  write_small(folder(), 20, {1, 0});
  EXPECT_FALSE(fs::exists(fs::symlink_status(at(checkpoint_name(10)))));
  EXPECT_TRUE(fs::exists(elsewhere.path() / checkpoint_name(10) / "manifest.json"));
}

TEST_F(Foreign, AnUnreadableFolderIsAnErrorInsteadOfEmpty) {
  fs::create_symlink("loop", at("loop"));
  EXPECT_TRUE(contains(error_of([&] { list_checkpoints(at("loop")); }), "cannot read"));
  EXPECT_TRUE(contains(error_of([&] { resolve_checkpoints(at("loop")); }), "loop"));
  if (::geteuid() == 0) GTEST_SKIP() << "root reads everything";
  fs::create_directory(at("closed"));
  fs::permissions(at("closed"), fs::perms::none);
  EXPECT_TRUE(contains(error_of([&] { list_checkpoints(at("closed")); }), "Permission denied"));
}

}  // namespace
}  // namespace ring::test
