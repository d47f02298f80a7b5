#pragma once
// Lists and reads the text files for a corpus or a vocabulary: plain text and JSON Lines, both possibly compressed, and
// Parquet tables.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/records.h"

namespace ring {

// The options of the command, which messages may suggest.
enum class FileOptions : std::uint8_t {
  all,         // --glob, --as-text and --text-field
  text_field,  // the command only has --text-field
  none
};

struct TextFile {
  std::string path;
  std::string name;  // path relative to the input folder; identifies the file in hashes, the same on every machine
  std::uint64_t size = 0;                  // size on disk
  bool as_text = false;                    // true to read it as text even if it does not look like text
  bool packed = false;                     // true if compressed by gzip or zstd
  bool table = false;                      // true for a Parquet table
  FileOptions options = FileOptions::all;  // options that check_no_nul() may suggest
  RecordMembers members{};  // members of records, for JSON Lines and tables; the file has no records if !members.any()
  bool plain() const { return !packed && !members.any(); }  // true if the file's bytes are the text
  const char* format_text() const;                          // completes "FILE is ...", e.g. "compressed"
};

// Returns the input files, and the files below input folders that match `glob` (see glob_matches()): by name, or by
// path below the folder if the pattern contains '/'. Sorted by name. In folders, names that start with a dot are
// skipped and counted in a message; links to folders and unreadable entries are skipped with a warning. A file with
// several names (links or hard links) is listed once, with a message. Throws Error if a path does not exist or no file
// is found.
std::vector<TextFile> find_files(const std::vector<std::string>& inputs, const std::string& glob,
                                 FileOptions options = FileOptions::all);

// Determines how to read each file: .parquet files are tables; .jsonl and .ndjson files are JSON Lines, and so are all
// other files if `members` is set. `members` names the members of records that are read; if empty, the member "text" is
// read. Throws Error if a file cannot be read, or if its first bytes or its name show that it is not text
// (data/text_kind.h), unless `as_text`.
void inspect_files(std::vector<TextFile>&, bool as_text, const RecordMembers& members);

// Calls find_files(), then inspect_files().
std::vector<TextFile> list_text_files(const std::vector<std::string>& inputs, const std::string& glob,
                                      bool as_text = false, const RecordMembers& members = {},
                                      FileOptions options = FileOptions::all);

// Throws Error, which says that all files are empty.
[[noreturn]] void fail_as_empty(const std::vector<TextFile>& files);

// Calls take(block) for the bytes of a plain file from `begin` to `end`, a megabyte at a time. Throws the errors of
// check_no_nul().
void read_blocks(const TextFile&, std::uint64_t begin, std::uint64_t end,
                 const std::function<void(std::string_view)>& take);

// Throws Error if a block, which starts at byte `at` of the file's text, contains a NUL byte, unless the file is
// as_text.
void check_no_nul(const TextFile&, std::string_view block, std::uint64_t at);

}  // namespace ring
