#pragma once
// A run in progress, read again on request. Reads are spaced so that they use at most kShare of a core, however large
// the run's files are and however many clients ask.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "inspect/report_run.h"

namespace ring {

struct LiveReading {
  ReportRun run;
  std::string markup;        // see report_body()
  std::int64_t version = 0;  // changes whenever the run has been read again
};

class LiveRun {
 public:
  static constexpr double kShare = 0.05;  // share of one core

  // The run does not have to exist yet.
  explicit LiveRun(std::string path) : path_(std::move(path)) {}
  // Returns the newest reading, after reading the run again if that is due. Not thread-safe.
  std::shared_ptr<const LiveReading> read_if_changed();

 private:
  // Size and modification time of a file, to detect changes.
  struct Stamp {
    std::uintmax_t size = 0;
    std::filesystem::file_time_type time{};
    bool operator==(const Stamp&) const = default;
  };
  static Stamp stamp_of(const std::string& file);

  std::string path_;
  std::shared_ptr<const LiveReading> reading_;
  Stamp stamp_;
  double next_ = 0;  // earliest time of the next read, in seconds on the clock of core/clock.h
};

}  // namespace ring
