#pragma once
// Splits text into documents: by a rule, or by the records of JSON Lines and Parquet tables.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "data/document_sink.h"
#include "data/text_files.h"

namespace ring {

enum class DocumentKind : std::uint8_t { file, line, blank_line, separator };

struct DocumentRule {
  DocumentKind kind = DocumentKind::file;
  std::string separator;  // used only for DocumentKind::separator
};
// Parses "file", "line" or "blank-line". Any other text is the separator itself, with escapes \n, \t and \\.
DocumentRule parse_document_rule(const std::string& text);

// Splits a file into documents as its blocks arrive. Separators do not belong to any document; empty documents are
// skipped. Lines end with "\n", "\r\n" or "\r", and each "\n" in a separator also matches "\r\n". Removes byte order
// marks at the start of a document unless `as_text`.
class DocumentCutter {
 public:
  DocumentCutter(DocumentRule rule, DocumentSink& sink, bool as_text = false)
      : rule_(std::move(rule)), sink_(sink), as_text_(as_text) {}
  // Processes the next block of the file's text.
  void add_block(std::string_view text);
  void on_end_of_file();  // ends the last document

 private:
  void append(std::string_view text);
  void end_document();
  void begin_document();
  void cut_lines(std::string_view text);
  void cut_at_separators(std::string_view text);
  void cut_at_blank_lines(std::string_view text, bool at_end);
  DocumentRule rule_;
  DocumentSink& sink_;
  bool as_text_;
  std::string held_;           // bytes that may begin a separator
  std::string mark_;           // bytes at the start of a document that may begin another byte order mark
  bool at_line_start_ = true;  // used only for DocumentKind::blank_line
  bool open_ = false;          // true if the current document is not empty
};

// Passes all documents of a file to the sink. If the file has records, each record is a document; otherwise the rule
// splits the text into documents. Throws the errors of check_no_nul(), data/unpack.h, data/json_lines.h and
// data/parquet.h.
void read_documents(const TextFile&, const DocumentRule&, DocumentSink&);

// Calls take(text) for all text of a file, one megabyte or one record at a time; each record is followed by a newline.
// Removes byte order marks at the start of the text or of a record unless file.as_text.
void read_text(const TextFile&, const std::function<void(std::string_view)>& take);
// Returns the number of bytes that read_text() passes to `take`. Reads the whole file unless file.plain().
std::uint64_t text_size(const TextFile&);

}  // namespace ring
