#include "core/log.h"

#include <fcntl.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "core/message.h"
#include "core/regular_file.h"

namespace ring::log {
namespace {

// The logger writes to a dist_sink, which holds the other sinks and has a lock: sinks are added and removed while other
// threads write.
struct State {
  std::shared_ptr<spdlog::sinks::stderr_color_sink_mt> console =
      std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  std::shared_ptr<spdlog::sinks::dist_sink_mt> sinks = std::make_shared<spdlog::sinks::dist_sink_mt>();
  std::shared_ptr<spdlog::logger> logger = std::make_shared<spdlog::logger>("ringmaster", sinks);
  std::mutex mutex;  // protects file and rank
  std::shared_ptr<spdlog::sinks::sink> file;
  std::string rank;
  // Protects before_line. It is held while before_line runs, so the old function no longer runs after a replacement.
  std::mutex hook_mutex;
  std::function<void()> before_line;
  std::atomic<bool> lost = false;  // true once a line could not be written to this file

  State() {
    sinks->add_sink(console);
    set_patterns();
    logger->flush_on(spdlog::level::info);
    logger->set_error_handler([this](const std::string& what) { lose(what); });
  }
  // Reports once that the log file cannot be written, without the logger, which would call it again.
  void lose(const std::string& what) {
    if (lost.exchange(true)) return;
    const std::string text = what + ". Lines are missing from the log file until it can be written again";
    const spdlog::details::log_msg line("", spdlog::level::warn, spdlog::string_view_t(text));
    console->log(line);
  }
  void set_patterns() {
    console->set_pattern("%H:%M:%S %^%L%$ " + rank + "%v");
    if (file) file->set_pattern("%Y-%m-%d %H:%M:%S.%e %L " + rank + "%v");
  }
};

// Returns the state, which is never destroyed: a thread may log during static destruction.
State& state() {
  static State& s = *new State;
  return s;
}

spdlog::level::level_enum convert(Level level) {
  switch (level) {
    case Level::debug: return spdlog::level::debug;
    case Level::info: return spdlog::level::info;
    case Level::warn: return spdlog::level::warn;
    case Level::error: return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void set_level(Level level) { state().logger->set_level(convert(level)); }

void set_rank(int rank, int world) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.rank = world > 1 ? str("[rank ", rank, "] ") : "";
  s.set_patterns();
}

void open_file(const std::string& path) {
  check_regular("open the log file", path, O_WRONLY | O_CREAT | O_APPEND);
  std::shared_ptr<spdlog::sinks::sink> file;
  try {
    file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
  } catch (const spdlog::spdlog_ex& e) {
    fail("cannot open the log file ", path, ": ", e.what());
  }
  close_file();
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.lost = false;
  s.file = file;
  s.set_patterns();
  s.sinks->add_sink(file);
}

void close_file() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (s.file) s.sinks->remove_sink(s.file);
  s.file = nullptr;
}

void set_console(bool on) { state().console->set_level(on ? spdlog::level::trace : spdlog::level::warn); }

void set_before_line(std::function<void()> hook) {
  std::lock_guard lock(state().hook_mutex);
  state().before_line = std::move(hook);
}

void write(Level level, const std::string& line) {
  State& s = state();
  if (s.logger->should_log(convert(level)) && s.console->should_log(convert(level))) {
    std::lock_guard lock(s.hook_mutex);
    if (s.before_line) s.before_line();
  }
  s.logger->log(convert(level), bounded_message(line));
}

}  // namespace ring::log
