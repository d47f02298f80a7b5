#include "checkpoint/failures.h"

#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/files.h"
#include "core/check.h"
#include "core/json.h"
#include "core/log.h"

namespace ring {
namespace {

constexpr std::uint64_t kMaxCountBytes = 4096;
constexpr std::int64_t kMaxFailures = 1'000'000'000;

// Returns the number of failures before this process.
std::int64_t read_count(const std::string& file) {
  const auto json = parse_json<nlohmann::json>(read_text(file, kMaxCountBytes));
  const auto count = json.at("failures").get<std::int64_t>();
  if (count < 0 || count > kMaxFailures) fail("expected 0 to ", kMaxFailures, " failures, got ", count);
  return count + (json.at("running").get<bool>() ? 1 : 0);
}

}  // namespace

Failures::Failures(std::string file, bool reset) : file_(std::move(file)) {
  try {
    if (!reset && std::filesystem::exists(file_)) count_ = read_count(file_);
  } catch (const std::exception& e) {
    log::warn(file_, " cannot be read, so the count of failures restarts at 0: ", e.what());
  }
  write_file(true);
}

void Failures::on_clean_end() { write_file(false); }

void Failures::write_file(bool running) const {
  try {
    replace_text(file_, nlohmann::json{{"failures", count_}, {"running", running}}.dump() + "\n");
  } catch (const std::exception& e) {
    log::warn("failures are not counted: ", e.what());
  }
}

}  // namespace ring
