#pragma once
// Progress of a long command: a line that is overwritten on a terminal, otherwise a log line every ten seconds. Both go
// to standard error.

#include <functional>
#include <optional>
#include <string>

namespace ring {

class LiveLine {
 public:
  // For tests. By default `terminal` is true if standard error is a terminal, and `now` is a steady clock in seconds.
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
  void show(const std::string& text);  // prints nothing until the line is due
  void clear();                        // removes the line from the terminal
  double seconds() const;              // since construction

 private:
  bool terminal_, drawn_ = false;
  std::function<double()> now_;
  double started_, shown_;
};

}  // namespace ring
