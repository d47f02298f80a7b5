#include "core/fields.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/fields_parse.h"
#include "core/setting_problem.h"
#include "tests/error_of.h"

namespace ring {
namespace {

enum class NormKind { rms, layer };

struct Corpus {
  std::string path;
  double weight = 1;
  void fields(Fields& f) {
    f("path", path, "file of tokens", non_empty());
    f("weight", weight, "share of the samples", positive(), at_most(1e6));
  }
  bool operator==(const Corpus&) const = default;
};

struct Model {
  std::int64_t width = 64;
  std::int64_t heads = 4;
  NormKind norm = NormKind::rms;
  void fields(Fields& f) {
    f("width", width, "channels", in_range(8, 1 << 20),
      check_number("a multiple of 8", [](long double v) { return static_cast<std::int64_t>(v) % 8 == 0; }));
    f("heads", heads, "attention heads", at_least(1), at_most(1 << 16));
    f("norm", norm, "kind of norm", choices<NormKind>({{"rms", NormKind::rms}, {"layer", NormKind::layer}}));
  }
  void validate(std::vector<SettingProblem>& errors) const {
    if (width % heads != 0) errors.push_back(str("heads (", heads, ") must divide width (", width, ")"));
  }
  bool operator==(const Model&) const = default;
};

struct Tree {
  Model model;
  double lr = 3e-4;
  int threads = 0;
  std::uint64_t seed = 1;
  bool tied = false;
  std::string note;
  std::string mode = "fast";
  std::vector<std::int64_t> sizes = {1, 2};
  std::vector<std::string> names;
  std::vector<Corpus> mixture;
  std::optional<double> clip;
  std::optional<std::string> tag;
  void fields(Fields& f) {
    f("model", model, "the network");
    f("lr", lr, "peak learning rate", positive(), at_most(10));
    f("threads", threads, "CPU threads", in_range(0, 1024));
    f("seed", seed, "of all random numbers", in_range(0, std::numeric_limits<std::int64_t>::max()));
    f("tied", tied, "share the <embedding> | head");
    f("note", note, "free text");
    f("mode", mode, "how", one_of({"fast", "exact"}));
    f("sizes", sizes, "sizes", positive(), at_most(1 << 30), at_most_items(100));
    f("names", names, "names", at_most_items(1000));
    f("mixture", mixture, "corpora and their weights", at_most_items(1000));
    f("clip", clip, "largest gradient norm", positive(), at_most(1e30));
    f("tag", tag, "label");
  }
  static const config::Synonyms* synonyms() {
    static constexpr config::Synonyms::Key keys[] = {
        {"num_heads", "model.heads"}, {"learning_rate", "lr"}, {"warmth", "tag", "It is a label."},
        {"model.kind", "model.norm"}, {"network", "model"},    {"epochs", "", "there are none"},
        {"attn", "model.heads"}};
    static constexpr config::Synonyms::Value values[] = {{"model.norm", "batchnorm", "layer", "There is no other."},
                                                         {"norm", "mean_square", "rms"},
                                                         {"model.norm", "none", "", "a norm is always there"}};
    static constexpr config::Synonyms all{keys, values};
    return &all;
  }
  void validate(std::vector<SettingProblem>& errors) const {
    if (note == "both" && threads > 4) errors.push_back("threads: more than 4 with note=both");
    if (note == "model") errors.push_back("model.width: not with note=model");
    if (note == "second") errors.push_back("mixture[1].weight: not with note=second");
    if (note == "unclipped" && clip) errors.push_back(unused_setting("clip: not with note=unclipped"));
  }
  bool operator==(const Tree&) const = default;
};

Tree parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  Tree tree;
  load_config_text(tree, text, "run.yaml", overrides, Tree::synonyms());
  return tree;
}

std::string errors(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return error_of([&] { parse(text, overrides); });
}

class TempFolder {
 public:
  TempFolder() : path_(std::filesystem::temp_directory_path() / str("ring_fields_", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

TEST(Fields, ReadsEveryKind) {
  const Tree t = parse(R"(
model: {width: 128, heads: 8, norm: layer}
lr: 1e-3
threads: 2
seed: 3e9
tied: true
note: "true"
sizes: [4, 1e3]
names: [a, "b c"]
mixture:
  - path: a.h5
  - {path: b.h5, weight: 2}
clip: 1
tag: x
)");
  EXPECT_EQ(t.model, (Model{128, 8, NormKind::layer}));
  EXPECT_EQ(t.lr, 1e-3);
  EXPECT_EQ(t.threads, 2);
  EXPECT_EQ(t.seed, 3'000'000'000u);
  EXPECT_TRUE(t.tied);
  EXPECT_EQ(t.note, "true");
  EXPECT_EQ(t.sizes, (std::vector<std::int64_t>{4, 1000}));
  EXPECT_EQ(t.names, (std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(t.mixture, (std::vector<Corpus>{{"a.h5", 1}, {"b.h5", 2}}));
  EXPECT_EQ(t.clip, 1.0);
  EXPECT_EQ(t.tag, "x");
}

TEST(Fields, EmptyTextLeavesDefaults) {
  EXPECT_EQ(parse(""), Tree());
  EXPECT_EQ(parse("# only a comment\n"), Tree());
  EXPECT_EQ(parse("model:\n"), Tree());
}

TEST(Fields, AListReplacesItsDefault) {
  EXPECT_EQ(parse("sizes: []").sizes, std::vector<std::int64_t>());
  EXPECT_EQ(parse("sizes: [7]").sizes, std::vector<std::int64_t>{7});
}

TEST(Fields, AllMistakesAreReportedWithTheirLines) {
  EXPECT_EQ(
      errors("model:\n"
             "  widht: 8\n"
             "  norm: lyer\n"
             "lr: fast\n"
             "threads: 1.5\n"
             "tied: yes\n"
             "heads: 2\n"
             "sizes: [1, -2]\n"
             "clip: -1\n"
             "lr: 2\n"
             "qqqqqqq: 1\n"
             "mode: slow\n"
             "mixture: [{weight: 1}]\n"),
      "run.yaml:2: model.widht: unknown key; did you mean model.width?\n"
      "run.yaml:3: model.norm: expected one of rms, layer, got lyer; did you mean layer?\n"
      "run.yaml:4: lr: expected a number, got fast\n"
      "run.yaml:5: threads: expected an integer, got 1.5\n"
      "run.yaml:6: tied: expected true or false, got yes\n"
      "run.yaml:7: heads: unknown key; did you mean model.heads?\n"
      "run.yaml:8: sizes[1]: must be > 0, is -2\n"
      "run.yaml:9: clip: must be > 0, is -1\n"
      "run.yaml:10: lr: given twice, first on line 4\n"
      "run.yaml:11: qqqqqqq: unknown key; known keys here: model lr threads seed tied note mode sizes names mixture "
      "clip tag\n"
      "run.yaml:12: mode: must be one of fast, exact, is slow\n"
      "run.yaml:13: mixture[0].path: must not be empty: give it a value");
}

TEST(Fields, ValuesOfTheWrongShapeAreRefused) {
  EXPECT_EQ(errors("model: 3"),
            "run.yaml:1: model: expected a section of `key: value`, got 3; set one of its keys, such as model.width");
  EXPECT_EQ(
      errors("model:\n  width = 8\n"),
      "run.yaml:2: model: expected a section of `key: value`, got width = 8 (YAML writes `key: value`, without =); "
      "set one of its keys, such as model.width");
  EXPECT_NE(errors("lr: 1\nwidth = 8:\n").find("unknown key (YAML writes"), std::string::npos);
  EXPECT_NE(errors("lr: 1\nmodel:\n\twidth: 8\n").find("begins with a tab"), std::string::npos);
  EXPECT_EQ(errors("model: {width: 8\n").find("tab"), std::string::npos);
  EXPECT_EQ(errors("- 1\n"), "run.yaml: expected a section of `key: value`, got a list");
  EXPECT_EQ(errors("sizes: 3"), "run.yaml:1: sizes: expected a list such as [a, b], got 3");
  EXPECT_EQ(errors("sizes: {a: 1}"), "run.yaml:1: sizes: expected a list such as [a, b], got a section");
  EXPECT_EQ(errors("note: [a]"), "run.yaml:1: note: expected text, got a list");
  EXPECT_EQ(errors("note:"), "run.yaml:1: note: expected text, got nothing (write \"\" for an empty string)");
  EXPECT_EQ(errors("lr: \"1\""), "run.yaml:1: lr: expected a number, got the quoted string \"1\"");
  EXPECT_EQ(errors("lr: null"), "run.yaml:1: lr: expected a number, got nothing");
}

TEST(Fields, BadNumbersAreRefused) {
  EXPECT_NE(errors("seed: 0.5"), "");
  EXPECT_NE(errors("seed: 1e19"), "");
  EXPECT_NE(errors("seed: 64k"), "");
  EXPECT_NE(errors("seed: 0x10"), "");
  EXPECT_NE(errors("seed: -1"), "");
  EXPECT_NE(errors("seed: \"\""), "");
  EXPECT_NE(errors("lr: .nan"), "");
  EXPECT_NE(errors("lr: nan"), "");
  EXPECT_NE(errors("lr: inf"), "");
  EXPECT_NE(errors("lr: 1e999"), "");
  EXPECT_NE(errors("lr: .inf"), "");
  EXPECT_NE(errors("lr: 1 2"), "");
  EXPECT_EQ(errors("threads: 3000000000"), "run.yaml:1: threads: must be in [-2147483648, 2147483647]");
  EXPECT_EQ(errors("clip: .inf"), "run.yaml:1: clip: must be <= 1e30, is .inf");
  EXPECT_EQ(parse("seed: 9223372036854775807").seed, 9223372036854775807u);
}

TEST(Fields, ChecksRefuseNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(positive().passes(nan));
  EXPECT_FALSE(at_most(1).passes(nan));
  EXPECT_FALSE(in_range(0, 1).passes(nan));
  EXPECT_FALSE(check_number("anything", [](long double) { return true; }).passes(nan));
  Tree tree;
  tree.lr = nan;
  EXPECT_NE(error_of([&] { override_config(tree, {"seed=2"}); }), "");
}

TEST(Fields, SyntaxErrorsNameTheLine) {
  EXPECT_TRUE(errors("lr: 1\nmodel: {width: 8\n").starts_with("run.yaml:3: not valid YAML: "));
  EXPECT_EQ(errors("lr: 1\n---\nlr: 2\n"), "run.yaml:2: expected one YAML document, but a second one starts here");
  EXPECT_EQ(errors("? [a]\n: 1\n"), "run.yaml:1: a key must be a name");
}

TEST(Fields, AliasesCannotExplode) {
  EXPECT_NE(errors("sizes: &a [*a]\n"), "");
  std::string bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 12; ++i) {
    bomb += str("a", i, ": &a", i, " [");
    for (int k = 0; k < 10; ++k) bomb += str(k ? ", " : "", "*a", i - 1);
    bomb += "]\n";
  }
  EXPECT_NE(errors(bomb).find("more than 524288 values"), std::string::npos) << errors(bomb);
}

TEST(Fields, AFailedLoadChangesNothing) {
  Tree tree;
  EXPECT_THROW(load_config_text(tree, "lr: 1\nthreads: x\n", "run.yaml"), Error);
  EXPECT_EQ(tree, Tree());
}

TEST(Fields, ValidationNamesTheLineOfItsField) {
  EXPECT_EQ(errors("lr: 1\nmodel:\n  width: 64\n  heads: 5\n"), "run.yaml:4: model: heads (5) must divide width (64)");
  EXPECT_EQ(errors("model:\n  width: 72\n", {"model.heads=5"}),
            "command line: model.heads=5: model: heads (5) must divide width (72)");
  EXPECT_EQ(errors("note: both\nthreads: 5\n"), "run.yaml:2: threads: more than 4 with note=both");
  // Validation is skipped if a value is already known to be wrong (here it would divide by zero).
  EXPECT_EQ(errors("model:\n  heads: 0\n"), "run.yaml:2: model.heads: must be >= 1, is 0");
}

TEST(Fields, ValidationNamesTheLineOfAnElement) {
  const std::string mixture = "note: second\nmixture:\n- path: a\n- path: b\n";
  EXPECT_EQ(errors(mixture + "  weight: 2\n"), "run.yaml:5: mixture[1].weight: not with note=second");
  EXPECT_EQ(errors(mixture), "run.yaml:4: mixture[1].weight: not with note=second") << "the element's";
  EXPECT_EQ(errors("lr: 1\nnote: second\n"), "run.yaml: mixture[1].weight: not with note=second");
}

// A run's config.yaml holds all keys and may come from a version that accepted what is refused now.
TEST(Fields, AnUnusedSettingIsRefusedOnlyIfTheUserGivesIt) {
  const std::string text = "note: unclipped\nclip: 2\n", message = "clip: not with note=unclipped";
  EXPECT_EQ(errors(text), "run.yaml:2: " + message);
  EXPECT_EQ(errors("note: unclipped\n", {"clip=2"}), "command line: clip=2: " + message);
  Tree written;
  EXPECT_NO_THROW(load_config_text(written, text, "config.yaml"));
  EXPECT_EQ(written.clip, 2);
  EXPECT_NO_THROW(override_config(written, {"lr=1"}, Tree::synonyms()));
  EXPECT_THROW(override_config(written, {"clip=3"}, Tree::synonyms()), Error);
}

TEST(Fields, OverridesReplaceValues) {
  const std::vector<std::string> overrides = {"model.width=16",
                                              "mixture=[{path: a.h5}, {path: b.h5, weight: 3}]",
                                              "mixture[1].path=c d.h5",
                                              "model={norm: layer}",
                                              "sizes[0]=9",
                                              "note=run #3: {x",
                                              "tag=",
                                              "clip=~",
                                              "lr=1e-2"};
  const Tree t = parse("tag: a\nclip: 2\n", overrides);
  EXPECT_EQ(t.model, (Model{16, 4, NormKind::layer}));
  EXPECT_EQ(t.mixture, (std::vector<Corpus>{{"a.h5", 1}, {"c d.h5", 3}}));
  EXPECT_EQ(t.sizes, (std::vector<std::int64_t>{9, 2}));
  EXPECT_EQ(t.note, "run #3: {x");
  EXPECT_EQ(t.tag, std::nullopt);
  EXPECT_EQ(t.clip, std::nullopt);
  EXPECT_EQ(t.lr, 1e-2);
  EXPECT_EQ(parse("note: x", {"note="}).note, "");
  EXPECT_EQ(parse("", {"note=\"a b\""}).note, "a b");
}

TEST(Fields, OverrideRepairsAMistakeOfTheFile) { EXPECT_EQ(parse("lr: -1", {"lr=2"}).lr, 2); }

TEST(Fields, BadOverridesAreRefused) {
  EXPECT_EQ(errors("", {"lr"}), "command line: lr: expected key=value");
  EXPECT_EQ(errors("", {"=3"}), "command line: =3: expected key=value");
  EXPECT_EQ(errors("", {"model..width=3"}), "command line: model..width=3: expected a key such as a.b or a[0].b");
  EXPECT_EQ(errors("", {"sizes[x]=3"}), "command line: sizes[x]=3: expected a key such as a.b or a[0].b");
  EXPECT_EQ(errors("", {"sizes[2]=3"}), "command line: sizes[2]=3: sizes has 2 elements, numbered from 0");
  EXPECT_EQ(errors("", {"lr.x=3"}), "command line: lr.x=3: lr is not a section");
  EXPECT_EQ(errors("", {"lr[0]=3"}), "command line: lr[0]=3: lr is not a list");
  EXPECT_EQ(errors("", {"model.widht=8"}), "command line: model.widht=8: unknown key; did you mean model.width?");
  EXPECT_EQ(errors("", {"modle.width=8"}), "command line: modle.width=8: modle: unknown key; did you mean model?");
  EXPECT_EQ(errors("", {"lr=x", "threads=-1"}),
            "command line: lr=x: expected a number, got x\n"
            "command line: threads=-1: must be in [0, 1024], is -1");
  EXPECT_EQ(errors("", {"seed=-1"}), "command line: seed=-1: must be in [0, 9223372036854775807]");
  EXPECT_EQ(errors("", {"model={width: x}"}),
            "command line: model={width: x}: model.width: expected an integer, got x");
  EXPECT_NE(errors("", {"sizes=[1"}), "");
  EXPECT_NE(errors("", {"lr="}), "");
}

// Returns the part of an unknown key's error message after "unknown key; ".
std::string hint(const std::string& override) {
  const std::string text = errors("", {override}), mark = "unknown key; ";
  return text.find(mark) == std::string::npos ? text : text.substr(text.find(mark) + mark.size());
}

TEST(Fields, KeysOfOtherProgramsAreTranslatedBeforeANearNameIsSuggested) {
  EXPECT_EQ(errors("model:\n  num_heads: 2\nlearning_rate: 1\n"),
            "run.yaml:2: model.num_heads: unknown key; did you mean model.heads?\n"
            "run.yaml:3: learning_rate: unknown key; did you mean lr?");
  for (const char* key : {"num_heads", "model.num_heads", "network.num_heads", "Num-Heads"})
    EXPECT_EQ(hint(str(key, "=2")), "did you mean model.heads?") << key;
  EXPECT_EQ(hint("model={num_heads: 2}"), "did you mean model.heads?");
  EXPECT_EQ(hint("attn.count=2"), "did you mean model.heads?");  // the section is known, its key is not
  EXPECT_EQ(hint("network={width: 8}"), "did you mean a key of model, such as model.width?");
  EXPECT_EQ(hint("network.width=8"), "did you mean model.width?");
  EXPECT_EQ(hint("model.kind=rms"), "did you mean model.norm?");
  EXPECT_EQ(hint("warmth=1"), "did you mean tag? It is a label.");
  EXPECT_EQ(hint("epochs=2"), "there are none");
  EXPECT_EQ(hint("widht=8"), "known keys here: model lr threads seed tied note mode sizes names mixture clip tag");
  EXPECT_EQ(hint("width=8"), "did you mean model.width?");
}

TEST(Fields, ValuesOfOtherProgramsAreTranslated) {
  const std::string expected = "command line: model.norm=";
  EXPECT_EQ(errors("", {"model.norm=BatchNorm"}),
            expected + "BatchNorm: expected one of rms, layer, got BatchNorm; did you mean layer? There is no other.");
  EXPECT_EQ(errors("", {"model.norm=mean-square"}),
            expected + "mean-square: expected one of rms, layer, got mean-square; did you mean rms?");
  EXPECT_EQ(errors("", {"model.norm=none"}),
            expected + "none: expected one of rms, layer, got none; a norm is always there");
  EXPECT_EQ(errors("", {"model.norm=RMS"}), expected + "RMS: expected one of rms, layer, got RMS; did you mean rms?");
  EXPECT_EQ(errors("", {"model.norm=batch"}), expected + "batch: expected one of rms, layer, got batch");
}

TEST(Fields, IncludedFilesComeFirst) {
  TempFolder folder;
  folder.write("base/common.yaml", "lr: 0.5\nthreads: 3\nsizes: [5, 6, 7]\n");
  folder.write("base/model.yaml", "include: common.yaml\nmodel:\n  width: 256\n");
  const std::string file = folder.write("run.yaml", "include: base/model.yaml\nthreads: 4\nsizes: [8]\n");
  Tree t;
  load_config(t, file);
  EXPECT_EQ(t.model.width, 256);
  EXPECT_EQ(t.lr, 0.5);
  EXPECT_EQ(t.threads, 4);
  EXPECT_EQ(t.sizes, std::vector<std::int64_t>{8});
}

TEST(Fields, IncludeErrorsNameTheirFile) {
  TempFolder folder;
  const std::string base = folder.write("base.yaml", "lr: 1\nthreads: -3\nlrr: 1\n");
  const std::string file = folder.write("run.yaml", "include: [base.yaml, missing.yaml]\nseed: x\n");
  const std::string missing = file.substr(0, file.size() - 8) + "missing.yaml";
  Tree t;
  EXPECT_EQ(error_of([&] { load_config(t, file); }),
            file + ":1: include: cannot read " + missing + ": it does not exist\n" + file +
                ":2: seed: expected an integer, got x\n" + base + ":2: threads: must be in [0, 1024], is -3\n" + base +
                ":3: lrr: unknown key; did you mean lr?");
}

TEST(Fields, IncludeCyclesAreRefused) {
  TempFolder folder;
  folder.write("a.yaml", "include: b.yaml\n");
  const std::string b = folder.write("b.yaml", "include: a.yaml\n");
  Tree t;
  EXPECT_TRUE(error_of([&] { load_config(t, b); }).ends_with("b.yaml includes itself"));
}

TEST(Fields, AMissingFileIsAnError) {
  Tree t;
  EXPECT_EQ(error_of([&] { load_config(t, "no/such.yaml"); }), "cannot read no/such.yaml: it does not exist");
  EXPECT_EQ(error_of([&] { load_config(t, "/"); }), "cannot read /: it is a directory, not a file");
}

TEST(Fields, PrintsEveryKey) {
  Tree t;
  t.mixture = {{"a.h5", 1}, {"", 0.25}};
  t.note = "say \"hi\"\n\tnow";
  EXPECT_EQ(to_yaml(t),
            "model:\n"
            "  width: 64\n"
            "  heads: 4\n"
            "  norm: rms\n"
            "lr: 3e-4\n"
            "threads: 0\n"
            "seed: 1\n"
            "tied: false\n"
            "note: \"say \\\"hi\\\"\\n\\tnow\"\n"
            "mode: fast\n"
            "sizes: [1, 2]\n"
            "names: []\n"
            "mixture:\n"
            "  - path: a.h5\n"
            "    weight: 1\n"
            "  - path: \"\"\n"
            "    weight: 0.25\n"
            "clip: null\n"
            "tag: null\n");
}

TEST(Fields, PrintingAndLoadingIsTheIdentity) {
  Tree t;
  t.lr = 0.1 + 0.2;
  t.names = {"", "null", "a: b", "- x", "#", "1e3", "yes", "\x01", "caf\xc3\xa9", "[a, b]", "C:\\x", "'", "a/b-c.d_e"};
  t.note = "  two lines\nand spaces ";
  t.tag = "null";
  t.clip = 1e-300;
  t.mixture = {{"x", 1.0 / 3}};
  const Tree back = parse(to_yaml(t));
  EXPECT_EQ(back, t);
  EXPECT_EQ(to_yaml(back), to_yaml(t));
}

TEST(Fields, NumbersReadBackTheSame) {
  for (const double v :
       {0.0, -0.0, 1.0, 1e6, -2.5e-7, 1e22, 1e100, 123456789012.0, 5e-324, 0.1, std::numeric_limits<double>::max()}) {
    const std::string text = yaml_number(v);
    EXPECT_EQ(std::stod(text == "5e-324" ? "0x0.0000000000001p-1022" : text), v) << text;
  }
  EXPECT_EQ(yaml_number(1e6), "1e6");
  EXPECT_EQ(yaml_number(1e100), "1e100");
  EXPECT_EQ(yaml_number(2.5e-10), "2.5e-10");
  EXPECT_EQ(parse(to_yaml(parse("lr: 5e-324"))).lr, 5e-324);
}

TEST(Fields, HashIsFnv1a) {
  EXPECT_EQ(hash_text(""), 0xcbf29ce484222325ull);  // test vectors of the FNV authors
  EXPECT_EQ(hash_text("foobar"), 0x85944171f73967e8ull);
  Tree a, b;
  EXPECT_EQ(hash_config(a), hash_config(b));
  b.model.heads = 8;
  EXPECT_NE(hash_config(a), hash_config(b));
}

TEST(Fields, DifferencesAreListed) {
  Tree a, b;
  EXPECT_TRUE(diff_configs(a, b).empty());
  b.model.width = 128;
  b.sizes = {1};
  b.mixture = {{"x", 2}};
  b.tag = "t";
  EXPECT_EQ(diff_configs(a, b), (std::vector<std::string>{"model.width: 64 -> 128", "sizes: [1, 2] -> [1]",
                                                          "mixture[0].path: (absent) -> x",
                                                          "mixture[0].weight: (absent) -> 2", "tag: null -> t"}));
  EXPECT_EQ(diff_configs(b, a, {"model", "sizes", "tag"}),
            (std::vector<std::string>{"mixture[0].path: x -> (absent)", "mixture[0].weight: 2 -> (absent)"}));
  EXPECT_EQ(diff_configs(a, b, {"model", "mixture", "si", "tag"}), std::vector<std::string>{"sizes: [1, 2] -> [1]"});
  EXPECT_EQ(diff_yaml("a: 1\nold: 2\n", "a: 1\nnew: 3\n"),
            (std::vector<std::string>{"new: (absent) -> 3", "old: 2 -> (absent)"}));
}

TEST(Fields, ReferenceListsEveryKey) {
  const std::string text = describe_config<Tree>();
  const auto has = [&](const std::string& line) { return text.find(line) != std::string::npos; };
  EXPECT_TRUE(has("* **`lr`** (number, > 0, &lt;= 10, default `3e-4`)\\\n  peak learning rate\n")) << text;
  EXPECT_TRUE(has("* **`tied`** (`true` or `false`, default `false`)\\\n  share the &lt;embedding> | head\n")) << text;
  EXPECT_TRUE(has("* **`sizes`** (list of integers, > 0, &lt;= 1073741824, at most 100 items, default `[1, 2]`)\\\n"))
      << text;
  EXPECT_TRUE(has("* **`mixture`** (list of sections, at most 1000 items, default `[]`)\\\n")) << text;
  EXPECT_TRUE(has("* **`clip`** (number or null, > 0, &lt;= 1e30, default `null`)\\\n")) << text;
  EXPECT_TRUE(has("\n## `model`\n\nthe network\n\n* **`model.")) << text;
  EXPECT_TRUE(has("* **`model.norm`** (`rms`, `layer`, default `rms`)\\\n  kind of norm\n")) << text;
  EXPECT_TRUE(has("* **`mixture[].path`** (text, non-empty, required)\\\n  file of tokens\n")) << text;
}

TEST(Fields, ReferenceHasShortLinesThatBeginNoList) {
  struct Wordy {
    int a = 0;
    void fields(Fields& f) {
      std::string text;
      for (int i = 0; i < 200; ++i) text += (i % 3 ? "P - 1 " : "chunk > 0 * ");
      f("a", a, text, in_range(0, 1));
    }
  };
  std::istringstream lines(describe_config<Wordy>());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_LE(line.size(), 120u) << line;
    if (count == 0) continue;  // the key's own line begins a list
    EXPECT_EQ(line.find_first_of("-+*>#"), line.find_first_of("-+*>#", 3)) << line;
  }
  EXPECT_GT(count, 10);
}

TEST(Fields, FieldNamesAreChecked) {
  struct Twice {
    int a = 0;
    void fields(Fields& f) {
      f("a", a, "", in_range(0, 1));
      f("a", a, "", in_range(0, 1));
    }
  };
  struct Dotted {
    int a = 0;
    void fields(Fields& f) { f("a.b", a, "", in_range(0, 1)); }
  };
  EXPECT_THROW(to_yaml(Twice()), Error);
  EXPECT_THROW(to_yaml(Dotted()), Error);
}

TEST(Fields, EditDistanceCountsEditsAndSwaps) {
  EXPECT_EQ(config::edit_distance("", "abc"), 3u);
  EXPECT_EQ(config::edit_distance("abc", "abc"), 0u);
  EXPECT_EQ(config::edit_distance("abc", "acb"), 1u);  // one swap
  EXPECT_EQ(config::edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(config::nearest_name("zzzzzz", {"lr", "steps"}), "");
  EXPECT_EQ(config::nearest_name("stepss", {"lr", "steps"}), "steps");
}

struct Worded {
  std::int64_t rows = 0;
  void fields(Fields& f) {
    f("rows", rows, "at a time", in_range(0, 8), word("auto", -1), docs_page("memory.md#rows"));
  }
};

TEST(Fields, ReferenceLinksToAFieldsPage) {
  EXPECT_NE(describe_config<Worded>().find("\n  at a time ([memory](memory.md#rows))\n"), std::string::npos);
}

TEST(Fields, AnIntegerMayHaveAWord) {
  Worded c;
  load_config_text(c, "rows: auto", "a");
  EXPECT_EQ(c.rows, -1);
  EXPECT_EQ(to_yaml(c), "rows: auto\n");
  override_config(c, {"rows=3"});
  EXPECT_EQ(c.rows, 3);
  override_config(c, {"rows=auto"});
  EXPECT_EQ(c.rows, -1);
  EXPECT_EQ(diff_configs(Worded{}, c), std::vector<std::string>{"rows: 0 -> auto"});
  for (const char* wrong : {"rows=-1", "rows=9", "rows=automatic", "rows=", "rows=[auto]"})
    EXPECT_THROW(override_config(c, {wrong}), Error) << wrong;
  EXPECT_NE(describe_config<Worded>().find("integer or `auto`, in [0, 8], default `0`"), std::string::npos);
}

}  // namespace
}  // namespace ring
