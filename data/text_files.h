#pragma once
// The text files that a corpus or a vocabulary is made of, and how they are cut into documents.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

struct TextFile {
  std::string path;
  std::string name;  // relative to the folder it was found in: its identity for hashing, the same on every machine
  std::uint64_t size = 0;
  bool as_text = false;  // whatever it looks like
};

// Files, and files below folders whose name (or path below the folder, when the pattern has a '/') matches `glob`.
// Names that start with a dot are passed over inside of folders; links to folders and what cannot be looked at are
// skipped with a warning. Sorted by name, each once. Error: a path does not exist, nothing was found, a file cannot be
// read, or one is no text by its first bytes or its name (data/text_kind.h), unless `as_text`.
std::vector<TextFile> list_text_files(const std::vector<std::string>& inputs, const std::string& glob,
                                      bool as_text = false);

// Calls take(block) for the file's bytes from `begin` to `end`, a megabyte at a time. Error: a NUL byte, which no text
// has (but as_text).
void read_blocks(const TextFile&, std::uint64_t begin, std::uint64_t end,
                 const std::function<void(std::string_view)>& take);

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
  class Sink {
   public:
    virtual ~Sink() = default;
    virtual void part(std::string_view text) = 0;  // of the current document, never empty
    virtual void end() = 0;                        // of the current document, after at least one part
  };

  DocumentCutter(DocumentRule rule, Sink& sink) : rule_(std::move(rule)), sink_(sink) {}
  void block(std::string_view text);
  void end_of_file();

 private:
  void put(std::string_view text);
  void end_document();
  void separated(const std::string& separator);
  void blank_lines();
  DocumentRule rule_;
  Sink& sink_;
  std::string held_;           // bytes that may be the beginning of a separator
  bool at_line_start_ = true;  // blank lines only
  bool open_ = false;          // the current document has a byte
};

}  // namespace ring
