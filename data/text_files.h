#pragma once
// The text files that a corpus or a vocabulary is made of: text as it is, JSON Lines, both also compressed, and Parquet
// tables.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/records.h"

namespace ring {

// Which options the command has that reads files, as messages name them.
enum class FileOptions : std::uint8_t {
  all,         // --glob, --as-text, --text-field
  text_field,  // this one
  none
};

struct TextFile {
  std::string path;
  std::string name;  // relative to the folder it was found in: its identity for hashing, the same on every machine
  std::uint64_t size = 0;                                   // on the disk
  bool as_text = false;                                     // whatever it looks like
  bool packed = false;                                      // by gzip or zstd
  bool table = false;                                       // of Parquet
  FileOptions options = FileOptions::all;                   // for check_no_nul()
  RecordMembers members{};                                  // of JSON Lines and tables; not any(): no records
  bool plain() const { return !packed && !members.any(); }  // its bytes are the text's
  const char* form() const;                                 // "compressed", as "is ..." goes on
};

// Files, and files below folders whose name (or path below the folder, when the pattern has a '/') matches `glob`, see
// glob_matches(). Names that start with a dot are passed over inside of folders, and counted in a message; links to
// folders and what cannot be looked at are skipped with a warning. Sorted by name. A file that several names lead to,
// links or hard links, is there once, with a message. Throws Error if a path does not exist, or nothing was found.
std::vector<TextFile> find_files(const std::vector<std::string>& inputs, const std::string& glob,
                                 FileOptions options = FileOptions::all);

// How each of the files is to be read. Those named .parquet are tables; those named .jsonl or .ndjson are JSON Lines,
// and with `members` all others are, too. Of records those members count, else `text`. Error: a file cannot be read, or
// one is no text by its first bytes or its name (data/text_kind.h), unless `as_text`.
void look_inside(std::vector<TextFile>&, bool as_text, const RecordMembers& members);

// Both.
std::vector<TextFile> list_text_files(const std::vector<std::string>& inputs, const std::string& glob,
                                      bool as_text = false, const RecordMembers& members = {},
                                      FileOptions options = FileOptions::all);

// Throws the Error that says that none of the files has a byte.
[[noreturn]] void fail_as_empty(const std::vector<TextFile>& files);

// Calls take(block) for a plain file's bytes from `begin` to `end`, a megabyte at a time. Throws the errors of
// check_no_nul().
void read_blocks(const TextFile&, std::uint64_t begin, std::uint64_t end,
                 const std::function<void(std::string_view)>& take);

// Error: a NUL byte in a block of the file's text, which begins `at` bytes from its begin; but as_text.
void check_no_nul(const TextFile&, std::string_view block, std::uint64_t at);

}  // namespace ring
