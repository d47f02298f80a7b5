#pragma once
// Standard input, output and error of the program. They are always open, and a result that cannot be written is an
// error.

#include <iosfwd>
#include <memory>
#include <ostream>
#include <streambuf>
#include <string>

namespace ring {

// Call it first. Opens /dev/null for each of the descriptors 0 to 2 that is closed: otherwise, a file that is opened
// later could get the descriptor and receive terminal output. Opens input for writing and outputs for reading, so that
// every use is an error. Ignores SIGPIPE and SIGXFSZ, so that write() reports a closed reader (EPIPE) and a file size
// limit (EFBIG) as errors.
void open_standard_streams();

// While it lives, std::cout throws Error with the reason when a write fails.
class StandardOutput {
 public:
  StandardOutput();
  ~StandardOutput();
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;
  void finish();  // throws Error if output to std::cout was lost

 private:
  std::unique_ptr<std::streambuf> buffer_;
  std::streambuf* original_;
  std::ostream quiet_;  // tied to std::cerr, which flushes it before each line; never throws
};

// Standard output for text that may be lost, such as progress: fails silently once it cannot be written.
std::ostream& progress_output();
std::string lost_output_reason(const std::ostream& progress);  // "" if nothing is lost

// Reads to the end. Returns the text without leading byte order marks. Throws Error if reading fails.
std::string read_standard_input();

}  // namespace ring
