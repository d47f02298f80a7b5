// Behaviour with and without Arrow. tests/inputs/against_pyarrow.py reads real tables.

#include "data/parquet.h"

#include <gtest/gtest.h>

#include "data/prepare.h"
#include "data/text_files.h"
#include "tests/data/corpus_case.h"

namespace ring {
namespace {

TEST(Parquet, NameAndContentsMustAgree) {
  const TempFolder folder;
  const auto refused = [&](const std::string& name, const std::string& head, const std::vector<std::string>& parts) {
    write_text(folder / name, head + " and so on");
    expect_error([&] { list_text_files({folder / name}, "*"); }, parts);
    EXPECT_TRUE(list_text_files({folder / name}, "*", true).front().plain());
  };
  refused("a.parquet", "text", {"a.parquet is not text, but named .parquet", "rename it"});
  refused("b.PARQUET", "{\"text\": 1}", {"b.PARQUET is not text, but named .parquet"});
  refused("c.jsonl", "PAR1", {"c.jsonl is not text", "a Parquet table", "rename it to .parquet"});
}

// With Arrow, the library refuses the file; without it, the program says that it cannot read tables.
TEST(Parquet, ATableThatCannotBeReadIsNamed) {
  const TempFolder folder;
  write_text(folder / "in/a.parquet", "PAR1 and so on");
  PrepareOptions o;
  o.inputs = {folder / "in"};
  o.tokenizer = "bytes";
  o.output = folder / "out.h5";
  expect_error([&] { prepare_corpus(o); }, {"a.parquet ", "a Parquet table", "again"});
  EXPECT_FALSE(std::filesystem::exists(o.output));
}

}  // namespace
}  // namespace ring
