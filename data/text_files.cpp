#include "data/text_files.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "core/check.h"
#include "core/counted.h"
#include "core/log.h"
#include "data/files.h"
#include "data/parquet.h"
#include "data/text_kind.h"
#include "data/unpack.h"

namespace ring {
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20;

bool matches(const std::string& glob, const std::string& name) {
  const bool whole = glob.find('/') != std::string::npos;
  const std::string subject = whole ? name : fs::path(name).filename().string();
  return ::fnmatch(glob.c_str(), subject.c_str(), 0) == 0;
}

// The files below a folder, and what had to be passed over.
class Walk {
 public:
  Walk(fs::path folder, const std::string& glob, std::vector<TextFile>& files)
      : top_(std::move(folder)), glob_(glob), files_(files) {
    std::error_code error;
    enter(top_, error);
    if (error) fail("input ", top_.string(), ": ", error.message());
  }
  std::size_t seen() const { return seen_; }  // files
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
    if (path.filename().string().starts_with('.')) return;
    std::error_code error;
    const fs::file_status status = fs::status(path, error);  // of what a link leads to
    if (fs::is_directory(status)) {
      if (entry.is_symlink()) return skip(path, "a link to a folder; name that as an input to read it");
      enter(path, error);
      if (error) skip(path, error.message());
    } else if (error) {
      skip(path, error.message());
    } else if (fs::is_regular_file(status)) {
      ++seen_;
      const std::string name = path.lexically_relative(top_).generic_string();
      if (matches(glob_, name)) files_.push_back({path.string(), name, 0});
    }
  }

  void skip(const fs::path& path, const std::string& why) { skipped_.push_back(path.string() + ": " + why); }

  fs::path top_;
  const std::string& glob_;
  std::vector<TextFile>& files_;
  std::vector<std::string> skipped_;
  std::size_t seen_ = 0;
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
    if (options != FileOptions::all) fail("input ", input, ": a folder without files; give one that has some");
    fail("input ", input, ": none of its ", counted(static_cast<std::int64_t>(walk.seen()), "file"),
         " matches --glob '", glob, "'; give another pattern, such as '*.txt' or '*'");
  }
}

// The first bytes of what a file holds, unpacked.
std::string head_of(const std::string& path) {
  std::string head;
  read_unpacked(path, [&](std::string_view block) {
    head += block.substr(0, kKindBytes - head.size());
    return head.size() < kKindBytes;
  });
  return head;
}

bool is_packed(const std::string& path) {
  FileHandle file = open_input(path);
  std::string head(4, '\0');
  head.resize(file.read(head.data(), head.size()));
  return packing_of(head) != Packing::none;
}

constexpr const char* kOtherBytes = ", choose other files with --glob, or pass --as-text to take all bytes as they are";

std::string_view remedy(const ForeignKind& kind, FileOptions options) {
  return options == FileOptions::none && !kind.without_options.empty() ? kind.without_options : kind.remedy;
}

// Nothing is prepared of files some of which are no text: the first is named.
void look_at_heads(std::vector<TextFile>& files, const RecordMembers& members) {
  std::size_t foreign = 0;
  std::string first;
  for (TextFile& f : files) {
    f.packed = is_packed(f.path);
    const std::string head = head_of(f.path), name = unpacked_name(f.path);
    f.table = !f.packed && named_parquet(name) && begins_parquet(head);
    if (f.table) need_parquet(f.path);
    f.members = members;
    f.members.named_by_option = f.options != FileOptions::none;
    if (!members.any() && (f.table || named_json_lines(name))) f.members.text = "text";
    const auto kind = f.table ? std::nullopt : foreign_kind(head, name, f.members.any());
    if (kind && foreign++ == 0) first = str(f.path, " is no text, it is ", kind->name, ": ", remedy(*kind, f.options));
  }
  if (foreign == 0) return;
  if (foreign > 1) first += str(" (", foreign, " of ", files.size(), " files are no text)");
  const bool options = files.front().options == FileOptions::all;
  fail(first, options ? kOtherBytes : files.size() > 1 ? ", or give other files" : "");
}

}  // namespace

const char* TextFile::form() const {
  return table ? "a Parquet table" : members.any() ? "JSON Lines" : packed ? "compressed" : "plain text";
}

std::vector<TextFile> find_files(const std::vector<std::string>& inputs, const std::string& glob, FileOptions options) {
  if (inputs.empty()) fail("no input is given: name files or folders with --input");
  std::vector<TextFile> files;
  for (const std::string& input : inputs) add_input(input, glob, options, files);
  std::sort(files.begin(), files.end(),
            [](const TextFile& a, const TextFile& b) { return std::tie(a.name, a.path) < std::tie(b.name, b.path); });
  const auto same = [](const TextFile& a, const TextFile& b) {
    return a.name == b.name && (a.path == b.path || fs::equivalent(a.path, b.path));
  };
  files.erase(std::unique(files.begin(), files.end(), same), files.end());
  for (TextFile& f : files) f.size = fs::file_size(f.path), f.options = options;
  return files;
}

void look_inside(std::vector<TextFile>& files, bool as_text, const RecordMembers& members) {
  if (as_text && members.any())
    fail(members.names(),
         " are members of records (--text-field, --prompt-field, --chat-field), and --as-text takes "
         "all bytes as they are: give one of them");
  for (TextFile& f : files) f.as_text = as_text;
  if (!as_text) look_at_heads(files, members);
}

std::vector<TextFile> list_text_files(const std::vector<std::string>& inputs, const std::string& glob, bool as_text,
                                      const RecordMembers& members, FileOptions options) {
  std::vector<TextFile> files = find_files(inputs, glob, options);
  look_inside(files, as_text, members);
  return files;
}

void read_blocks(const TextFile& source, std::uint64_t begin, std::uint64_t end,
                 const std::function<void(std::string_view)>& take) {
  FileHandle file = open_input(source.path);
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
  if (::lseek(file.fd(), static_cast<off_t>(begin), SEEK_SET) < 0) fail("cannot seek in ", source.path);
  std::string buffer(kBlock, '\0');
  while (begin < end) {
    const std::size_t n =
        file.read(buffer.data(), static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, end - begin)));
    if (n == 0)
      fail(source.path, " became shorter while it was read: ", end, " bytes were expected, ", begin,
           " came; start again");
    const std::string_view block = std::string_view(buffer).substr(0, n);
    check_no_nul(source, block, begin);
    take(block);
    begin += n;
  }
}

void check_no_nul(const TextFile& file, std::string_view block, std::uint64_t at) {
  const std::size_t nul = file.as_text ? std::string_view::npos : block.find('\0');
  if (nul == std::string_view::npos) return;
  fail(file.path, " is no text: its byte ", at + nul,
       " is NUL; convert it to text (from UTF-16 with iconv -f UTF-16 -t UTF-8)",
       file.options == FileOptions::all ? kOtherBytes : "");
}

}  // namespace ring
