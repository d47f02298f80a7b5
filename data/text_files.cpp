#include "data/text_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <tuple>

#include "core/byte_order_mark.h"
#include "core/check.h"
#include "core/counted.h"
#include "core/files.h"
#include "core/log.h"
#include "data/glob.h"
#include "data/parquet.h"
#include "data/text_kind.h"
#include "data/unpack.h"

namespace ring {
namespace fs = std::filesystem;

namespace {

// Returns true if the command has --glob and --as-text.
bool has_glob(FileOptions options) { return options == FileOptions::all; }

// Walks through the files below a folder; counts hidden files and collects what is skipped.
class Walk {
 public:
  Walk(fs::path folder, const std::string& glob, std::vector<TextFile>& files)
      : top_(std::move(folder)), glob_(glob), files_(files) {
    std::error_code error;
    enter(top_, error);
    if (error) fail("input ", top_.string(), ": ", error.message());
  }
  std::size_t seen() const { return seen_; }  // number of files that are not hidden
  // Returns a message on how many files are hidden and how to read them; "" if no files are hidden.
  std::string hidden() const {
    if (hidden_ == 0) return "";
    return str(counted(static_cast<std::int64_t>(hidden_), "file"), hidden_ == 1 ? " is" : " are",
               " left out because names that begin with a dot are hidden, such as ", first_hidden_.string(),
               "; to read it, name ", hidden_top_.string(), " as an input");
  }
  void warn() const {
    constexpr std::size_t kShown = 5;
    for (std::size_t i = 0; i < std::min(skipped_.size(), kShown); ++i) log::warn("skipped ", skipped_[i]);
    if (skipped_.size() > kShown) log::warn("skipped ", skipped_.size() - kShown, " more in ", top_.string());
  }

 private:
  void enter(const fs::path& folder, std::error_code& error) {
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) look_at(*it);
  }

  void look_at(const fs::directory_entry& entry) {
    const fs::path& path = entry.path();
    std::error_code error;
    if (path.filename().string().starts_with('.')) return count_hidden(entry);
    const fs::file_status status = fs::status(path, error);  // follows links
    if (fs::is_directory(status)) {
      if (entry.is_symlink()) return skip(path, "a link to a folder; to read it, name it as an input");
      enter(path, error);
      if (error) skip(path, error.message());
    } else if (error) {
      skip(path, error.message());
    } else if (fs::is_regular_file(status)) {
      ++seen_;
      const std::string name = path.lexically_relative(top_).generic_string();
      if (glob_matches(glob_, name)) files_.push_back({path.string(), name, 0});
    }
  }

  void count_hidden(const fs::directory_entry& entry) {
    std::error_code error;
    if (entry.is_regular_file(error)) hide(entry.path(), entry.path());
    if (!entry.is_directory(error) || entry.is_symlink(error)) return;
    for (fs::recursive_directory_iterator it(entry.path(), fs::directory_options::skip_permission_denied, error), end;
         !error && it != end; it.increment(error)) {
      std::error_code unknown;
      if (it->is_regular_file(unknown)) hide(it->path(), entry.path());
    }
  }

  void hide(const fs::path& file, const fs::path& top) {
    if (hidden_++ == 0) first_hidden_ = file, hidden_top_ = top;
  }

  void skip(const fs::path& path, const std::string& why) { skipped_.push_back(path.string() + ": " + why); }

  fs::path top_;
  const std::string& glob_;
  std::vector<TextFile>& files_;
  std::vector<std::string> skipped_;
  fs::path first_hidden_, hidden_top_;
  std::size_t seen_ = 0, hidden_ = 0;
};

void add_input(const std::string& input, const std::string& glob, FileOptions options, std::vector<TextFile>& files) {
  std::error_code error;
  const fs::file_status status = fs::status(input, error);
  if (status.type() == fs::file_type::not_found) fail("input ", input, ": no such file or folder");
  if (error) fail("input ", input, ": ", error.message());
  if (!fs::is_directory(status)) {
    if (!fs::is_regular_file(status)) fail("input ", input, ": not a regular file; save the text to a file first");
    files.push_back({input, fs::path(input).filename().string(), 0});
    return;
  }
  const std::size_t before = files.size();
  const Walk walk(input, glob, files);
  walk.warn();
  if (files.size() == before) {
    if (walk.seen() == 0 && !walk.hidden().empty()) fail("input ", input, ": no files to read: ", walk.hidden());
    if (!has_glob(options) || walk.seen() == 0)
      fail("input ", input, ": a folder without files; give one that has files");
    fail("input ", input, ": none of its ", counted(static_cast<std::int64_t>(walk.seen()), "file"),
         " matches --glob '", glob, "'; give a different pattern, such as '*.txt' or '*'");
  }
  if (const std::string hidden = walk.hidden(); !hidden.empty()) log::info("input ", input, ": ", hidden);
}

// Keeps one name per file: the first name with an extension, because the extension indicates the format, else the first
// name. For example, a cache of data sets may have links with extensions to files without.
void drop_other_names(std::vector<TextFile>& files) {
  std::map<FileId, std::size_t> kept;
  std::vector<TextFile> once;
  const TextFile* first_dropped = nullptr;
  const auto has_ending = [](const TextFile& f) { return fs::path(f.name).has_extension(); };
  // The first pass keeps names with an extension, the second the others.
  for (const bool endings : {true, false})
    for (const TextFile& f : files) {
      if (has_ending(f) != endings) continue;
      if (kept.emplace(file_id(f.path), once.size()).second)
        once.push_back(f);
      else if (!first_dropped)
        first_dropped = &f;
    }
  if (first_dropped) {
    const std::string& read = once[kept.at(file_id(first_dropped->path))].path;
    log::info("reads ", counted(static_cast<std::int64_t>(once.size()), "file"), " once each, although ", files.size(),
              " names lead to them: ", first_dropped->path,
              read == first_dropped->path ? " is given twice" : " is " + read);
  }
  files = std::move(once);
}

// Returns the first decompressed bytes of a file, without a byte order mark.
std::string head_of(const std::string& path) {
  std::string head;
  read_unpacked(path, [&](std::string_view block) {
    head += block.substr(0, kKindBytes - head.size());
    return head.size() < kKindBytes;
  });
  return std::string(without_byte_order_marks(head));
}

bool is_packed(const std::string& path) {
  FileHandle file = open_input(path);
  std::string head(4, '\0');
  head.resize(file.read(head.data(), head.size()));
  return compression_of(head) != Compression::none;
}

constexpr const char* kOtherBytes = ", choose other files with --glob, or pass --as-text to read all bytes as they are";

// Returns the advice for a file of this kind; if the command has no options, preferably advice that names none.
std::string_view remedy(const ForeignKind& kind, FileOptions options) {
  return options == FileOptions::none && !kind.without_options.empty() ? kind.without_options : kind.remedy;
}

// Detects the format of each file. If some files are not text, throws Error, which names the first of them.
void detect_formats(std::vector<TextFile>& files, const RecordMembers& members) {
  std::size_t foreign = 0;
  std::string first;
  for (TextFile& f : files) {
    f.packed = is_packed(f.path);
    const std::string head = head_of(f.path), name = unpacked_name(f.path);
    f.table = !f.packed && has_parquet_name(name) && begins_parquet(head);
    if (f.table) require_parquet(f.path);
    f.members = members;
    f.members.named_by_option = f.options != FileOptions::none;
    if (!members.any() && (f.table || has_json_lines_name(name))) f.members.text = "text";
    const auto kind = f.table ? std::nullopt : foreign_kind(head, name, f.members.any());
    if (kind && foreign++ == 0) first = str(f.path, " is not text, but ", kind->name, ": ", remedy(*kind, f.options));
  }
  if (foreign == 0) return;
  if (foreign > 1) first += str(" (", foreign, " of ", files.size(), " files are not text)");
  fail(first, has_glob(files.front().options) ? kOtherBytes : files.size() > 1 ? ", or give different files" : "");
}

}  // namespace

const char* TextFile::format_text() const {
  return table ? "a Parquet table" : members.any() ? "JSON Lines" : packed ? "compressed" : "plain text";
}

std::vector<TextFile> find_files(const std::vector<std::string>& inputs, const std::string& glob, FileOptions options) {
  if (inputs.empty()) fail("no input is given: name files or folders with --input");
  std::vector<TextFile> files;
  for (const std::string& input : inputs) add_input(input, glob, options, files);
  const auto sort = [&] { std::ranges::sort(files, {}, [](const TextFile& f) { return std::tie(f.name, f.path); }); };
  sort();
  drop_other_names(files);
  sort();
  for (TextFile& f : files) f.size = fs::file_size(f.path), f.options = options;
  return files;
}

void inspect_files(std::vector<TextFile>& files, bool as_text, const RecordMembers& members) {
  if (as_text && members.any())
    fail(members.names(),
         " are members of records (--text-field, --prompt-field, --chat-field, --preferences), but --as-text reads "
         "all bytes as they are: give only one of these options");
  for (TextFile& f : files) f.as_text = as_text;
  if (!as_text) detect_formats(files, members);
}

std::vector<TextFile> list_text_files(const std::vector<std::string>& inputs, const std::string& glob, bool as_text,
                                      const RecordMembers& members, FileOptions options) {
  std::vector<TextFile> files = find_files(inputs, glob, options);
  inspect_files(files, as_text, members);
  return files;
}

void fail_as_empty(const std::vector<TextFile>& files) {
  const std::string& first = files.front().path;
  if (files.size() == 1) fail("the input is empty: ", first, " has 0 bytes");
  fail("the input is empty: all of its ", files.size(), " files have 0 bytes, such as ", first);
}

void read_blocks(const TextFile& source, std::uint64_t begin, std::uint64_t end,
                 const std::function<void(std::string_view)>& take) {
  FileHandle file = open_input(source.path);
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
  if (::lseek(file.fd(), static_cast<off_t>(begin), SEEK_SET) < 0) fail("cannot seek in ", source.path);
  std::string buffer(kTextBlock, '\0');
  while (begin < end) {
    const std::size_t n =
        file.read(buffer.data(), static_cast<std::size_t>(std::min<std::uint64_t>(kTextBlock, end - begin)));
    if (n == 0)
      fail(source.path, " was truncated while it was read: expected ", end, " bytes, got ", begin, "; start again");
    const std::string_view block = std::string_view(buffer).substr(0, n);
    check_no_nul(source, block, begin);
    take(block);
    begin += n;
  }
}

void check_no_nul(const TextFile& file, std::string_view block, std::uint64_t at) {
  const std::size_t nul = file.as_text ? std::string_view::npos : block.find('\0');
  if (nul == std::string_view::npos) return;
  fail(file.path, " is not text: its byte ", at + nul,
       " is NUL; convert it to text (from UTF-16 with iconv -f UTF-16 -t UTF-8)",
       has_glob(file.options) ? kOtherBytes : "");
}

}  // namespace ring
