#include "data/documents.h"

#include "core/check.h"
#include "data/json_lines.h"
#include "data/parquet.h"
#include "data/unpack.h"

namespace ring {
namespace {

using Take = std::function<void(std::string_view)>;

// The bytes that a file holds, unpacked.
void read_whole(const TextFile& file, const Take& take) {
  if (!file.packed) return read_blocks(file, 0, file.size, take);
  std::uint64_t at = 0;
  read_unpacked(file.path, [&](std::string_view block) {
    check_no_nul(file, block, at);
    at += block.size();
    take(block);
    return true;
  });
}

template <class Cutter>
void cut(const TextFile& file, Cutter&& cutter) {
  read_whole(file, [&](std::string_view block) { cutter.block(block); });
  cutter.end_of_file();
}

void read_records(const TextFile& file, DocumentSink& sink) {
  const TakeRecord take = documents_of(file.members, sink);
  if (file.table) return read_parquet(file.path, file.members, take);
  cut(file, JsonLines(file.path, take));
}

class Joined final : public DocumentSink {
 public:
  explicit Joined(const Take& take) : take_(take) {}
  void part(std::string_view text, bool) override { take_(text); }
  void end() override { take_("\n"); }

 private:
  const Take& take_;
};

}  // namespace

void read_documents(const TextFile& file, const DocumentRule& rule, DocumentSink& sink) {
  if (!file.members.any()) return cut(file, DocumentCutter(rule, sink));
  read_records(file, sink);
}

void read_text(const TextFile& file, const Take& take) {
  if (!file.members.any()) return read_whole(file, take);
  Joined joined(take);
  read_records(file, joined);
}

std::uint64_t text_size(const TextFile& file) {
  if (file.plain()) return file.size;
  std::uint64_t bytes = 0;
  read_text(file, [&](std::string_view text) { bytes += text.size(); });
  return bytes;
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
