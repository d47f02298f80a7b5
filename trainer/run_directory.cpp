#include "trainer/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "checkpoint/files.h"
#include "core/fields.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

void replace_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  fs::remove(temporary);
  write_text(temporary, text);
  fs::rename(temporary, path);
  sync_directory(fs::path(path).parent_path());
}

}  // namespace

bool RunDirectory::exists() const { return fs::exists(config_file()); }

Config RunDirectory::config() const {
  if (!exists())
    fail(path_, ": not a run: there is no config.yaml in it. Give the directory that `ringmaster train` printed");
  Config c;
  load_config(c, config_file());
  return c;
}

void RunDirectory::create(const Config& config, const Tokenizer& tokenizer) const {
  std::error_code error;
  fs::create_directories(checkpoints(), error);
  if (error)
    fail(path_, ": cannot create the run's directory: ", error.message(), ". Set run.directory to a writable place");
  save_tokenizer(tokenizer, tokenizer_file());
  replace_file(config_file(), to_yaml(config));
}

std::shared_ptr<void> RunDirectory::lock() const {
  std::error_code error;
  fs::create_directories(path_, error);
  const std::string file = path_ + "/lock";
  const int fd = ::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (fd < 0) fail(file, ": cannot open: ", std::strerror(errno), ". Set run.directory to a writable place");
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    fail(path_, ": another process is training this run. Wait for it, stop it, or set another run.name");
  }
  return {nullptr, [fd](void*) { ::close(fd); }};
}

RunDirectory find_run(const std::string& path) {
  for (fs::path p = fs::path(path).lexically_normal(); !p.empty(); p = p.parent_path()) {
    RunDirectory run(p.string());
    if (run.exists()) return run;
    if (p == p.parent_path()) break;
  }
  fail(path, ": not a run or a checkpoint of one: there is no config.yaml in it");
}

}  // namespace ring
