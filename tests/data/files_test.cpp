#include "core/files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <set>

#include "data/load_tokenizer.h"
#include "tests/data/corpus_case.h"

namespace ring {
namespace {

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

using NameSet = std::set<std::string>;

TEST(Files, AreWrittenWholeOrNotAtAll) {
  TempFolder folder;
  const std::string path = folder / "f";
  write_atomically(path, [](FileHandle& file) { file.write("old", 3); });
  expect_error(
      [&] {
        write_atomically(path, [](FileHandle& file) {
          file.write("half", 4);
          fail("no more");
        });
      },
      {"no more"});
  EXPECT_EQ(read_file(path), "old");
  write_atomically(path, [](FileHandle& file) { file.write("new", 3); });
  EXPECT_EQ(read_file(path), "new");
  EXPECT_EQ(names_in(folder.path()), NameSet{"f"});
}

TEST(Files, LeftoversAreRemovedAndFilesInUseStay) {
  TempFolder folder;
  const std::string path = folder / "f";
  for (const char* name : {"f.tmp.1", "f.tmp.99999999", "f.tmp.7.0"}) write_text(folder / name, "left");
  const NameSet foreign{"f.tmp.old", "f.tmp.", "f.tmpx", "g.tmp.1", "f"};
  for (const std::string& name : foreign) write_text(folder / name, "foreign");
  std::filesystem::create_directory(folder / "f.tmp.8");
  NameSet during;
  write_atomically(path, [&](FileHandle& file) {
    remove_leftovers(path);  // like another process
    during = names_in(folder.path());
    file.write("new", 3);
  });
  NameSet expected = foreign;
  expected.insert("f.tmp.8");
  EXPECT_EQ(names_in(folder.path()), expected);
  expected.insert("f.tmp." + std::to_string(::getpid()));
  EXPECT_EQ(during, expected);
}

TEST(Files, UnnamedFilesHaveNoName) {
  TempFolder folder;
  FileHandle a = unnamed_file(folder / "f"), b = unnamed_file(folder / "f");
  a.write("a", 1);
  b.write("b", 1);
  char byte = 0;
  a.read_at(&byte, 1, 0);
  EXPECT_EQ(byte, 'a');
  EXPECT_EQ(names_in(folder.path()), NameSet{});
}

TEST(Files, ReadingBeyondTheEndIsAnError) {
  TempFolder folder;
  write_text(folder / "f", "12345");
  const FileHandle file = open_input(folder / "f");
  char bytes[6];
  expect_error([&] { file.read_at(bytes, 6, 0); }, {"/f is truncated", "expected at least 6 bytes", "got 5"});
  expect_error([&] { file.read_at(bytes, 1, 5); }, {"/f is truncated"});
}

// Writes a tokenizer and a corpus again and again until the process is killed.
[[noreturn]] void write_forever(const TempFolder& folder) {
  for (;;) {
    save_tokenizer(*bytes_tokenizer(), folder / "t.rmt");
    write_corpus(folder / "c.h5", counting(20000), counting(100));
  }
}

TEST(Files, LeftoversOfKilledWritersAreRemovedByTheNextWrite) {
  TempFolder folder;
  std::mt19937 random(1);
  int left = 0;
  for (int kill = 0; kill < 40; ++kill) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_forever(folder);
    ::usleep(2000 + random() % 8000);
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    for (const std::string& name : names_in(folder.path())) left += name.find(".tmp.") != std::string::npos;
    if (std::filesystem::exists(folder / "t.rmt")) {
      EXPECT_EQ(load_tokenizer(folder / "t.rmt")->kind(), "bytes");
    }
    if (std::filesystem::exists(folder / "c.h5")) {
      EXPECT_EQ(TokenStore::open(folder / "c.h5")->train().tokens(), 20000u);
    }
    save_tokenizer(*bytes_tokenizer(), folder / "t.rmt");
    TokenStoreWriter(folder / "c.h5", 257);  // the beginning of a preparation
    for (const std::string& name : names_in(folder.path())) EXPECT_EQ(name.find(".tmp."), std::string::npos) << name;
  }
  EXPECT_GT(left, 0) << "no kill hit a writer: this test has shown nothing";
}

}  // namespace
}  // namespace ring
