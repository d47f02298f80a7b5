#include "checkpoint/new_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "checkpoint/files.h"
#include "core/check.h"
#include "core/io_error.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

bool taken(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

[[noreturn]] void fail_taken(const fs::path& path) {
  fail(path.string(), " already exists, and nothing is overwritten: give a different --output, or remove it");
}

void rename_to_free_name(const fs::path& from, const fs::path& to) {
  int result = ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {  // the file system does not support RENAME_NOREPLACE
    if (taken(to)) fail_taken(to);
    result = ::rename(from.c_str(), to.c_str());
  }
  if (result != 0 && errno == EEXIST) fail_taken(to);
  const int error = result == 0 ? 0 : errno;
  if (error) fail("cannot rename ", from.string(), " to ", to.string(), ": ", io_error_text(error));
}

}  // namespace

NewFolder::NewFolder(const fs::path& final) : final_(final.lexically_normal()) {
  if (!final_.has_filename()) final_ = final_.parent_path();
  if (final_.empty()) fail("--output is empty: name the folder to create");
  if (taken(final_)) fail_taken(final_);
  const fs::path temporary = final_.string() + ".tmp-" + std::to_string(::getpid());
  std::error_code error;
  fs::remove_all(temporary, error);  // removes a folder left by an earlier process with this PID
  fs::create_directories(temporary, error);
  if (error) fail("cannot create the folder ", temporary.string(), ": ", io_error_text(error.value()));
  temporary_ = temporary;
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void NewFolder::commit() {
  sync_directory(temporary_);
  rename_to_free_name(temporary_, final_);
  temporary_.clear();
  sync_directory(final_.parent_path());
}

}  // namespace ring
