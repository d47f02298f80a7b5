#include "checkpoint/directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>

#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "core/check.h"
#include "core/io_error.h"
#include "core/log.h"
#include "job/inject.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "step-";

// Returns the step if the name is exactly what checkpoint_name() returns for it.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string digits = name.substr(kPrefix.size());
  if (digits.empty() || digits.size() > 18) return std::nullopt;
  if (digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const std::int64_t step = std::stoll(digits);
  return checkpoint_name(step) == name ? std::optional(step) : std::nullopt;
}

std::optional<std::int64_t> step_of(const fs::path& path) { return step_of(path.filename().string()); }

// Returns the entries of a folder; sets `error` if it cannot be read.
std::vector<fs::path> entries_of(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> found;
  fs::directory_iterator at(folder, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) found.push_back(at->path());
  return found;
}

bool nothing_there(const std::error_code& e) {
  return e == std::errc::no_such_file_or_directory || e == std::errc::not_a_directory;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found = entries_of(folder, error);
  if (error && !nothing_there(error))
    fail("cannot read ", folder.string(), ": ", error.message(), ". It may contain checkpoints: make it readable");
  return found;
}

// Also returns true for a folder without read permission: a run that refuses to start is better than one that starts
// from scratch.
bool holds_checkpoint(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return error == std::errc::permission_denied;
  for (const fs::path& entry : entries_of(path, error)) {
    const std::string name = entry.filename().string();
    if (name == kManifestName || name.starts_with("shard-")) return true;
  }
  return error && !nothing_there(error);
}

// Recognizes the names that the writer and remove_checkpoint() use for temporary folders.
bool left_by_an_attempt(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::size_t mark = name.find(".tmp-");
  if (mark == std::string::npos || !step_of(name.substr(0, mark))) return false;
  const std::string attempt = name.substr(mark + 5);
  std::error_code error;
  return (attempt == "removed" || (!attempt.empty() && attempt.find_first_not_of("0123456789") == std::string::npos)) &&
         fs::is_directory(fs::symlink_status(path, error));
}

// Renames the folder to a fixed name first, so that an attempt that is still running can commit either its whole folder
// or nothing.
std::error_code remove_left(const fs::path& path) {
  const fs::path doomed = path.parent_path() / (path.stem().string() + ".tmp-removed");
  std::error_code error;
  if (path != doomed) fs::remove_all(doomed, error);
  if (!error && path != doomed) fs::rename(path, doomed, error);
  if (!error) fs::remove_all(doomed, error);
  return error;
}

// Renames anything that is in the way of a checkpoint.
void set_aside(const fs::path& path) {
  fs::path other;
  std::error_code error;
  for (int i = 1; other.empty() || fs::exists(fs::symlink_status(other, error)); ++i)
    other = path.string() + ".not-a-checkpoint-" + std::to_string(i);
  fs::rename(path, other, error);
  if (error)
    fail("cannot rename ", path.string(), ", which is not a checkpoint but has the name of one: ", error.message());
  log::warn(path.string(), " was not a checkpoint but had the name of one: it was renamed to ", other.string());
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  RING_CHECK(step >= 0, "checkpoint of step ", step);
  char name[32];
  std::snprintf(name, sizeof name, "step-%09lld", static_cast<long long>(step));
  return name;
}

namespace {

// Sets `moved` if an entry was removed during the listing: then another entry may have been missed.
std::vector<CheckpointEntry> list_once(const fs::path& folder, bool& moved) {
  std::vector<CheckpointEntry> found;
  for (const fs::path& path : entries_of(folder)) {
    const auto step = step_of(path);
    if (!step) continue;
    if (holds_checkpoint(path)) found.push_back({*step, path});
    std::error_code error;
    moved |= !fs::exists(fs::symlink_status(path, error));
  }
  std::ranges::sort(found, {}, &CheckpointEntry::step);
  return found;
}

}  // namespace

// While a run is training, a single pass over the folder may miss the old checkpoint, already removed, and the new one,
// not there yet. So the folder is read again if it seems empty or an entry disappeared.
std::vector<CheckpointEntry> list_checkpoints(const fs::path& folder) {
  constexpr int kMaxLists = 10, kMaxEmpty = 3;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(folder, error)) && !error) return {};
  for (int list = 1;; ++list) {
    bool moved = false;
    std::vector<CheckpointEntry> found = list_once(folder, moved);
    if (list >= kMaxLists || (!moved && (!found.empty() || list >= kMaxEmpty))) return found;
  }
}

std::vector<fs::path> list_foreign_files(const fs::path& folder) {
  std::vector<fs::path> found = entries_of(folder);
  std::erase_if(found, [](const fs::path& path) { return !step_of(path) || holds_checkpoint(path); });
  std::ranges::sort(found);
  return found;
}

int remove_stale_entries(const fs::path& folder) {
  int removed = 0;
  for (const fs::path& path : entries_of(folder)) {
    if (!left_by_an_attempt(path)) continue;
    log::info("removing ", path.string(), ", left by an attempt that did not finish");
    const std::error_code error = remove_left(path);
    if (error) log::warn("cannot remove ", path.string(), ": ", error.message());
    removed += !error;
  }
  return removed;
}

std::error_code remove_checkpoint(const fs::path& path) { return remove_left(path); }

void remove_all_checkpoints(const fs::path& folder) {
  for (const CheckpointEntry& entry : list_checkpoints(folder))
    if (const std::error_code error = remove_checkpoint(entry.path))
      fail("cannot remove ", entry.path.string(), ": ", error.message());
  remove_stale_entries(folder);
}

FolderIdentity identity_of(const fs::path& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return std::pair(static_cast<std::uint64_t>(info.st_dev), static_cast<std::uint64_t>(info.st_ino));
}

void commit_directory(const fs::path& temporary, const fs::path& final) {
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(final, ignored)) && !holds_checkpoint(final)) set_aside(final);
  int result = tried(IoCall::rename, [&] { return ::rename(temporary.c_str(), final.c_str()); });
  if (result != 0 && (errno == ENOTEMPTY || errno == EEXIST)) {
    // There is already a checkpoint of this step (a damaged one that was skipped, or the step was repeated): the names
    // are exchanged, so that one of the two always exists.
    result = ::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE);
    if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {
      if (const std::error_code error = remove_checkpoint(final))
        fail("cannot remove ", final.string(), ": ", error.message());
      result = ::rename(temporary.c_str(), final.c_str());
    }
  }
  const int error = result == 0 ? 0 : errno;
  if (error) fail("cannot rename ", temporary.string(), " to ", final.string(), ": ", io_error_text(error));
  sync_directory(final.parent_path());
}

std::vector<CheckpointEntry> list_superseded(const fs::path& folder, std::int64_t step, const Retention& keep) {
  RING_CHECK(keep.keep_last >= 1 && keep.keep_every >= 0, "retention keeps the last ", keep.keep_last, " and every ",
             keep.keep_every);
  std::vector<CheckpointEntry> all = list_checkpoints(folder);
  std::erase_if(all, [&](const CheckpointEntry& e) {
    return e.step > step || (e.step < step && std::ranges::count(keep.damaged, e.step));
  });
  all.resize(all.size() - std::min(all.size(), static_cast<std::size_t>(keep.keep_last)));
  std::erase_if(all, [&](const CheckpointEntry& e) { return keep.keep_every && e.step % keep.keep_every == 0; });
  return all;
}

void apply_retention(const fs::path& folder, std::int64_t step, const Retention& keep) {
  for (const CheckpointEntry& e : list_superseded(folder, step, keep))
    if (const std::error_code error = remove_checkpoint(e.path))
      log::warn("cannot remove the old checkpoint ", e.path.string(), ": ", error.message());
}

std::vector<CheckpointEntry> resolve_checkpoints(const fs::path& given) {
  const fs::path path = given.has_filename() ? given : given.parent_path();
  std::error_code error;
  if (!fs::exists(path, error))
    fail(path.string(), error ? ": " + error.message() : " does not exist",
         ": give a checkpoint or the folder of a run");
  if (const auto step = step_of(path)) return {{*step, path}};
  if (fs::exists(path / kManifestName, error)) return {{read_manifest(path).step, path}};
  for (const fs::path& folder : {path / "checkpoints", path})
    if (auto found = list_checkpoints(folder); !found.empty()) return found;
  fail(path.string(), " is not a checkpoint, and neither it nor its folder 'checkpoints' contains one");
}

}  // namespace ring
