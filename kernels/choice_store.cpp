#include "kernels/choice_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "core/check.h"
#include "core/interrupted.h"
#include "core/io_error.h"
#include "core/log.h"
#include "core/regular_file.h"

namespace ring {
namespace {

// Returns a string that identifies this version of the file (inode, size, mtime), or "" if the file does not exist. The
// string changes whenever the contents do, because the file is only ever replaced, never modified in place.
std::string file_identity(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  return str(info.st_ino, ' ', info.st_size, ' ', info.st_mtim.tv_sec, '.', info.st_mtim.tv_nsec);
}

// Holds an exclusive lock on a file. The constructor throws Error if the file cannot be opened, or if another process
// still holds the lock after kMaxTries tries.
class FileLock {
 public:
  explicit FileLock(const std::string& path) : fd_(open_regular("lock", path, O_RDWR | O_CREAT)) {
    for (int tries = 1; uninterrupted([&] { return ::flock(fd_, LOCK_EX | LOCK_NB); }) != 0; ++tries) {
      const int error = errno;
      if (error == EWOULDBLOCK && tries < kMaxTries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        continue;
      }
      ::close(fd_);
      fail("cannot lock ", path, ": ",
           error == EWOULDBLOCK ? "another process has held the lock for too long" : io_error_text(error));
    }
  }
  ~FileLock() { ::close(fd_); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  static constexpr int kMaxTries = 1000;  // about 10 seconds; holders of the lock write one small file
  int fd_;
};

std::string absolute_path_from(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value == '/' ? value : "";
}

}  // namespace

std::string user_choice_store_path() {
  std::string cache = absolute_path_from("XDG_CACHE_HOME");
  if (const std::string home = absolute_path_from("HOME"); cache.empty() && !home.empty()) cache = home + "/.cache";
  return cache.empty() ? "" : cache + "/ringmaster/choices.yaml";
}

ChoiceStore::ChoiceStore(std::string path) : path_(std::move(path)) { reload_if_changed(); }

void ChoiceStore::reload_if_changed() {
  const std::string now = file_identity(path_);
  if (now == loaded_) return;
  choices_ = read_choice_file(path_);
  loaded_ = now;
}

std::optional<std::string> ChoiceStore::find(const std::string& key) {
  std::lock_guard lock(mutex_);
  if (!choices_.contains(key) && writable_) reload_if_changed();
  const auto at = choices_.find(key);
  return at == choices_.end() ? std::nullopt : std::optional(at->second);
}

std::string ChoiceStore::add(const std::string& key, const std::string& choice,
                             const std::optional<std::string>& rejected) {
  std::lock_guard lock(mutex_);
  try {
    if (writable_) return add_locked(key, choice, rejected);
  } catch (const Error& e) {
    stop_sharing(e.what());
  }
  return choices_[key] = choice;
}

std::string ChoiceStore::add_locked(const std::string& key, const std::string& choice,
                                    const std::optional<std::string>& rejected) {
  std::error_code ignored;  // if this fails, opening the lock file reports the error
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  const FileLock lock(path_ + ".lock");
  reload_if_changed();
  const auto known = choices_.find(key);
  if (known != choices_.end() && known->second != rejected) return known->second;
  ChoiceMap more = choices_;
  more[key] = choice;
  if (to_text(more).size() + 100 > kMaxChoiceFileBytes)
    fail(path_, ": with one more choice the file would exceed ", kMaxChoiceFileBytes,
         " bytes. Delete it to start a new one");
  write_choice_file(path_, more);
  choices_ = std::move(more);
  loaded_ = file_identity(path_);
  return choice;
}

void ChoiceStore::stop_sharing(const std::string& why) {
  writable_ = false;
  log::warn(
      "choices measured from now on are not shared with other runs, so results of other runs may differ in rounding: ",
      why, ". Set run.tuning to a writable file, or to rule");
}

}  // namespace ring
