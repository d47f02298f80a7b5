#pragma once
// A run that goes on, read again when somebody looks, but so seldom that at most kShare of a core is spent on that,
// however large its files are and however many look.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "inspect/report_run.h"

namespace ring {

struct LiveReading {
  ReportRun run;
  std::string markup;        // see report_body
  std::int64_t version = 0;  // another one: something was recorded
};

class LiveRun {
 public:
  static constexpr double kShare = 0.05;

  // The run may not be there yet.
  explicit LiveRun(std::string path) : path_(std::move(path)) {}
  std::shared_ptr<const LiveReading> look();

 private:
  // What shows that a file is another one.
  struct Stamp {
    std::uintmax_t size = 0;
    std::filesystem::file_time_type time{};
    bool operator==(const Stamp&) const = default;
  };
  static Stamp stamp_of(const std::string& file);

  std::string path_;
  std::shared_ptr<const LiveReading> reading_;
  Stamp stamp_;
  double next_ = 0;  // seconds of core/clock.h
};

}  // namespace ring
