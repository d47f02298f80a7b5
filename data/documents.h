#pragma once
// How text is cut into documents: by a rule, or as the records of JSON Lines and Parquet tables.

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
  std::string separator;  // for DocumentKind::separator
};
// "file", "line", "blank-line", or any other text: the separator itself, where \n, \t and \\ are understood.
DocumentRule parse_document_rule(const std::string& text);

// Cuts a file into documents as its blocks arrive. What separates documents belongs to none of them; documents without
// a byte are passed over. Lines end with "\n", "\r\n" or "\r", and each "\n" of a separator stands for "\r\n" too;
// byte order marks in front of a document are removed, unless `as_text`.
class DocumentCutter {
 public:
  DocumentCutter(DocumentRule rule, DocumentSink& sink, bool as_text = false)
      : rule_(std::move(rule)), sink_(sink), as_text_(as_text) {}
  void block(std::string_view text);
  void end_of_file();

 private:
  void put(std::string_view text);
  void end_document();
  void begin_document();
  void lines(std::string_view text);
  void separated(std::string_view text);
  void blank_lines(std::string_view text, bool at_end);
  DocumentRule rule_;
  DocumentSink& sink_;
  bool as_text_;
  std::string held_;           // bytes that may be the beginning of a separator
  std::string mark_;           // bytes in front of a document that may be the beginning of another byte order mark
  bool at_line_start_ = true;  // blank lines only
  bool open_ = false;          // the current document has a byte
};

// All documents of a file: the rule's, or its records. Error: see check_no_nul(), data/unpack.h, data/json_lines.h,
// data/parquet.h.
void read_documents(const TextFile&, const DocumentRule&, DocumentSink&);

// Calls take(text) for all of a file's text, a megabyte or a record at a time; after each record comes a newline.
// Byte order marks in front of the text or of a record are removed, unless the file is taken as_text.
void read_text(const TextFile&, const std::function<void(std::string_view)>& take);
std::uint64_t text_size(const TextFile&);  // bytes that read_text() gives; reads all of it, unless the file is plain

}  // namespace ring
