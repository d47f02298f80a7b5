#pragma once
// Logging: one line per event, to standard error and, once opened, to the run's log file.

#include <functional>
#include <string>

#include "core/check.h"

namespace ring::log {

enum class Level { debug, info, warn, error };

void set_level(Level);
void set_rank(int rank, int world);  // prefixes lines with the rank when world > 1
void open_file(
    const std::string& path);  // appends every line to this file instead of an earlier one; Error: cannot open
void close_file();
void set_console(bool on);                    // off while a live progress line owns the terminal
void set_before_line(std::function<void()>);  // called before a line goes to the console, by its thread; null: nothing
void write(Level, const std::string& line);

template <class... Parts>
void debug(const Parts&... p) {
  write(Level::debug, str(p...));
}
template <class... Parts>
void info(const Parts&... p) {
  write(Level::info, str(p...));
}
template <class... Parts>
void warn(const Parts&... p) {
  write(Level::warn, str(p...));
}
template <class... Parts>
void error(const Parts&... p) {
  write(Level::error, str(p...));
}

}  // namespace ring::log
