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

// Returns the seconds since 1970.
double wall_time_now();

class EventWriter {
 public:
  // Creates events.out.tfevents.TIME.HOST.PROCESS.N in the directory. Every process, even after a resume, writes its
  // own file, with a later TIME than all existing files. Throws Error with the file's name if that fails.
  explicit EventWriter(const std::string& directory);

  // Write errors (a full disk) are thrown when the bytes reach the file.
  void add_scalar(const std::string& tag, std::int64_t step, double value, double wall_time = wall_time_now());
  void add_text(const std::string& tag, std::int64_t step, const std::string& markdown,
                double wall_time = wall_time_now());
  // Writes names and values of this run's settings for the HParams tab. true, false and numbers keep their types there.
  void add_settings(const std::vector<std::pair<std::string, std::string>>& values, double wall_time = wall_time_now());
  // Makes TensorBoard discard records of earlier files from this step on. Call it when a run resumes.
  void restart(std::int64_t first_step, double wall_time = wall_time_now());
  void flush();  // also called by the first record after kFlushInterval, and when the writer is destroyed

  const std::string& path() const { return path_; }

  static constexpr std::chrono::seconds kFlushInterval{2};

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };

  void write_event(std::int64_t step, double wall_time, std::string_view what);
  void write_record(std::string_view data);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::chrono::steady_clock::time_point flushed_;
};

}  // namespace ring
