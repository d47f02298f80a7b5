#include "checkpoint/directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "core/check.h"
#include "core/log.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "step-";
constexpr std::size_t kDigits = 9;

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string digits = name.substr(kPrefix.size());
  if (digits.size() < kDigits || digits.size() > 18) return std::nullopt;
  if (digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return std::stoll(digits);
}

// Under another name first, so that a crash half-way leaves no damaged checkpoint behind.
void remove_checkpoint(const fs::path& path) {
  const fs::path doomed = path.string() + ".tmp-removed";
  fs::remove_all(doomed);
  fs::rename(path, doomed);
  fs::remove_all(doomed);
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  RING_CHECK(step >= 0, "checkpoint of step ", step);
  char name[32];
  std::snprintf(name, sizeof name, "step-%09lld", static_cast<long long>(step));
  return name;
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& folder) {
  std::vector<CheckpointEntry> found;
  if (!fs::is_directory(folder)) return found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (const auto step = step_of(entry.path().filename().string()); step && entry.is_directory())
      found.push_back({*step, entry.path()});
  std::ranges::sort(found, {}, &CheckpointEntry::step);
  return found;
}

int remove_stale(const fs::path& folder) {
  if (!fs::is_directory(folder)) return 0;
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const std::size_t mark = name.find(".tmp-");
    if (mark != std::string::npos && step_of(name.substr(0, mark))) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale) {
    log::info("removing ", path.string(), ", left by an attempt that did not finish");
    fs::remove_all(path);
  }
  return static_cast<int>(stale.size());
}

void commit_directory(const fs::path& temporary, const fs::path& final) {
  int result = ::rename(temporary.c_str(), final.c_str());
  if (result != 0 && (errno == ENOTEMPTY || errno == EEXIST)) {
    // One of this step is there already (a damaged one that was walked over, or the same step again): swap, so that
    // at no moment neither exists.
    result = ::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE);
    if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {
      remove_checkpoint(final);
      result = ::rename(temporary.c_str(), final.c_str());
    }
  }
  if (result != 0) fail("cannot rename ", temporary.string(), " to ", final.string(), ": ", std::strerror(errno));
  sync_directory(final.parent_path());
  fs::remove_all(temporary);  // the one replaced, if any
}

void apply_retention(const fs::path& folder, std::int64_t step, const Retention& keep) {
  RING_CHECK(keep.keep_last >= 1 && keep.keep_every >= 0, "retention keeps the last ", keep.keep_last, " and every ",
             keep.keep_every);
  std::vector<CheckpointEntry> all = list_checkpoints(folder);
  std::erase_if(all, [&](const CheckpointEntry& e) { return e.step > step; });
  const auto last = static_cast<std::size_t>(keep.keep_last);
  for (std::size_t i = 0; i + last < all.size(); ++i)
    if (keep.keep_every == 0 || all[i].step % keep.keep_every != 0) remove_checkpoint(all[i].path);
}

std::vector<CheckpointEntry> resolve_checkpoints(const fs::path& given) {
  const fs::path path = given.has_filename() ? given : given.parent_path();
  if (!fs::exists(path)) fail(path.string(), " does not exist: give a checkpoint or the folder of a run");
  if (const auto step = step_of(path.filename().string())) return {{*step, path}};
  if (fs::exists(path / kManifestName)) return {{read_manifest(path).step, path}};
  for (const fs::path& folder : {path / "checkpoints", path})
    if (auto found = list_checkpoints(folder); !found.empty()) return found;
  fail(path.string(), " is not a checkpoint, and there is none in it or in its folder 'checkpoints'");
}

}  // namespace ring
