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
#include "core/log.h"
#include "core/regular_file.h"

namespace ring {
namespace {

// Identifies the contents of a file, which is replaced and never changed in place; empty if there is none.
std::string identity_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  return str(info.st_ino, ' ', info.st_size, ' ', info.st_mtim.tv_sec, '.', info.st_mtim.tv_nsec);
}

// Holds an exclusive lock on a file until it is destroyed. Throws Error if the file cannot be opened, or if another
// process holds the lock for all of `kTries` tries.
class FileLock {
 public:
  explicit FileLock(const std::string& path) : fd_(open_regular("lock", path, O_RDWR | O_CREAT)) {
    for (int tries = 1; ::flock(fd_, LOCK_EX | LOCK_NB) != 0; ++tries) {
      const int error = errno;
      if (error == EINTR) continue;
      if (error == EWOULDBLOCK && tries < kTries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        continue;
      }
      ::close(fd_);
      fail(path,
           error == EWOULDBLOCK ? ": another process holds this lock" : ": " + std::generic_category().message(error));
    }
  }
  ~FileLock() { ::close(fd_); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  static constexpr int kTries = 1000;  // about 10 seconds; a holder writes one small file
  int fd_;
};

std::string absolute_path_in(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value == '/' ? value : "";
}

}  // namespace

std::string user_choice_store() {
  std::string cache = absolute_path_in("XDG_CACHE_HOME");
  if (const std::string home = absolute_path_in("HOME"); cache.empty() && !home.empty()) cache = home + "/.cache";
  return cache.empty() ? "" : cache + "/ringmaster/choices.yaml";
}

ChoiceStore::ChoiceStore(std::string path) : path_(std::move(path)) { reread(); }

void ChoiceStore::reread() {
  const std::string now = identity_of(path_);
  if (now == seen_) return;
  choices_ = read_choice_file(path_);
  seen_ = now;
}

std::optional<std::string> ChoiceStore::find(const std::string& key) {
  std::lock_guard lock(mutex_);
  if (!choices_.contains(key) && writable_) reread();
  const auto at = choices_.find(key);
  return at == choices_.end() ? std::nullopt : std::optional(at->second);
}

std::string ChoiceStore::add(const std::string& key, const std::string& choice,
                             const std::optional<std::string>& rejected) {
  std::lock_guard lock(mutex_);
  try {
    if (writable_) return add_locked(key, choice, rejected);
  } catch (const Error& e) {
    keep_to_itself(e.what());
  }
  return choices_[key] = choice;
}

std::string ChoiceStore::add_locked(const std::string& key, const std::string& choice,
                                    const std::optional<std::string>& rejected) {
  std::error_code ignored;  // an error shows when the lock is opened
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  const FileLock lock(path_ + ".lock");
  reread();
  const auto known = choices_.find(key);
  if (known != choices_.end() && known->second != rejected) return known->second;
  ChoiceMap more = choices_;
  more[key] = choice;
  if (to_text(more).size() + 100 > kMaxChoiceBytes)
    fail(path_, ": it would be larger than ", kMaxChoiceBytes, " bytes. Delete it to begin a new one");
  write_choice_file(path_, more);
  choices_ = std::move(more);
  seen_ = identity_of(path_);
  return choice;
}

void ChoiceStore::keep_to_itself(const std::string& why) {
  writable_ = false;
  log::warn(
      "choices that are measured from now on are not shared with other runs, whose results may differ in "
      "rounding: ",
      why, ". Name a file that can be written with run.tuning, or set run.tuning to rule");
}

}  // namespace ring
