#include "data/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/check.h"
#include "core/interrupted.h"
#include "core/io_error.h"

namespace ring {

void write_whole(const std::string& path, const std::string& text) {
  const auto write = [&](FileHandle& to) { to.write(text.data(), text.size()); };
  std::error_code ignored;                         // errors of the path are reported when the file is written
  if (std::filesystem::is_other(path, ignored)) {  // e.g. /dev/null or a pipe, which must not be replaced by a file
    const int fd = uninterrupted([&] { return ::open(path.c_str(), O_WRONLY | O_CLOEXEC); });  // allowed open: output
    if (fd < 0) fail("cannot write ", path, ": ", io_error_text(errno));
    FileHandle device(fd, path);
    return write(device);
  }
  write_atomically(path, write);
}

void check_output_is_no_input(const std::string& option, const std::string& output,
                              const std::vector<std::string>& inputs) {
  struct stat written {};
  if (::stat(output.c_str(), &written) != 0 || !S_ISREG(written.st_mode)) return;
  const auto check = [&](const std::string& input) {
    struct stat read {};
    if (::stat(input.c_str(), &read) == 0 && read.st_dev == written.st_dev && read.st_ino == written.st_ino)
      fail(option, " ", output, " is the input ", input, ", which it would replace. Choose another name");
  };
  std::error_code ignored;
  for (const std::string& input : inputs)
    if (std::filesystem::is_directory(input, ignored))
      for (const auto& entry : std::filesystem::directory_iterator(input, ignored)) check(entry.path().string());
    else
      check(input);
}

LineFile::LineFile(const std::string& path) : file_(path, O_WRONLY | O_CREAT | O_APPEND) {}

void LineFile::add(const std::string& line) {
  const std::string whole = line + '\n';
  const std::uint64_t before = file_.size();
  try {
    file_.write(whole.data(), whole.size());
  } catch (const Error&) {
    if (ftruncate(file_.fd(), static_cast<off_t>(before)) != 0) throw;  // rethrows the write's error, not ftruncate's
    throw;
  }
}

}  // namespace ring
