#pragma once
// Progress of a command that computes for long: one line that is drawn over on a terminal, elsewhere a line of the log
// every ten seconds. Both go to standard error.

#include <functional>
#include <optional>
#include <string>

namespace ring {

class LiveLine {
 public:
  // For tests. Unset: whether standard error is a terminal, and a steady clock in seconds.
  struct Options {
    std::optional<bool> terminal;
    std::function<double()> now;
  };
  LiveLine() : LiveLine(Options{}) {}
  explicit LiveLine(Options);
  ~LiveLine() { clear(); }
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  // Returns true if the next show() will print, so that callers need not make a text that nobody sees.
  bool due() const;
  void show(const std::string& text);  // prints nothing until the line is due
  void clear();                        // removes the line from the terminal
  double seconds() const;              // since construction

 private:
  bool terminal_, drawn_ = false;
  std::function<double()> now_;
  double started_, shown_;
};

}  // namespace ring
