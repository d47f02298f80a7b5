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
// a byte are passed over.
class DocumentCutter {
 public:
  DocumentCutter(DocumentRule rule, DocumentSink& sink) : rule_(std::move(rule)), sink_(sink) {}
  void block(std::string_view text);
  void end_of_file();

 private:
  void put(std::string_view text);
  void end_document();
  void separated(const std::string& separator);
  void blank_lines();
  DocumentRule rule_;
  DocumentSink& sink_;
  std::string held_;           // bytes that may be the beginning of a separator
  bool at_line_start_ = true;  // blank lines only
  bool open_ = false;          // the current document has a byte
};

// All documents of a file: the rule's, or its records. Error: see check_no_nul(), data/unpack.h, data/json_lines.h,
// data/parquet.h.
void read_documents(const TextFile&, const DocumentRule&, DocumentSink&);

// Calls take(text) for all of a file's text, a megabyte or a record at a time; after each record comes a newline.
void read_text(const TextFile&, const std::function<void(std::string_view)>& take);
std::uint64_t text_size(const TextFile&);  // bytes that read_text() gives; reads all of it, unless the file is plain

}  // namespace ring
