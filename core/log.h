#pragma once
// Logging: one line per event, to standard error and to the run's log file once it is open.

#include <functional>
#include <string>

#include "core/check.h"

namespace ring::log {

enum class Level { debug, info, warn, error };

void set_level(Level);
void set_rank(int rank, int world);  // prefixes lines with the rank when world > 1
// Appends every line to this file from now on, instead of to an earlier one. Throws Error if it cannot be opened.
void open_file(const std::string& path);
void close_file();
void set_console(bool on);  // false: only warnings and errors, while a live progress line is shown
// Sets a function that each thread calls before it writes a line to the console; may be null.
void set_before_line(std::function<void()>);
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
