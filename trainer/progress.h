#pragma once
// Shows the progress of a run on the console: on a terminal one live line with a bar, otherwise a plain line every few
// steps.

#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>

#include "trainer/time_spent.h"

namespace ring {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

struct ProgressState {
  std::int64_t step = 0;           // optimizer steps done
  std::int64_t total_steps = 0;    // 0 if the number of steps is not limited
  double loss = kUnknown;          // mean training loss, in nats
  std::optional<double> val_loss;  // loss of the last evaluation
  double tokens_per_second = kUnknown;
  double step_ms = kUnknown;
  double eta_seconds = kUnknown;
  double lr = kUnknown;
};

struct ProgressOptions {
  std::int64_t log_interval = 10;  // steps between plain lines
  double redraw_seconds = 0.1;     // minimum time between two redraws of the live line
  // Defaults if null or unset: standard output; its column count if it is a terminal; a steady clock in seconds.
  std::ostream* out = nullptr;
  std::optional<bool> terminal;
  std::function<int()> columns;
  std::function<double()> now;
};

// Console output of a run. If the console goes away, the run continues; the log says once that lines are lost.
class Progress {
 public:
  // While this object lives, on a terminal, log lines clear the live line first (log::set_before_line).
  explicit Progress(ProgressOptions = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(const ProgressState&);                    // call after every step
  void print_line(const std::string& text);             // prints a line above the live line
  void finish(const ProgressState&, const TimeSpent&);  // prints the summary
  bool terminal() const { return terminal_; }

 private:
  void clear();
  void draw(const ProgressState&);
  void show(const ProgressState&);
  void warn_if_output_lost();

  ProgressOptions options_;
  std::ostream& out_;
  bool terminal_;
  bool visible_ = false;  // true while the terminal shows a live line
  bool told_ = false;     // true once the log has said that lines are lost
  double drawn_ = -std::numeric_limits<double>::infinity();
  std::optional<std::int64_t> first_step_;
  std::mutex mutex_;  // needed because any thread may write log lines, which clear the live line
};

// Returns one line of at most `columns` characters; if not all items fit, the least important ones are dropped first.
std::string live_line(const ProgressState&, int columns);
std::string plain_line(const ProgressState&);

bool is_terminal();      // true if standard output is a terminal that can redraw lines
int terminal_columns();  // columns of standard output; 80 if it is not a terminal

std::string format_step_time(double ms);  // e.g. "31.2 ms", "312 ms", "3.78 s", "378 s"; "?" if unknown
std::string format_count(double n);       // e.g. "950", "12.3k", "1.23M"; "?" if unknown

}  // namespace ring
