#include "core/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace ring::log {
namespace {

constexpr const char* kPattern = "%H:%M:%S %^%L%$ ";

struct State {
  std::shared_ptr<spdlog::sinks::stderr_color_sink_mt> console = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  std::shared_ptr<spdlog::logger> logger = std::make_shared<spdlog::logger>("ringmaster", console);
  State() { logger->set_pattern(std::string(kPattern) + "%v"); }
};

State& state() {
  static State s;
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
  if (world > 1) state().logger->set_pattern(std::string(kPattern) + "[rank " + std::to_string(rank) + "] %v");
}

void open_file(const std::string& path) {
  auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
  file->set_pattern("%Y-%m-%d %H:%M:%S.%e %L %v");
  state().logger->sinks().push_back(file);
  state().logger->flush_on(spdlog::level::info);
}

void set_console(bool on) { state().console->set_level(on ? spdlog::level::trace : spdlog::level::warn); }

void write(Level level, const std::string& line) { state().logger->log(convert(level), line); }

}  // namespace ring::log
