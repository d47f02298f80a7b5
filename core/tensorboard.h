#pragma once
// Event files that TensorBoard reads: records of the TFRecord format (length, masked CRC-32C of the length, data,
// masked CRC-32C of the data), each an Event message of tensorboard/compat/proto/event.proto, encoded by hand.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ring {

// Seconds since 1970.
double wall_time_now();

class EventWriter {
 public:
  // Creates events.out.tfevents.TIME.HOST.PROCESS.N in the directory: every process, also a resumed one, writes a file
  // of its own, with a TIME later than those that are there. Error: names the file when that fails.
  explicit EventWriter(const std::string& directory);

  // Errors of writing (a full disk) are thrown when the bytes reach the file.
  void scalar(const std::string& tag, std::int64_t step, double value, double wall_time = wall_time_now());
  void text(const std::string& tag, std::int64_t step, const std::string& markdown, double wall_time = wall_time_now());
  // For the tab HParams: names and values of this run's settings. true, false and numbers are shown as such.
  void settings(const std::vector<std::pair<std::string, std::string>>& values, double wall_time = wall_time_now());
  // Tells TensorBoard to forget what earlier files say from this step on; written when a run resumes.
  void restart(std::int64_t first_step, double wall_time = wall_time_now());
  void flush();  // also happens on the first record after kFlushInterval, and when the writer dies

  const std::string& path() const { return path_; }

  static constexpr std::chrono::seconds kFlushInterval{2};

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };

  void event(std::int64_t step, double wall_time, std::string_view what);
  void record(std::string_view data);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::chrono::steady_clock::time_point flushed_;
};

}  // namespace ring
