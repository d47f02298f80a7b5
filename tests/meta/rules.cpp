#include "tests/meta/rules.h"

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "core/check.h"
#include "tests/meta/functions.h"

namespace ring::test {
namespace {

// Ranks of the rooms. A room includes rooms of lower rank; rooms of the same rank do not include each other.
const std::map<std::string, int> kRank = {{"core", 0},     {"kernels", 1},  {"job", 1},         {"text", 1},
                                          {"comm", 2},     {"autograd", 3}, {"data", 3},        {"checkpoint", 3},
                                          {"model", 4},    {"parallel", 5}, {"optim", 6},       {"engine", 7},
                                          {"evaluate", 8}, {"trainer", 9},  {"interchange", 9}, {"launcher", 10},
                                          {"inspect", 10}, {"bench", 11},   {"cli", 12}};
constexpr std::size_t kMaxLines = 600;
constexpr std::ptrdiff_t kMaxColumns = 120;
const std::string kDevice = "kernels/cuda/device/";

// Returns the room of a file. Programs beside a room may use everything.
std::string room_of(const std::string& path) {
  return path.starts_with("bench/programs/") ? "" : path.substr(0, path.find('/'));
}

bool in_cuda_folder(const std::string& path) { return path.find("/cuda/") != std::string::npos; }

// Returns why `from` must not include `to`; "" if it may.
std::string include_problem(const std::string& from, const std::string& to) {
  if (to.starts_with("generated/")) return "";
  const auto target = kRank.find(room_of(to));
  if (target == kRank.end()) return "is not a path from the root into a room";
  const auto own = kRank.find(room_of(from));
  if (target->first != own->first && target->second >= own->second)
    return str("points from ", own->first, " to ", target->first, ", which does not stand to its left");
  const bool from_device = from.starts_with(kDevice), to_device = to.starts_with(kDevice);
  if (from_device && !to_device && to != "core/philox.h") return "leaves the device vocabulary";
  if (to_device && !in_cuda_folder(from)) return "brings device vocabulary into host code";
  return "";
}

template <class Fn>
void each_line(const SourceFile& file, Fn fn) {
  int number = 0;
  for (const std::string& line : lines_of(file.text)) fn(line, str(file.path, ':', ++number, ": "));
}

}  // namespace

Violations include_direction(const SourceFile& file) {
  static const std::regex quoted(R"re(^\s*#\s*include\s*"([^"]+)")re");
  Violations out;
  if (!is_source(file.path) || !kRank.contains(room_of(file.path))) return out;
  each_line(file, [&](const std::string& line, const std::string& at) {
    std::smatch m;
    if (!std::regex_search(line, m, quoted)) return;
    const std::string problem = include_problem(file.path, m[1]);
    if (!problem.empty()) out.push_back(str(at, '"', m[1].str(), "\" ", problem));
  });
  return out;
}

Violations heavy_includes(const SourceFile& file) {
  static const std::regex heavy(
      R"(^\s*#\s*include\s*[<"](spdlog|yaml-cpp|CLI|nlohmann(?!/json_fwd)|Eigen|hdf5|H5|oneapi|gloo)\b)");
  Violations out;
  if (!file.path.ends_with(".h") || !kRank.contains(room_of(file.path))) return out;
  each_line(file, [&](const std::string& line, const std::string& at) {
    if (std::regex_search(line, heavy)) out.push_back(str(at, "a header of a large library in a header: ", line));
  });
  return out;
}

Violations length(const SourceFile& file) {
  const std::size_t lines = lines_of(file.text).size();
  if (!is_source(file.path) || lines <= kMaxLines) return {};
  return {str(file.path, ":1: ", lines, " lines, at most ", kMaxLines, ": split it")};
}

Violations function_length(const SourceFile& file) {
  Violations out;
  if (!is_source(file.path) || file.path.starts_with("tests/")) return out;
  const int most = file.path.starts_with("kernels/") ? 80 : 60;
  for (const Function& f : functions_of(file))
    if (f.lines > most)
      out.push_back(str(file.path, ':', f.line, ": a function of ", f.lines, " lines, at most ", most));
  return out;
}

Violations width(const SourceFile& file) {
  const auto columns = [](const std::string& line) {  // counts characters of UTF-8
    return std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; });
  };
  Violations out;
  if (!is_source(file.path) && !file.path.ends_with(".md")) return out;
  each_line(file, [&](const std::string& line, const std::string& at) {
    if (columns(line) > kMaxColumns) out.push_back(str(at, columns(line), " columns, at most ", kMaxColumns));
  });
  return out;
}

Violations host_waits(const SourceFile& file) {
  static const std::regex waits(R"((\.|->)synchronize\s*\(|\bcuda\w*Synchronize\s*\()");
  static const std::regex reason(R"(// allowed host wait: )"
                                 R"((log|checkpoint|shutdown|start|sampling|diagnosis|transport)\b)");
  const std::string room = room_of(file.path);
  Violations out;
  if (!is_source(file.path) || !kRank.contains(room) || room == "core" || room == "checkpoint") return out;
  each_line(file, [&](const std::string& line, const std::string& at) {
    if (std::regex_search(line, waits) && !std::regex_search(line, reason))
      out.push_back(str(at, "the host waits for the device here: order streams by events instead"));
  });
  return out;
}

Violations opened_files(const SourceFile& file) {
  static const std::regex opens(R"(std::(i|o)?fstream(\s+\w+)?\(|\bfopen\(|(^|[^\w.>])open\(.*\bO_|\.open\(.*\bios\b)");
  static const std::regex known(R"(/proc\b|/sys\b|/dev/null|\bO_DIRECTORY\b|\bO_EXCL\b|"wbx"|)"
                                R"(// allowed open: (checked|system|own|output)\b)");
  Violations out;
  if (!is_source(file.path) || !kRank.contains(room_of(file.path)) || file.path == "core/regular_file.cpp") return out;
  each_line(file, [&](const std::string& line, const std::string& at) {
    if (line.find("open") == std::string::npos && line.find("fstream") == std::string::npos) return;
    if (std::regex_search(line, opens) && !std::regex_search(line, known))
      out.push_back(str(at, "a pipe in place of this file would be waited for: use open_regular()"));
  });
  return out;
}

Violations narrowed_settings(const SourceFile& file) {
  static const std::regex cast(R"(static_cast<(int|std::u?int32_t|unsigned)>\([^()]*)"
                               R"(\b(run|model|data|train|optimizer|schedule|checkpoint|parallel)\.\w+\))");
  Violations out;
  if (!is_source(file.path) || !kRank.contains(room_of(file.path))) return out;
  each_line(file, [&](const std::string& line, const std::string& at) {
    if (line.find("static_cast") == std::string::npos) return;
    if (std::regex_search(line, cast)) out.push_back(str(at, "a setting loses bits unseen: write narrow<T>(...)"));
  });
  return out;
}

Violations casts_by_class(const SourceFile& file) {
  static const std::regex cast(R"(\bdynamic_(pointer_)?cast\b)");
  Violations out;
  if (!is_source(file.path)) return out;
  each_line(file, [&](const std::string& line, const std::string& at) {
    if (std::regex_search(line, cast)) out.push_back(at + "asks for an object's class: add a virtual function");
  });
  return out;
}

Violations named_architectures(const SourceFile& file) {
  static const std::regex architecture(R"(\bDecoder(Block)?\b|model/decoder\.h)");
  Violations out;
  if (!is_source(file.path) || !kRank.contains(room_of(file.path)) || room_of(file.path) == "model") return out;
  each_line(file, [&](const std::string& line, const std::string& at) {
    if (std::regex_search(line, architecture)) out.push_back(at + "names an architecture: use Model (model/model.h)");
  });
  return out;
}

Violations json_parsers(const SourceFile& file) {
  static const std::regex parser(R"(\b([Jj]son|ordered_json)::(parse|accept|sax_parse)\s*\()");
  Violations out;
  if (!is_source(file.path) || !kRank.contains(room_of(file.path)) || file.path == "core/json.cpp") return out;
  each_line(file, [&](const std::string& line, const std::string& at) {
    if (std::regex_search(line, parser)) out.push_back(at + "nlohmann's parser has no bounds: call parse_json()");
  });
  return out;
}

Violations command_line_parsers(const SourceFile& file) {
  static const std::regex parser(R"(^\s*#\s*include\s*[<"]CLI/)");
  Violations out;
  if (!is_source(file.path) || file.path == "cli/command.cpp") return out;
  each_line(file, [&](const std::string& line, const std::string& at) {
    if (std::regex_search(line, parser)) out.push_back(at + "CLI11 is slow to compile: use cli/command.h");
  });
  return out;
}

Violations detached_threads(const SourceFile& file) {
  // Each of these files says at its thread why nobody joins it.
  static const std::set<std::string> allowed = {"comm/nccl/channel.cpp", "comm/nccl/peer_copies.cpp",
                                                "core/awake_clock.cpp", "trainer/gpu_watch.cpp"};
  Violations out;
  if (!is_source(file.path) || !kRank.contains(room_of(file.path)) || allowed.contains(file.path)) return out;
  each_line(file, [&](const std::string& line, const std::string& at) {
    if (line.find(".detach()") != std::string::npos) out.push_back(at + "a detached thread outlives statics: join it");
  });
  return out;
}

Violations leftovers(const SourceFile& file) {
  // The words are split, or this file would break its own rule.
  static const std::regex marks(
      "\\b(TO"
      "DO|FIX"
      "ME|X"
      "XX|HA"
      "CK|TB"
      "D|WI"
      "P)\\b|not imple"
      "mented yet|coming "
      "soon");
  static const std::regex machine(
      "(^|[\\s\"'`(=:<])/(ho"
      "me|Us"
      "ers|ro"
      "ot|wo"
      "rk)/[A-Za-z0-9_.]");
  static const std::regex no_subject("(//|^#) Of ");
  Violations out;
  each_line(file, [&](const std::string& line, const std::string& at) {
    if (std::regex_search(line, no_subject)) out.push_back(str(at, "a comment that begins with a bare 'of': ", line));
    if (std::regex_search(line, marks)) out.push_back(str(at, "a mark of unfinished work: ", line));
    if (std::regex_search(line, machine)) out.push_back(str(at, "a path of somebody's machine: ", line));
  });
  return out;
}

Violations hard_words(const SourceFile& file) {
  static const std::regex start(R"(^// +(What|Who|Whether|Where|Which|Those|As|And|Of|That|To) )");
  static const std::regex limit(R"((^|[^\w".])((least|most)_\w+|k(Least|Most)[A-Z]\w*))");
  Violations out;
  if (!is_source(file.path) || !kRank.contains(room_of(file.path))) return out;
  bool in_comment = false;  // the previous line is a comment, which this line may continue
  each_line(file, [&](const std::string& line, const std::string& at) {
    const std::size_t comment = line.find("// ");
    const std::string before = line.substr(0, comment);
    const bool whole = before.find_first_not_of(' ') == std::string::npos;
    const bool quoted = std::ranges::count(before, '"') % 2 == 1;
    if (comment != std::string::npos && !quoted && !(whole && in_comment) &&
        std::regex_search(line.substr(comment), start))
      out.push_back(str(at, "begin the comment with a verb or with its subject: ", line));
    if (std::regex_search(line, limit)) out.push_back(str(at, "call limits min and max: ", line));
    in_comment = comment != std::string::npos && whole;
  });
  return out;
}

}  // namespace ring::test
