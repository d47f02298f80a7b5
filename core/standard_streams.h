#pragma once
// Standard input, output and error of the program: always open, and a result that cannot be written is an error.

#include <iosfwd>
#include <memory>
#include <ostream>
#include <streambuf>
#include <string>

namespace ring {

// To be called before anything else. Opens descriptors 0 to 2 where they are closed, on /dev/null and in the direction
// that makes every use an error: a file that is opened later must not get what is meant for a terminal. SIGPIPE and
// SIGXFSZ are ignored: a reader that went away (EPIPE) and a file that may not grow (EFBIG) are errors of write().
void open_standard_streams();

// While it lives, std::cout throws an Error that names the reason once a write fails.
class StandardOutput {
 public:
  StandardOutput();
  ~StandardOutput();
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;
  void finish();  // Error: something of what was written to std::cout is lost

 private:
  std::unique_ptr<std::streambuf> buffer_;
  std::streambuf* original_;
  std::ostream quiet_;  // flushes before a line goes to std::cerr, and throws nothing
};

// Standard output for what may be lost, such as the progress of a run: fails silently once it cannot be written.
std::ostream& progress_output();
std::string why_lost(const std::ostream& progress);  // empty while all is well

// Reads to the end. Returns the text without byte order marks in front of it. Throws Error if reading fails.
std::string read_standard_input();

}  // namespace ring
