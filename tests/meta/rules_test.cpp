// The rules, tested on text that breaks them, then applied to the project.
#include "tests/meta/rules.h"

#include <gtest/gtest.h>

#include "tests/meta/cycles.h"
#include "tests/meta/definitions.h"
#include "tests/paths.h"

namespace ring::test {
namespace {

const std::vector<SourceFile>& tree() {
  static const std::vector<SourceFile> files = source_tree(source_dir());
  return files;
}

std::string joined(Violations (*rule)(const SourceFile&)) {
  std::string out;
  for (const SourceFile& file : tree())
    for (const std::string& line : rule(file)) out += line + "\n";
  return out;
}

std::string include_of(const std::string& path) { return "#pragma once\n#include \"" + path + "\"\n"; }

TEST(IncludeDirection, AllowsLeftwardAndOwn) {
  EXPECT_TRUE(include_direction({"trainer/loop.cpp", include_of("core/check.h")}).empty());
  EXPECT_TRUE(include_direction({"model/decoder.cpp", include_of("model/config.h")}).empty());
  EXPECT_TRUE(include_direction({"cli/main.cpp", include_of("generated/build_info.h")}).empty());
  EXPECT_TRUE(include_direction({"tests/core/a_test.cpp", include_of("tests/op_case.h")}).empty());
  EXPECT_TRUE(include_direction({"kernels/cuda/rope.cu", include_of("kernels/cuda/device/load.cuh")}).empty());
}

TEST(IncludeDirection, RefusesUpwardSidewaysAndRelative) {
  const Violations up = include_direction({"core/tensor.h", include_of("kernels/kernel.h")});
  ASSERT_EQ(up.size(), 1u);
  EXPECT_EQ(up[0].rfind("core/tensor.h:2: ", 0), 0u) << up[0];
  EXPECT_EQ(include_direction({"kernels/a.h", include_of("job/store.h")}).size(), 1u);
  EXPECT_EQ(include_direction({"data/a.cpp", include_of("model/config.h")}).size(), 1u);
  EXPECT_EQ(include_direction({"core/a.cpp", include_of("check.h")}).size(), 1u);
  EXPECT_EQ(include_direction({"core/a.cpp", include_of("../model/config.h")}).size(), 1u);
  EXPECT_EQ(include_direction({"trainer/a.cpp", include_of("tests/op_case.h")}).size(), 1u);
}

TEST(IncludeDirection, KeepsDeviceVocabularyApart) {
  EXPECT_EQ(include_direction({"kernels/cuda/device/a.cuh", include_of("core/check.h")}).size(), 1u);
  EXPECT_TRUE(include_direction({"kernels/cuda/device/a.cuh", include_of("core/philox.h")}).empty());
  EXPECT_EQ(include_direction({"kernels/cpu/a.cpp", include_of("kernels/cuda/device/a.cuh")}).size(), 1u);
  EXPECT_EQ(include_direction({"trainer/a.cpp", include_of("kernels/cuda/device/a.cuh")}).size(), 1u);
}

TEST(HeavyIncludes, AreRefusedInHeadersOfRooms) {
  EXPECT_EQ(heavy_includes({"core/log.h", "#include <spdlog/spdlog.h>\n"}).size(), 1u);
  EXPECT_EQ(heavy_includes({"data/store.h", "#include <hdf5.h>\n"}).size(), 1u);
  EXPECT_TRUE(heavy_includes({"core/log.cpp", "#include <spdlog/spdlog.h>\n"}).empty());
  EXPECT_EQ(heavy_includes({"data/store.h", "#include <nlohmann/json.hpp>\n"}).size(), 1u);
  EXPECT_TRUE(heavy_includes({"data/store.h", "#include <nlohmann/json_fwd.hpp>\n"}).empty());
  EXPECT_TRUE(heavy_includes({"core/log.h", "#include <string>\n"}).empty());
}

TEST(Length, CountsSourceLinesOnly) {
  std::string text;
  for (int i = 0; i < 600; ++i) text += "x\n";
  EXPECT_TRUE(length({"core/a.cpp", text}).empty());
  EXPECT_EQ(length({"core/a.cpp", text + "x\n"}).size(), 1u);
  EXPECT_TRUE(length({"docs/a.md", text + "x\n"}).empty());
}

TEST(FunctionLength, CountsFromTheHeadToTheLastBrace) {
  const auto body = [](const std::string& head, int lines) {
    std::string text = "namespace ring {\nstruct S {\n  int a = 0;\n};\n" + head + " {\n";
    for (int i = 0; i < lines - 2; ++i) text += "  if (a) { b(\"{\"); }  // {\n";
    return text + "}\n}\n";
  };
  EXPECT_TRUE(function_length({"core/a.cpp", body("void f()", 60)}).empty());
  const Violations long_one = function_length({"core/a.cpp", body("S f(int a) const", 61)});
  ASSERT_EQ(long_one.size(), 1u);
  EXPECT_EQ(long_one[0], "core/a.cpp:5: a function of 61 lines, at most 60");
  EXPECT_EQ(function_length({"core/a.cpp", body("void f(int a,\n       int b)", 60)}).size(), 1u);
  EXPECT_TRUE(function_length({"kernels/cuda/a.cu", body("__global__ void f()", 61)}).empty());
  EXPECT_TRUE(function_length({"core/a.h", body("class C : public D", 61)}).empty());
}

TEST(Width, CountsCharacters) {
  EXPECT_TRUE(width({"docs/a.md", std::string(120, 'x') + "\n"}).empty());
  EXPECT_EQ(width({"docs/a.md", std::string(121, 'x') + "\n"}).size(), 1u);
  EXPECT_TRUE(width({"README.md", std::string(119, 'x') + "\u00d7\n"}).empty());
}

TEST(IncludeCycles, AreFoundByUnitAndByFolder) {
  const std::vector<SourceFile> files = {{"core/a.h", ""},
                                         {"core/a.cpp", include_of("core/b.h")},
                                         {"core/b.h", include_of("core/a.h")},
                                         {"comm/c.h", include_of("comm/x/d.h")},
                                         {"comm/x/d.h", include_of("comm/e.h")},
                                         {"comm/e.h", include_of("core/a.h")}};
  EXPECT_EQ(include_cycles(files, unit_of), std::vector<std::string>{"core/a core/b"});
  EXPECT_EQ(include_cycles(files, folder_of), std::vector<std::string>{"comm comm/x"});
}

TEST(HostWaits, AreRefusedWithoutAReason) {
  const std::string call = "  stream.synchronize();\n";
  EXPECT_EQ(host_waits({"trainer/loop.cpp", call}).size(), 1u);
  EXPECT_EQ(host_waits({"kernels/cuda/a.cu", "cudaStreamSynchronize(s);\n"}).size(), 1u);
  EXPECT_TRUE(host_waits({"trainer/loop.cpp", "  event.synchronize();  // allowed host wait: log\n"}).empty());
  EXPECT_EQ(host_waits({"trainer/loop.cpp", "  event.synchronize();  // allowed host wait: because\n"}).size(), 1u);
  EXPECT_TRUE(host_waits({"comm/work.h", "  void synchronize() {}\n"}).empty());
  EXPECT_TRUE(host_waits({"checkpoint/writer.cpp", call}).empty());
  EXPECT_TRUE(host_waits({"tests/core/a_test.cpp", call}).empty());
}

TEST(OpenedFiles, NeedAReason) {
  const auto found = [](const std::string& line) { return opened_files({"trainer/a.cpp", line + "\n"}).size(); };
  for (const char* line : {"const int fd = ::open(path.c_str(), O_RDONLY);", "do fd = open(path, O_RDWR | O_CREAT);",
                           "std::ifstream in(file);", "std::getline(std::ifstream(file), line);",
                           "std::ofstream(path) << text;", "log_.reset(std::fopen(path, \"ae\"));",
                           "out_.open(file_, std::ios::binary);", "std::ifstream in(file);  // allowed open: because"})
    EXPECT_EQ(found(line), 1u) << line;
  for (const char* line :
       {"const int fd = ::open(path, O_CREAT | O_EXCL);", "std::ifstream in(root + \"/proc/self/limits\");",
        "std::ifstream in(file);  // allowed open: checked", "Fd null(open(\"/dev/null\", O_RDONLY));",
        "store.open(path);", "int open_regular(const std::string& path, int flags);", "TokenStore::open(path)"})
    EXPECT_EQ(found(line), 0u) << line;
  EXPECT_TRUE(opened_files({"tests/core/a_test.cpp", "std::ifstream in(file);\n"}).empty());
}

TEST(Leftovers, FindsCommentsWithoutASubject) {
  EXPECT_EQ(leftovers({"a.cpp",
                       "  // O"
                       "f its rows.\n"})
                .size(),
            1u);
  EXPECT_TRUE(leftovers({"a.cpp", "// The number of its rows.\n"}).empty());
}

TEST(Leftovers, FindsMarksAndMachinePaths) {
  EXPECT_EQ(leftovers({"a.cpp",
                       "// TO"
                       "DO later\n"})
                .size(),
            1u);
  EXPECT_EQ(leftovers({"a.md",
                       "ok\nFIX"
                       "ME\n"})
                .size(),
            1u);
  EXPECT_EQ(leftovers({"a.md",
                       "cd /ho"
                       "me/someone\n"})
                .size(),
            1u);
  EXPECT_EQ(leftovers({"a.sh",
                       "X=\"/wo"
                       "rk/main\"\n"})
                .size(),
            1u);
  EXPECT_TRUE(leftovers({"a.sh",
                         "mktemp /tmp/x.XXXXXX\nhttps://example.org/ho"
                         "me/page\n"})
                  .empty());
}

TEST(HardWords, AreRefusedAtTheStartOfAComment) {
  const auto count = [](const char* text) { return hard_words({"core/a.h", text}).size(); };
  EXPECT_EQ(count("// What the ranks hold.\nint a;\n"), 1u);
  EXPECT_EQ(count("int a;  // Whether it fits.\n"), 1u);
  EXPECT_EQ(count("// Returns the rank.\n// Whether it fits is not checked.\nint a;\n"), 0u);
  EXPECT_EQ(count("// Returns a.\nint a;\n// As b.\nint b;\n"), 1u);
  EXPECT_EQ(count("const char* a = \"// As b\";\n"), 0u);
  EXPECT_EQ(count("int most_bytes = 0;\n"), 1u);
  EXPECT_EQ(count("constexpr int kLeastRows = 2;\n"), 1u);
  EXPECT_EQ(count("f(\"most_bad_steps\", max_bad_steps);\nint at_most = 1;\n"), 0u);
  EXPECT_TRUE(hard_words({"tests/core/a.cpp", "// What the ranks hold.\n"}).empty());
}

TEST(CastsByClass, AreRefusedInTestsToo) {
  const std::string cast =
      "  if (auto* d = dynamic_"
      "cast<Derived*>(base)) d->f();\n";
  const std::string shared =
      "  auto d = std::dynamic_"
      "pointer_cast<Derived>(base);\n";
  for (const char* path : {"core/a.cpp", "core/a.h", "kernels/cuda/a.cu", "tests/core/a_test.cpp"}) {
    EXPECT_EQ(casts_by_class({path, cast}).size(), 1u) << path;
    EXPECT_EQ(casts_by_class({path, shared}).size(), 1u) << path;
    EXPECT_TRUE(casts_by_class({path, "  auto& d = static_cast<Derived&>(base);\n"}).empty()) << path;
  }
}

TEST(NamedArchitectures, AreRefusedOutsideTheRoomModel) {
  EXPECT_EQ(named_architectures({"trainer/a.h", "void evaluate(const Decoder&);\n"}).size(), 1u);
  EXPECT_EQ(named_architectures({"optim/a.cpp", "#include \"model/decoder.h\"\n"}).size(), 1u);
  EXPECT_TRUE(named_architectures({"optim/a.cpp", "void f(const Model&, StringDecoder&);\n"}).empty());
  for (const char* path : {"model/a.cpp", "tests/model/a_test.cpp"})
    EXPECT_TRUE(named_architectures({path, "Decoder model(config);\n"}).empty()) << path;
}

TEST(JsonParsers, AreRefusedOutsideCore) {
  const std::string call = "  const auto j = nlohmann::json::parse(text);\n";
  EXPECT_EQ(json_parsers({"trainer/a.cpp", call}).size(), 1u);
  EXPECT_EQ(json_parsers({"cli/a.cpp", "  if (Json::accept (text)) return;\n"}).size(), 1u);
  EXPECT_TRUE(json_parsers({"core/json.cpp", call}).empty());
  EXPECT_TRUE(json_parsers({"tests/trainer/a_test.cpp", call}).empty());
  EXPECT_TRUE(json_parsers({"trainer/a.cpp", "  const auto j = parse_json<nlohmann::json>(text);\n"}).empty());
}

TEST(CommandLineParsers, AreRefusedOutsideOneSource) {
  const std::string include = "#include <CLI/CLI.hpp>\n";
  for (const char* path : {"cli/train.cpp", "cli/command.h", "bench/programs/gemm.cpp", "tests/cli/a_test.cpp"})
    EXPECT_EQ(command_line_parsers({path, include}).size(), 1u) << path;
  EXPECT_TRUE(command_line_parsers({"cli/command.cpp", include}).empty());
  EXPECT_TRUE(command_line_parsers({"cli/train.cpp", "#include \"cli/command.h\"\n"}).empty());
}

TEST(DetachedThreads, AreFound) {
  const std::string detached = "  std::thread([] { work(); }).detach();\n";
  EXPECT_EQ(detached_threads({"trainer/a.cpp", detached}).size(), 1u);
  EXPECT_TRUE(detached_threads({"core/awake_clock.cpp", detached}).empty());
  EXPECT_TRUE(detached_threads({"trainer/a.cpp", "  thread_.join();\n"}).empty());
}

TEST(NarrowedSettings, AreChecked) {
  const auto wrong = [](const std::string& line) { return narrowed_settings({"trainer/a.cpp", line + "\n"}).size(); };
  EXPECT_EQ(wrong("f(static_cast<int>(config_.checkpoint.keep_last));"), 1u);
  EXPECT_EQ(wrong("f(static_cast<std::uint32_t>(c.train.steps));"), 1u);
  EXPECT_EQ(wrong("f(narrow<int>(config_.checkpoint.keep_last));"), 0u);
  EXPECT_EQ(wrong("f(static_cast<double>(c.train.steps), static_cast<int>(text.size()));"), 0u);
}

TEST(TypesDefinedTwice, AreFoundAcrossFiles) {
  const auto in = [](const std::string& name, const std::string& body) {
    return SourceFile{name, "namespace ring {\n" + body + "}  // namespace ring\n"};
  };
  const std::string job = "struct Job {\n  int a;\n};\n", unnamed = "namespace {\n\n" + job + "\n}  // namespace\n";
  EXPECT_EQ(types_defined_twice({in("data/a.h", job), in("launcher/b.h", job)}),
            std::vector<std::string>{"ring::Job: data/a.h, launcher/b.h"});
  EXPECT_EQ(
      types_defined_twice({in("data/a.h", job), in("comm/b.cpp", "class Job final : public Base {\n};\n")}).size(), 1u);
  EXPECT_TRUE(
      types_defined_twice({in("data/a.h", job), in("launcher/b.cpp", unnamed), in("comm/c.cpp", unnamed)}).empty());
  EXPECT_TRUE(types_defined_twice({in("data/a.h", job), in("launcher/b.h", "struct Job;\n")}).empty());
  EXPECT_TRUE(types_defined_twice({in("data/a.h", job), in("tests/b.h", job)}).empty());
  EXPECT_TRUE(types_defined_twice({in("data/a.h", job), {"b.h", "namespace ring::cuda {\n" + job}}).empty());
}

TEST(Tree, IsRead) {
  EXPECT_GT(tree().size(), 30u);
  bool found = false;
  for (const SourceFile& file : tree()) found |= file.path == "core/check.h" && !file.text.empty();
  EXPECT_TRUE(found) << source_dir();
}

TEST(Tree, IncludesPointLeft) { EXPECT_EQ(joined(include_direction), ""); }
TEST(Tree, HeadersAreLight) { EXPECT_EQ(joined(heavy_includes), ""); }
TEST(Tree, FilesAreShort) { EXPECT_EQ(joined(length), ""); }
TEST(Tree, FunctionsAreShort) { EXPECT_EQ(joined(function_length), ""); }
TEST(Tree, LinesFitAScreen) { EXPECT_EQ(joined(width), ""); }
TEST(Tree, IncludesHaveNoCycles) {
  EXPECT_EQ(include_cycles(tree(), unit_of), std::vector<std::string>{});
  EXPECT_EQ(include_cycles(tree(), folder_of), std::vector<std::string>{});
}
TEST(Tree, TypesHaveOneDefinition) { EXPECT_EQ(types_defined_twice(tree()), std::vector<std::string>{}); }
TEST(Tree, HostDoesNotWait) { EXPECT_EQ(joined(host_waits), ""); }
TEST(Tree, CodeDoesNotCastByClass) { EXPECT_EQ(joined(casts_by_class), ""); }
TEST(Tree, ModelsAreUsedByTheirInterface) { EXPECT_EQ(joined(named_architectures), ""); }
TEST(Tree, FilesAreOpenedByOneHelper) { EXPECT_EQ(joined(opened_files), ""); }
TEST(Tree, SettingsAreNarrowedWithChecks) { EXPECT_EQ(joined(narrowed_settings), ""); }
TEST(Tree, JsonIsReadWithBounds) { EXPECT_EQ(joined(json_parsers), ""); }
TEST(Tree, CommandsAreReadThroughOneHeader) { EXPECT_EQ(joined(command_line_parsers), ""); }
TEST(Tree, ThreadsAreJoined) { EXPECT_EQ(joined(detached_threads), ""); }
TEST(Tree, WordsArePlain) { EXPECT_EQ(joined(hard_words), ""); }
TEST(Tree, SourcesHaveNoLeftovers) { EXPECT_EQ(joined(leftovers), ""); }

}  // namespace
}  // namespace ring::test
