// Settings that are too large, too deep or absurd are refused with a message, quickly and with little memory.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>

#include "core/fields.h"
#include "core/fields_parse.h"
#include "core/text_file.h"
#include "core/yaml.h"
#include "tests/error_of.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

struct Item {
  std::int64_t count = 1;
  std::vector<std::int64_t> sizes;
  void fields(Fields& f) {
    f("count", count, "how many", in_range(1, kMax));
    f("sizes", sizes, "sizes", in_range(0, 100), at_most_items(64));
  }
};

struct LimitedTree {
  std::int64_t count = 1;
  double rate = 0.5;
  std::string path, must;
  std::vector<Item> items;
  void fields(Fields& f) {
    f("count", count, "how many", in_range(-5, kMax - 1));
    f("rate", rate, "how fast", in_range(0, 1));
    f("path", path, "where");
    f("must", must, "given always", non_empty());
    f("items", items, "list", at_most_items(1000));
  }
  void validate(std::vector<SettingProblem>& errors) const {
    if (path.empty()) errors.push_back("path: give it");
  }
};

std::string mistakes(const std::string& text, const std::vector<std::string>& overrides = {}) {
  LimitedTree tree;
  return error_of([&] { load_config_text(tree, text, "run.yaml", overrides); });
}

const std::string kGiven = "must: x\npath: y\n";

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / str("ring_limits_", getpid())) { fs::create_directories(path_); }
  ~Folder() { fs::remove_all(path_); }
  std::string at(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return at(name);
  }

 private:
  fs::path path_;
};

std::string errors_of_file(const std::string& file) {
  LimitedTree tree;
  return error_of([&] { load_config(tree, file); });
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(FieldLimits, IntegersAreComparedExactly) {
  EXPECT_EQ(mistakes(kGiven + "count: 9223372036854775806\n"), "");
  EXPECT_EQ(mistakes(kGiven + "count: 9223372036854775807\n"),
            "run.yaml:3: count: must be in [-5, 9223372036854775806], is 9223372036854775807");
  EXPECT_FALSE(in_range(0, (1ll << 53)).passes(config::Value((std::int64_t{1} << 53) + 1)));
  EXPECT_FALSE(at_least((1ll << 53) + 1).passes(config::Value(std::int64_t{1} << 53)));
  EXPECT_FALSE(at_most(kMax - 1).passes(config::Value(kMax)));
}

TEST(FieldLimits, NumbersWithoutARangeAreAnError) {
  struct NoMost {
    std::int64_t a = 0;
    void fields(Fields& f) { f("a", a, "", at_least(0)); }
  };
  struct NoLeast {
    double a = 0;
    void fields(Fields& f) { f("a", a, "", at_most(0)); }
  };
  struct TooWide {
    int a = 0;
    void fields(Fields& f) { f("a", a, "", in_range(0, 1ll << 31)); }
  };
  struct NoLength {
    std::vector<std::string> a;
    void fields(Fields& f) { f("a", a, ""); }
  };
  struct NoRangeInList {
    std::vector<double> a;
    void fields(Fields& f) { f("a", a, "", at_most_items(3)); }
  };
  EXPECT_NE(error_of([] { to_yaml(NoMost()); }).find("both ends of its range"), std::string::npos);
  EXPECT_NE(error_of([] { to_yaml(NoLeast()); }).find("both ends of its range"), std::string::npos);
  EXPECT_NE(error_of([] { to_yaml(TooWide()); }).find("does not fit"), std::string::npos);
  EXPECT_NE(error_of([] { to_yaml(NoLength()); }).find("maximum length"), std::string::npos);
  EXPECT_NE(error_of([] { to_yaml(NoRangeInList()); }).find("both ends of its range"), std::string::npos);
}

TEST(FieldLimits, ListsHaveAMaximumLength) {
  std::string list = "items: [";
  for (int i = 0; i < 1001; ++i) list += "{},";
  EXPECT_EQ(mistakes(kGiven + list + "]"), "run.yaml:3: items: must have at most 1000 items, has 1001");
  std::string sizes = "items: [{sizes: [";
  for (int i = 0; i < 65; ++i) sizes += "1,";
  EXPECT_EQ(mistakes(kGiven + sizes + "]}]"), "run.yaml:3: items[0].sizes: must have at most 64 items, has 65");
}

TEST(FieldLimits, TwentyMistakesAreListedAndTheOthersCounted) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += str("k", i, ": 1\n");
  const std::string wrong = mistakes(text);
  EXPECT_EQ(count(wrong, "unknown key"), 20u) << wrong;
  EXPECT_TRUE(wrong.starts_with("run.yaml:1: k0: unknown key")) << wrong;
  EXPECT_TRUE(wrong.ends_with("\nand 19981 more mistakes")) << wrong;  // the required key `must` is missing, too
  EXPECT_LT(wrong.size(), 10'000u);
  text.resize(text.find("k20:"));
  EXPECT_TRUE(mistakes(text).ends_with("\nand 1 more mistake")) << mistakes(text);
}

TEST(FieldLimits, LongNamesAndValuesAreCut) {
  const std::string x(500'000, 'x');
  EXPECT_LT(mistakes(kGiven + x + ": 1\n").size(), 500u);
  EXPECT_LT(mistakes(kGiven + "count: " + x + "\n").size(), 500u);
  EXPECT_LT(mistakes(kGiven + "include: " + x + "\n").size(), 600u);
  EXPECT_LT(mistakes("must: " + x + "\ncount: 0.5\npath: y", {"count=" + x}).size(), 500u);
  EXPECT_NE(mistakes(kGiven + "count: " + x + "\n").find("x... (500000 bytes)"), std::string::npos);
  EXPECT_EQ(mistakes("path: y\nmust: " + x + "\n"), "run.yaml:2: must: must have at most 4096 bytes, has 500000");
  EXPECT_EQ(mistakes("path: y\nmust: " + std::string(4096, 'x') + "\n"), "");
  EXPECT_EQ(mistakes(kGiven + "\"a\\e[31m\": 1\n").find('\x1b'), std::string::npos) << "it would reach the terminal";
}

// Checks that fail only because a part of the file is missing are not reported.
TEST(FieldLimits, ASyntaxErrorIsReportedAlone) {
  const std::string wrong = mistakes("count: [1\nrate: {\n", {"items[3].count=2"});
  EXPECT_TRUE(wrong.starts_with("run.yaml:")) << wrong;
  EXPECT_EQ(count(wrong, "\n"), 0u) << wrong;
  EXPECT_NE(wrong.find("not valid YAML"), std::string::npos) << wrong;
  const Folder folder;
  folder.write("base.yaml", "must: [\n");
  const std::string included = errors_of_file(folder.write("run.yaml", "include: base.yaml\nrate: 2\n"));
  EXPECT_EQ(count(included, "\n"), 1u) << included;  // the rate is a mistake of its own
  EXPECT_NE(included.find("rate: must be in [0, 1], is 2"), std::string::npos) << included;
}

TEST(FieldLimits, AliasesThatGrowTheTextAreRefused) {
  std::string bomb = "a0: &a0 [" + std::string(2000, ' ') + "x]\n";
  for (int i = 1; i < 40; ++i) bomb += str("a", i, ": &a", i, " [*a", i - 1, ", *a", i - 1, "]\n");
  EXPECT_NE(mistakes(bomb).find("too large"), std::string::npos);
  std::string heavy = "a: &a " + std::string(100'000, 'x') + "\nb: [";
  for (int i = 0; i < 10'000; ++i) heavy += "*a,";
  EXPECT_NE(mistakes(heavy + "]\n").find("too large"), std::string::npos);
  EXPECT_NE(mistakes("a: &a [*a]\n").find("an alias occurs"), std::string::npos);
  EXPECT_NE(mistakes("a: *b\n").find("not valid YAML"), std::string::npos);
  EXPECT_NE(mistakes("---\n---\ncount: 1\n").find("a second one starts here"), std::string::npos)
      << "it would be ignored";
}

TEST(FieldLimits, NestingIsBounded) {
  EXPECT_EQ(mistakes(std::string(65, '[') + std::string(65, ']')),
            "run.yaml:1: too deep: more than 64 nested lists and sections");
  for (const std::string open : {"[", "{a: ", "- ", "? ", "a:\n  ", "[{"}) {
    std::string text;
    while (text.size() < 20'000) text += open;
    EXPECT_NE(mistakes(text), "") << open;
    EXPECT_NE(mistakes("", {"items=" + text}), "") << open;
  }
}

TEST(SlowYaml, AnyTextOfAMegabyteIsReadInSeconds) {
  for (const std::string part :
       {"[",     "]",     "{",     "- ", "a: ", "a: b\n", "? ",  "&a ",          "*a ",  "!!a ",
        "'",     "\"",    "\\",    "#",  "\n",  " ",      "\t",  "|\n",          ">\n ", "%TAG ! a\n",
        "---\n", "...\n", "- a\n", "a,", ":",   "[a: ",   "{a,", "\xef\xbb\xbf", "\xff", std::string(1, '\0').c_str(),
        "x"}) {
    std::string text;
    while (text.size() < config::kMaxSettingsBytes) text += part.empty() ? std::string(1, '\0') : part;
    text.resize(config::kMaxSettingsBytes);
    const std::clock_t start = std::clock();
    try {
      parse_yaml(text);
    } catch (const YamlError&) {
    }
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 2.0) << part;
  }
}

TEST(FieldLimits, IncludesAreReadOnceAndHaveAMaximumDepth) {
  const Folder folder;
  folder.write("end.yaml", kGiven + "count: 3\n");
  for (int i = 0; i < 30; ++i) {  // 2^30 paths to end.yaml
    const std::string next = i == 0 ? "end.yaml" : str("d", i - 1, ".yaml");
    folder.write(str("d", i, ".yaml"), str("include: [", next, ", ./", next, "]\nrate: 0.", i, "\n"));
  }
  LimitedTree tree;
  load_config(tree, folder.at("d29.yaml"));
  EXPECT_EQ(tree.count, 3);
  EXPECT_EQ(tree.rate, 0.29);
  folder.write("d0.yaml", "include: deeper.yaml\n");
  for (int i = 0; i < 10; ++i) folder.write(str("e", i, ".yaml"), i ? str("include: e", i - 1, ".yaml\n") : kGiven);
  folder.write("deeper.yaml", "include: e9.yaml\n");
  EXPECT_NE(errors_of_file(folder.at("d29.yaml")).find("more than 32 levels deep"), std::string::npos);
}

// If two files include a third one, the later file keeps the changes that the earlier one made to the third.
TEST(FieldLimits, ASharedBaseIsAppliedOnce) {
  const Folder folder;
  folder.write("base.yaml", kGiven + "count: 1\nrate: 0.1\n");
  folder.write("a.yaml", "include: base.yaml\ncount: 2\n");
  folder.write("b.yaml", "include: base.yaml\nrate: 0.2\n");
  LimitedTree tree;
  load_config(tree, folder.write("run.yaml", "include: [a.yaml, b.yaml]\n"));
  EXPECT_EQ(tree.count, 2);
  EXPECT_EQ(tree.rate, 0.2);
}

TEST(FieldLimits, OnlyFilesAreIncluded) {
  const Folder folder;
  ASSERT_EQ(mkfifo(folder.at("pipe").c_str(), 0600), 0);
  fs::create_directory_symlink("loop", folder.at("loop"));
  for (const auto& [name, why] : std::vector<std::pair<std::string, std::string>>{{"pipe", "it is a named pipe"},
                                                                                  {".", "it is a directory"},
                                                                                  {"/dev/zero", "it is a device"},
                                                                                  {"loop", "ymbolic links"},
                                                                                  {"none", "it does not exist"},
                                                                                  {"\"a\\0b\"", "NUL"}}) {
    const std::string wrong = errors_of_file(folder.write("run.yaml", kGiven + "include: " + name + "\n"));
    EXPECT_NE(wrong.find(why), std::string::npos) << wrong;
    EXPECT_EQ(wrong.find('\0'), std::string::npos) << wrong;
  }
}

TEST(TextFile, SaysWhyItCannotBeRead) {
  const Folder folder;
  EXPECT_EQ(read_text_file(folder.write("a", "12345"), 5), "12345");
  EXPECT_EQ(error_of([&] { read_text_file(folder.at("a"), 4); }),
            "cannot read " + folder.at("a") + ": it is larger than 4 bytes, the limit for such a file");
  fs::permissions(folder.at("a"), fs::perms::none);
  if (geteuid() == 0) return;  // root may read everything
  EXPECT_NE(error_of([&] { read_text_file(folder.at("a"), 5); }).find("permission denied"), std::string::npos);
}

TEST(Shown, CutsBetweenCharacters) {
  EXPECT_EQ(shown("a\"b\n\x1b"), "a\"b\\n\\x1b");
  std::string text(79, 'x');
  text += "\xc3\xa9y";
  EXPECT_EQ(shown(text), std::string(79, 'x') + "... (82 bytes)");
}

}  // namespace
}  // namespace ring
