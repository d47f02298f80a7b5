#pragma once
// Shows the progress of a long command: on a terminal as a line that is overwritten, else as a log line every ten
// seconds. Both are written to standard error.

#include <functional>
#include <optional>
#include <string>

namespace ring {

class LiveLine {
 public:
  // Options for tests. By default, `terminal` is true if standard error is a terminal, and `now` returns seconds on a
  // steady clock.
  struct Options {
    std::optional<bool> terminal;
    std::function<double()> now;
  };
  LiveLine() : LiveLine(Options{}) {}
  explicit LiveLine(Options);
  ~LiveLine() { clear(); }
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  // Returns true if the next show() will print, so that callers can skip formatting text that is not shown.
  bool is_due() const;
  void show(const std::string& text);  // prints nothing if the line is not due yet
  void clear();                        // removes the line from the terminal
  double seconds() const;              // seconds since construction

 private:
  bool terminal_, drawn_ = false;
  std::function<double()> now_;
  double started_, shown_;
};

}  // namespace ring
