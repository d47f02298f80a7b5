#include "engine/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>
#include <sstream>
#include <thread>

#include "checkpoint/directory.h"
#include "checkpoint/files.h"
#include "core/fields.h"
#include "core/interrupted.h"
#include "core/io_error.h"
#include "core/joined.h"
#include "core/regular_file.h"
#include "data/hub_name.h"
#include "job/liveness.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

constexpr const char* kReplaced = "# replaced with --allow-changes: ";
constexpr const char* kSeal = "# xxh3 of all lines above: ";
constexpr std::uint64_t kMaxConfig = 16 << 20;  // maximum size of config.yaml, in bytes

std::string sealed(const std::string& yaml, const std::vector<std::string>& replaced = {}) {
  std::string text = yaml;
  if (!replaced.empty()) text += kReplaced;
  for (std::size_t i = 0; i < replaced.size(); ++i) text += replaced[i] + (i + 1 < replaced.size() ? " " : "\n");
  return text + kSeal + hash_of(text) + "\n";
}

// Returns true if the last line is the hash of all lines before it.
bool has_its_seal(const std::string& text) {
  const std::size_t seal = text.rfind(kSeal);
  return seal != std::string::npos && text.substr(seal) == kSeal + hash_of(text.substr(0, seal)) + "\n";
}

std::vector<std::string> replaced_in(const std::string& text) {
  const std::size_t line = text.rfind(kReplaced);
  if (line == std::string::npos) return {};
  const std::size_t begin = line + std::strlen(kReplaced);
  std::istringstream words(text.substr(begin, text.find('\n', begin) - begin));
  std::vector<std::string> hashes;
  for (std::string word; words >> word;) hashes.push_back(word);
  return hashes;
}

bool there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

}  // namespace

std::string settings_with_hash(const Config& config) { return sealed(to_yaml(config)); }

bool RunDirectory::has_config() const { return there(config_file()); }

void RunDirectory::check_replaceable() const {
  if (!list_checkpoints(checkpoints()).empty()) return;
  std::error_code error;
  const bool config = fs::is_regular_file(config_file(), error);
  if (config && read_text(config_file(), kMaxConfig).find(kSeal) != std::string::npos) return;
  // A run writes config.yaml before metrics.jsonl.
  if (config || fs::is_regular_file(metrics_file(), error))
    fail(config ? config_file() : metrics_file(),
         ": no run wrote this file, and a run in this directory would replace it. Rename the file, or set ",
         "another run.directory or run.name");
}

bool RunDirectory::exists() const { return has_config() || !list_checkpoints(checkpoints()).empty(); }

std::string RunDirectory::restoring_command(const std::string& checkpoint) const {
  std::string from = checkpoint;
  if (const auto all = list_checkpoints(checkpoints()); from.empty() && !all.empty()) from = all.back().path.string();
  return from.empty() ? "" : str("ringmaster config show ", from, " > ", config_file());
}

RunSettings RunDirectory::settings() const {
  std::error_code error;
  (void)fs::symlink_status(config_file(), error);
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    fail(path_, ": cannot be read: ", error.message());
  if (!has_config())
    fail(path_, ": not a run: it contains no config.yaml. Give the directory that `ringmaster train` printed");
  RunSettings settings;
  try {
    const std::string text = read_text(config_file(), kMaxConfig);
    load_config_text(settings.config, text, config_file());
    settings.untouched = has_its_seal(text);
    if (settings.untouched) settings.replaced = replaced_in(text);
  } catch (const Error& e) {
    const std::string command = restoring_command();
    if (command.empty()) throw;
    fail(e.what(), "\nThe run's checkpoints also hold its settings. To restore the file: ", command);
  }
  return settings;
}

void RunDirectory::create(const Config& config, const Tokenizer& tokenizer, const std::vector<std::string>& replaced,
                          const std::string& chat_template) const {
  std::error_code error;
  fs::create_directories(checkpoints(), error);
  if (error)
    fail("cannot create the run's directory ", checkpoints(), ": ", io_error_text(error.value()),
         ". Fix this, or set run.directory to a different folder");
  save_tokenizer(tokenizer, tokenizer_file());
  if (!chat_template.empty())
    replace_text(chat_template_file(), chat_template);
  else
    fs::remove(chat_template_file(), error);  // removes a file left by an earlier run
  if (error) fail("cannot remove ", chat_template_file(), ": ", io_error_text(error.value()));
  replace_text(config_file(), sealed(to_yaml(config), replaced));
}

namespace {

struct LockFile {
  explicit LockFile(int file) : fd(file) {}
  ~LockFile() {
    if (fd >= 0) ::close(fd);
  }
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;
  int fd;
};

// Takes the lock without waiting. Returns false, with the reason in errno, if it cannot.
bool try_flock(int fd, int kind) {
  return uninterrupted([&] { return ::flock(fd, kind | LOCK_NB); }) == 0;
}

// Locks the file. Returns an errno if it cannot: EWOULDBLOCK if another process holds the lock, ENOLCK if the file
// system has no locks. Tries more than once, since a process that checks whether a run is in use holds the lock for a
// moment.
int lock_soon(int fd) {
  constexpr int kTries = 10;
  constexpr int kNotSupported = 524;  // the kernel's ENOTSUPP, which some network file systems do not translate
  for (int i = 0; i < kTries; ++i) {
    if (try_flock(fd, LOCK_EX)) return 0;
    if (errno == ENOSYS || errno == EOPNOTSUPP || errno == kNotSupported) return ENOLCK;
    if (errno != EWOULDBLOCK) return errno;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return EWOULDBLOCK;
}

// Writes this process's id and host into the lock file that it holds. Errors are ignored, because the text is only used
// in a message.
void note_holder(int fd) {
  const std::string text = str("process ", ::getpid(), " on ", host_name());
  if (::ftruncate(fd, 0) == 0) [[maybe_unused]]
    const ssize_t written = ::pwrite(fd, text.data(), text.size(), 0);
}

// Returns " (process PID on HOST)", or "" if this text is not in the lock file.
std::string holder_in(int fd) {
  std::array<char, 512> text{};
  const ssize_t bytes = ::pread(fd, text.data(), text.size(), 0);
  const std::string_view holder(text.data(), bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  const bool printable = std::ranges::all_of(holder, [](unsigned char c) { return c >= ' ' && c < 0x7f; });
  return printable && holder.starts_with("process ") ? str(" (", holder, ")") : "";
}

}  // namespace

bool RunDirectory::in_use() const {
  std::string why;
  const LockFile file(try_open_regular(path_ + "/lock", O_RDONLY, why));
  return file.fd >= 0 && !try_flock(file.fd, LOCK_SH) && errno == EWOULDBLOCK;
}

std::shared_ptr<void> RunDirectory::lock() const {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error)
    fail("cannot create the run's directory ", path_, ": ", io_error_text(error.value()),
         ". Fix this, or set run.directory to a different folder");
  const std::string file = path_ + "/lock";
  std::string why;
  const int fd = try_open_regular(file, O_CREAT | O_RDWR, why, 0644);
  if (fd < 0) fail("cannot open ", file, ": ", why, ". Fix this, or set run.directory to a different folder");
  if (const int problem = lock_soon(fd)) {
    const std::string holder = problem == EWOULDBLOCK ? holder_in(fd) : "";
    ::close(fd);
    if (problem != EWOULDBLOCK)
      fail("cannot lock ", file, ": ", io_error_text(problem),
           ". Fix this, or set run.directory to a different folder");
    fail(path_, ": another process is training this run", holder,
         ". Wait for it, stop it, or set a different run.name (or run.directory, if it is set)");
  }
  note_holder(fd);
  return std::shared_ptr<int>(new int(fd), [](int* held) {
    ::close(*held);
    delete held;
  });
}

namespace {

// Returns true if the folder is a run. A config.yaml alone is not sufficient: the parent folders of a path may belong
// to other programs.
bool looks_like_a_run(const RunDirectory& run) {
  return (run.has_config() && (there(run.tokenizer_file()) || there(run.checkpoints()))) ||
         !list_checkpoints(run.checkpoints()).empty();
}

}  // namespace

std::optional<RunDirectory> run_containing(const std::string& path) {
  for (fs::path p = fs::path(path).lexically_normal(); !p.empty(); p = p.parent_path()) {
    const RunDirectory run(p.string());
    if (p == fs::path(path).lexically_normal() ? run.exists() : looks_like_a_run(run)) return run;
    if (p == p.parent_path()) break;
  }
  return std::nullopt;
}

namespace {

// Returns the runs in a folder, sorted by name. Skips unreadable folders, since messages use the list only as a hint.
std::vector<std::string> runs_in(const std::string& folder) {
  std::vector<std::string> runs;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) try {
      if (looks_like_a_run(RunDirectory(at->path().string()))) runs.push_back(at->path().string());
    } catch (const Error&) {
    }
  std::ranges::sort(runs);
  return runs;
}

constexpr const char* kHowToListRuns = "To see the runs in a folder: ringmaster runs FOLDER";

// Returns a string that names the first few runs in the folder; empty if there are none.
std::string named_runs(const std::string& folder) {
  constexpr std::size_t kNamed = 8;
  std::vector<std::string> runs = runs_in(folder);
  const std::size_t more = runs.size() - std::min(runs.size(), kNamed);
  runs.resize(runs.size() - more);
  return joined(runs, ", ") + (more ? str(" and ", more, " more") : "");
}

}  // namespace

void check_exists(const std::string& path, const std::string& wanted) {
  std::error_code error;
  if (fs::symlink_status(path, error).type() != fs::file_type::not_found) return;
  const auto run = run_containing(path);
  const std::string runs = run ? "" : named_runs((fs::path(path) / "..").lexically_normal().string());
  fail(path, " does not exist. Give ", wanted, ". ",
       run            ? "The path is inside the run " + run->path()
       : runs.empty() ? kHowToListRuns + download_and_import_advice(path)
                      : "Runs in its folder: " + runs);
}

void check_output_is_no_run_file(const std::string& option, const std::string& output) {
  static const std::set<std::string> kWritten{"config.yaml",   "tokenizer.rmt", "metrics.jsonl",
                                              "failures.json", "memory.json",   "generation_config.json",
                                              "log.txt",       "lock",          "profile.json",
                                              "tuning.yaml",   "checkpoints",   "chat_template.json",
                                              "writers",       "out_of_memory", "imported_tokenizer_config.json",
                                              kModelFile};
  std::error_code error;
  const fs::path file = fs::canonical(output, error);
  if (error || !fs::is_regular_file(file)) return;
  const auto run = run_containing(file.parent_path().string());
  if (!run) return;
  const std::string name = file.lexically_relative(run->path()).begin()->string();
  if (kWritten.contains(name) || name.starts_with("events.out."))
    fail(option, " ", output, " is a file of the run ", run->path(), ", which it would replace. Choose another name");
}

RunDirectory find_run(const std::string& path) {
  if (const auto run = run_containing(path)) return *run;
  check_exists(path);
  if (const std::string runs = named_runs(path); !runs.empty())
    fail(path, ": expected a run, got a folder of runs. Name one of them: ", runs);
  if (there(fs::path(path) / "config.json"))
    fail(path,
         ": expected a run, got a published model (config.json). Import it as a run first: ", import_command(path));
  fail(path, ": not a run or a checkpoint: it contains neither a config.yaml nor a checkpoint. ", kHowToListRuns);
}

}  // namespace ring
