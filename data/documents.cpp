#include "data/documents.h"

#include <utility>

#include "core/byte_order_mark.h"
#include "core/check.h"
#include "data/json_lines.h"
#include "data/parquet.h"
#include "data/unpack.h"

namespace ring {
namespace {

using Take = std::function<void(std::string_view)>;

// Passes the decompressed bytes of a file to `take`.
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
  read_whole(file, [&](std::string_view block) { cutter.add_block(block); });
  cutter.on_end_of_file();
}

void read_records(const TextFile& file, DocumentSink& sink) {
  const TakeRecord take = make_record_parser(file.members, sink);
  if (file.table) return read_parquet(file.path, file.members, take);
  cut(file, JsonLines(file.path, take));
}

constexpr std::size_t kIncomplete = std::string_view::npos;

// Returns how many bytes of `text` match the separator: 0 if the text begins with something else, kIncomplete if more
// text is needed to decide.
std::size_t separator_length(std::string_view text, std::string_view separator) {
  std::size_t at = 0;
  for (const char c : separator) {
    if (at == text.size()) return kIncomplete;
    if (c == '\n' && text.substr(at) == "\r") return kIncomplete;
    if (c == '\n' && text.substr(at).starts_with("\r\n")) ++at;
    if (text[at++] != c) return 0;
  }
  return at;
}

class Joined final : public DocumentSink {
 public:
  Joined(const Take& take, std::string_view end) : take_(take), end_(end) {}
  void add_part(std::string_view text, bool) override { take_(text); }
  void end() override {
    if (!end_.empty()) take_(end_);
  }

 private:
  const Take& take_;
  std::string_view end_;  // text to append to each document
};

}  // namespace

void read_documents(const TextFile& file, const DocumentRule& rule, DocumentSink& sink) {
  if (!file.members.any()) return cut(file, DocumentCutter(rule, sink, file.as_text));
  read_records(file, sink);
}

void read_text(const TextFile& file, const Take& take) {
  Joined records(take, "\n"), text(take, "");
  if (file.members.any()) return read_records(file, records);
  cut(file, DocumentCutter({}, text, file.as_text));
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

void DocumentCutter::append(std::string_view text) {
  if (text.empty()) return;
  if (open_ || as_text_) {
    sink_.add_part(text);
    open_ = true;
    return;
  }
  mark_ += text;
  mark_.erase(0, mark_.size() - without_byte_order_marks(mark_).size());
  if (kByteOrderMark.starts_with(mark_)) return;  // the next block may bring another mark, or the rest of one
  begin_document();
}

void DocumentCutter::begin_document() {
  const std::string text = std::exchange(mark_, "");
  if (text.empty()) return;
  sink_.add_part(text);
  open_ = true;
}

void DocumentCutter::end_document() {
  if (!mark_.empty()) begin_document();
  if (open_) sink_.end();
  open_ = false;
}

void DocumentCutter::add_block(std::string_view text) {
  switch (rule_.kind) {
    case DocumentKind::file: return append(text);
    case DocumentKind::line: return cut_lines(text);
    case DocumentKind::blank_line: return cut_at_blank_lines(text, false);
    case DocumentKind::separator: return cut_at_separators(text);
  }
}

// Treats "\r\n" as two line ends with an empty line between them, which is not a document.
void DocumentCutter::cut_lines(std::string_view text) {
  for (std::size_t at; (at = text.find_first_of("\r\n")) != std::string_view::npos; text.remove_prefix(at + 1)) {
    append(text.substr(0, at));
    end_document();
  }
  append(text);
}

void DocumentCutter::cut_at_separators(std::string_view text) {
  const std::string& separator = rule_.separator;
  held_ += text;
  std::string_view rest = held_;
  const std::string first = separator[0] == '\n' ? "\r\n" : separator.substr(0, 1);
  std::size_t at = 0;
  while ((at = rest.find_first_of(first, at)) != std::string_view::npos) {
    const std::size_t length = separator_length(rest.substr(at), separator);
    if (length == kIncomplete) break;
    if (length == 0) {
      ++at;
      continue;
    }
    append(rest.substr(0, at));
    end_document();
    rest.remove_prefix(at + length);
    at = 0;
  }
  const std::size_t whole = std::min(at, rest.size());
  append(rest.substr(0, whole));
  held_ = std::string(rest.substr(whole));
}

void DocumentCutter::cut_at_blank_lines(std::string_view text, bool at_end) {
  held_ += text;
  std::string_view rest = held_;
  while (!rest.empty()) {
    std::size_t end = rest.find_first_of("\r\n");
    const bool complete = end != std::string_view::npos;
    if (complete && rest[end] == '\r') {
      if (end + 1 == rest.size() && !at_end) break;  // the next block may begin with "\n"
      if (rest.substr(end).starts_with("\r\n")) ++end;
    }
    const std::string_view line = rest.substr(0, complete ? end + 1 : end);
    if (at_line_start_ && (line == "\n" || line == "\r\n" || line == "\r"))
      end_document();
    else
      append(line);
    at_line_start_ = complete;
    rest.remove_prefix(line.size());
  }
  held_ = std::string(rest);
}

void DocumentCutter::on_end_of_file() {
  if (rule_.kind == DocumentKind::blank_line) cut_at_blank_lines("", true);
  append(held_);
  held_.clear();
  at_line_start_ = true;
  end_document();
}

}  // namespace ring
