#include "data/text_files.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "core/check.h"
#include "core/counted.h"
#include "data/files.h"

namespace ring {
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20;

bool matches(const std::string& glob, const std::string& name) {
  const bool whole = glob.find('/') != std::string::npos;
  const std::string subject = whole ? name : fs::path(name).filename().string();
  return ::fnmatch(glob.c_str(), subject.c_str(), 0) == 0;
}

// Adds the matching files below `folder`; returns how many files it looked at.
std::size_t add_folder(const fs::path& folder, const std::string& glob, std::vector<TextFile>& files) {
  std::size_t seen = 0;
  auto it = fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied);
  for (; it != fs::recursive_directory_iterator(); ++it) {
    if (it->path().filename().string().starts_with('.')) {
      if (it->is_directory()) it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file()) continue;
    ++seen;
    const std::string name = it->path().lexically_relative(folder).generic_string();
    if (matches(glob, name)) files.push_back({it->path().string(), name, it->file_size()});
  }
  return seen;
}

}  // namespace

std::vector<TextFile> list_text_files(const std::vector<std::string>& inputs, const std::string& glob) {
  if (inputs.empty()) fail("no input is given: name files or folders with --input");
  std::vector<TextFile> files;
  for (const std::string& input : inputs) {
    if (!fs::exists(input)) fail("--input ", input, ": no such file or folder");
    if (fs::is_directory(input)) {
      const std::size_t before = files.size(), seen = add_folder(input, glob, files);
      if (files.size() == before) {
        fail("--input ", input, ": none of its ", counted(static_cast<std::int64_t>(seen), "file"), " matches --glob '",
             glob, "'; give another pattern, such as '*.txt' or '*'");
      }
    } else {
      if (!fs::is_regular_file(input)) fail("--input ", input, ": not a regular file; save the text to a file first");
      files.push_back({input, fs::path(input).filename().string(), fs::file_size(input)});
    }
  }
  std::sort(files.begin(), files.end(),
            [](const TextFile& a, const TextFile& b) { return std::tie(a.name, a.path) < std::tie(b.name, b.path); });
  const auto same = [](const TextFile& a, const TextFile& b) {
    return a.name == b.name && (a.path == b.path || fs::equivalent(a.path, b.path));
  };
  files.erase(std::unique(files.begin(), files.end(), same), files.end());
  return files;
}

void read_blocks(const TextFile& source, std::uint64_t begin, std::uint64_t end,
                 const std::function<void(std::string_view)>& take) {
  FileHandle file(source.path, O_RDONLY);
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
  if (::lseek(file.fd(), static_cast<off_t>(begin), SEEK_SET) < 0) fail("cannot seek in ", source.path);
  std::string buffer(kBlock, '\0');
  while (begin < end) {
    const std::size_t n =
        file.read(buffer.data(), static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, end - begin)));
    if (n == 0)
      fail(source.path, " became shorter while it was read: ", end, " bytes were expected, ", begin,
           " came; start again");
    take(std::string_view(buffer).substr(0, n));
    begin += n;
  }
}

DocumentRule parse_document_rule(const std::string& text) {
  if (text == "file") return {DocumentKind::file, ""};
  if (text == "line") return {DocumentKind::line, "\n"};
  if (text == "blank-line") return {DocumentKind::blank_line, ""};
  DocumentRule rule{DocumentKind::separator, ""};
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    const bool escape = text[i] == '\\' && (next == 'n' || next == 't' || next == '\\');
    rule.separator += !escape ? text[i] : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    i += escape;
  }
  if (rule.separator.empty())
    fail("--document is empty: give file, line, blank-line, or the text that separates documents");
  return rule;
}

void DocumentCutter::put(std::string_view text) {
  if (text.empty()) return;
  sink_.part(text);
  open_ = true;
}

void DocumentCutter::end_document() {
  if (open_) sink_.end();
  open_ = false;
}

void DocumentCutter::block(std::string_view text) {
  if (rule_.kind == DocumentKind::file) return put(text);
  held_ += text;
  if (rule_.kind == DocumentKind::blank_line)
    blank_lines();
  else
    separated(rule_.separator);
}

void DocumentCutter::separated(const std::string& separator) {
  std::string_view rest = held_;
  for (std::size_t at; (at = rest.find(separator)) != std::string_view::npos;
       rest.remove_prefix(at + separator.size())) {
    put(rest.substr(0, at));
    end_document();
  }
  const std::size_t keep = std::min(rest.size(), separator.size() - 1);
  put(rest.substr(0, rest.size() - keep));
  held_ = std::string(rest.substr(rest.size() - keep));
}

void DocumentCutter::blank_lines() {
  std::string_view rest = held_;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const bool complete = end != std::string_view::npos;
    const std::string_view line = rest.substr(0, complete ? end + 1 : end);
    if (at_line_start_ && !complete && line == "\r") break;  // may become a blank line
    if (at_line_start_ && (line == "\n" || line == "\r\n"))
      end_document();
    else
      put(line);
    at_line_start_ = complete;
    rest.remove_prefix(line.size());
  }
  held_ = std::string(rest);
}

void DocumentCutter::end_of_file() {
  put(held_);
  held_.clear();
  at_line_start_ = true;
  end_document();
}

}  // namespace ring
