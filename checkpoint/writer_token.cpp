#include "checkpoint/writer_token.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "checkpoint/directory.h"
#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "core/interrupted.h"
#include "core/io_error.h"
#include "core/json.h"
#include "job/liveness.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTokenBytes = 4096;
constexpr std::int64_t kMaxToken = 999'999'999'999'999'999;
constexpr int kMaxTries = 1000;  // each failed attempt means that another process took a token

fs::path folder_of(const fs::path& run) { return run / "writers"; }

fs::path file_of(const fs::path& run, std::int64_t token) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "%09lld.json", static_cast<long long>(token));
  return folder_of(run) / name.data();
}

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::array<char, 32> text{};
  gmtime_r(&now, &parts);
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text.data();
}

// Returns the token in a name made by file_of(); 0 for other names.
std::int64_t token_in(const fs::path& run, const fs::path& path) {
  const std::string name = path.stem().string();
  std::int64_t token = 0;
  std::from_chars(name.data(), name.data() + name.size(), token);
  return token > 0 && token <= kMaxToken && file_of(run, token).filename() == path.filename() ? token : 0;
}

std::vector<std::int64_t> tokens_of(const fs::path& run) {
  std::vector<std::int64_t> found;
  std::error_code error;
  fs::directory_iterator at(folder_of(run), error);
  for (; !error && at != fs::directory_iterator(); at.increment(error))
    if (const std::int64_t token = token_in(run, at->path())) found.push_back(token);
  if (error && error != std::errc::no_such_file_or_directory)
    fail("cannot read ", folder_of(run).string(), ": ", error.message(),
         ". This folder shows which process may write the run's checkpoints");
  return found;
}

std::int64_t newest_token(const fs::path& run) {
  const std::vector<std::int64_t> all = tokens_of(run);
  return all.empty() ? 0 : *std::ranges::max_element(all);
}

// Keeps token numbers ascending even if the folder of tokens was deleted.
std::int64_t token_of_newest_checkpoint(const fs::path& run) try {
  const std::vector<CheckpointEntry> all = list_checkpoints(run / "checkpoints");
  return all.empty() ? 0 : read_manifest(all.back().path).token;
} catch (const Error&) {
  return 0;
}

TokenHolder read_holder(const fs::path& run, std::int64_t token) {
  TokenHolder holder{.token = token, .host = "an unknown host", .since = "an unknown time"};
  try {
    const auto json = parse_json<nlohmann::json>(read_text(file_of(run, token), kMaxTokenBytes));
    json.at("host").get_to(holder.host);
    json.at("pid").get_to(holder.pid);
    json.at("since").get_to(holder.since);
  } catch (const std::exception&) {  // the fields that were not read stay "unknown"
  }
  return holder;
}

// Creates a token's file. Returns false if another process already has the token's number.
bool create(const fs::path& path) {
  const int fd = uninterrupted([&] { return ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666); });
  if (fd < 0 && errno == EEXIST) return false;
  const int error = fd < 0 ? errno : 0;
  if (error)
    fail("cannot create ", path.string(), ": ", io_error_text(error),
         ". Alternatively, set run.directory to a different folder");
  ::close(fd);
  return true;
}

void remove_older(const fs::path& run, std::int64_t token) {
  std::error_code ignored;
  for (const std::int64_t other : tokens_of(run))
    if (other < token) fs::remove(file_of(run, other), ignored);
}

std::string text_of(const TokenHolder& h) {
  return str("process ", h.pid, " on ", h.host, ", token ", h.token, ", since ", h.since);
}

// Returns the current path of an open directory. If the directory was removed, the path ends with kDeleted.
std::string path_of(const Fd& directory) {
  std::error_code error;
  return fs::read_symlink(str("/proc/self/fd/", directory.get()), error).string();
}

constexpr std::string_view kDeleted = " (deleted)";

// Returns what happened to the directory of `run`, and what to do.
std::string moved_text(const fs::path& run, const Fd& directory) {
  const std::string now = path_of(directory), stops = "; this process stops writing. ";
  std::error_code error;
  const fs::path before = fs::weakly_canonical(run, error);
  if (now.empty() || now.ends_with(kDeleted) || (now == before && !fs::exists(run, error)))
    return str(
        run.string(), " was removed while this process trained in it", stops,
        "Restore the directory from a copy and run the same command again, or run it without a copy to start over");
  if (now == before)
    return str(run.string(), " is hidden by a file system that was mounted over it", stops,
               "Unmount it, and run the same command again");
  return str(run.string(), " no longer leads to the directory of this process's run, which is now ", now, stops,
             "Move it back and run the same command again, or continue there: ringmaster train ", now);
}

}  // namespace

WriterToken::WriterToken(const fs::path& run)
    : run_(run), own_{.host = host_name(), .since = time_text(), .pid = ::getpid()} {
  std::error_code error;
  fs::create_directories(folder_of(run), error);
  directory_ = Fd(uninterrupted([&] { return ::open(run.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!directory_) fail("cannot open ", run.string(), ": ", io_error_text(errno));
  const std::int64_t before = token_of_newest_checkpoint(run);
  for (int i = 0; i < kMaxTries && own_.token == 0; ++i) {
    const std::int64_t newest = std::max(newest_token(run), before), next = newest + 1;
    if (newest >= kMaxToken)
      fail(newest == before ? (run / "checkpoints").string() : file_of(run, newest).string(), ": the writer token ",
           newest, " is the largest, so no process can take the next one. ",
           newest == before ? "Train from this checkpoint in a different run (run.init_from)"
                            : "Remove this file if no process trains the run");
    if (create(file_of(run, next)) && newest_token(run) == next) own_.token = next;
  }
  if (own_.token == 0)
    fail(folder_of(run).string(),
         ": too many processes start in this folder at the same time. Start fewer, or try again");
  replace_text(file_of(run, own_.token),
               nlohmann::json{{"host", own_.host}, {"pid", own_.pid}, {"since", own_.since}}.dump() + "\n");
  remove_older(run, own_.token);
}

// System errors that do not show where the directory is, such as EIO, only make the current save fail.
void WriterToken::check_directory() const {
  struct stat opened {
  }, named{};
  const int opened_error = ::fstat(directory_.get(), &opened) == 0 ? 0 : errno;
  const int named_error = ::stat(run_.c_str(), &named) == 0 ? 0 : errno;
  for (const int error : {opened_error, named_error})
    if (error != 0 && error != ENOENT && error != ENOTDIR && error != ESTALE)
      fail("cannot read the status of ", run_.string(), ": ", io_error_text(error));
  const bool same = opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
  if (opened_error || named_error || !same) throw DirectoryMoved(moved_text(run_, directory_));
}

void WriterToken::check() const {
  check_directory();
  const std::int64_t newest = newest_token(run_);
  if (newest <= own_.token) return;
  throw WriterSuperseded(
      str(run_.string(), ": another process has taken over this run: ", text_of(read_holder(run_, newest)),
          ". This one (", text_of(own_),
          ") commits no more checkpoints. If the other process should not be running, end it and run "
          "this command again"));
}

std::optional<TokenHolder> newest_holder(const fs::path& run) {
  const std::int64_t token = newest_token(run);
  return token ? std::optional(read_holder(run, token)) : std::nullopt;
}

}  // namespace ring
