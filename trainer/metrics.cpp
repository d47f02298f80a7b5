#include "trainer/metrics.h"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/io_error.h"
#include "core/json.h"
#include "core/log.h"
#include "core/regular_file.h"
#include "trainer/records.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string file_in(const std::string& directory) { return (fs::path(directory) / "metrics.jsonl").string(); }

std::string name_of(double v) { return std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf"; }

void add(Json& json, const std::string& name, const Metrics::Value& value) {
  const auto* number = std::get_if<double>(&value);
  if (number && !std::isfinite(*number)) {
    json[name] = nullptr;
    json[name + "_text"] = name_of(*number);
  } else {
    std::visit([&](const auto& v) { json[name] = v; }, value);
  }
}

// Returns the step that a line records; nullopt if the line is damaged.
std::optional<std::int64_t> step_of(const std::string& line) {
  const Json json = parse_metrics_line(line);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return std::nullopt;
  return json["step"].get<std::int64_t>();
}

// Removes records that do not belong to the run that starts. Returns true if the run had recorded something before.
bool prepare(const std::string& file, std::optional<std::int64_t> resumed_step) {
  std::error_code error;
  const bool existed = fs::exists(file, error);
  if (!resumed_step) {
    fs::remove(file, error);
    if (error) fail("cannot remove ", file, ": ", io_error_text(error.value()));
    return existed;
  }
  const std::int64_t damaged = truncate_metrics(file, *resumed_step);
  if (damaged > 0) log::warn(file, ": dropped ", damaged, " damaged line", damaged == 1 ? "" : "s");
  return existed;
}

// Returns the first component of the TensorBoard tag for a value in a record of the group "train".
std::string section_of(const std::string& name) {
  if (name == "grad_norm" || name == "lr" || name == "weight_decay") return "optimizer";
  for (const char* sensors : {"memory", "gpu"})
    if (name.starts_with(str(sensors, "_"))) return sensors;
  if (name == "tokens" || name == "batch_size" || name == "context") return "data";
  if (name.starts_with(kSourceShare)) return "data";
  return "speed";
}

bool is_hyperparameter(const std::string& key) {
  for (const char* section : {"model.", "optimizer.", "schedule.", "train."})
    if (key.starts_with(section)) return true;
  return false;
}

}  // namespace

std::string tag_of(const std::string& group, const std::string& name) {
  const bool by_source = name.starts_with(kSourceLoss) && (group == "train" || group == "validation");
  if (by_source) return "loss/" + group + "/" + name.substr(std::strlen(kSourceLoss));
  if (name.starts_with(kRewards)) return kRewards + group + "/" + name.substr(std::strlen(kRewards));
  if (group == "validation") return name == "loss" ? "loss/validation" : "loss/validation_" + name;
  if (group == kPartNorms || group == kUpdateRatios) return "optimizer/" + group + "/" + name;
  const std::initializer_list<const char*> attention = {kEntropies, kMinEntropies, kDensities, kRecalls, kImbalances};
  if (std::ranges::find(attention, group) != attention.end())
    return "attention/" + group.substr(std::strlen("attention_")) + "/" + name;
  if (group != "train") return group + "/" + name;
  if (name == "loss") return "loss/train";
  if (name.ends_with("_loss")) return "loss/train_" + name.substr(0, name.size() - std::strlen("_loss"));
  const std::string section = section_of(name);
  const bool prefixed = name.starts_with(section + "_");
  return section + "/" + (prefixed ? name.substr(section.size() + 1) : name);
}

namespace {

// Copies the lines of steps up to `last_step` to a new file and syncs it. Returns the number of damaged lines.
std::int64_t copy_lines(std::istream& in, const std::string& from, const std::string& to, std::int64_t last_step) {
  constexpr std::size_t kBlock = 1 << 20;
  File out(to, File::Mode::create);
  std::string kept;
  std::uint64_t written = 0;
  const auto write = [&] {
    out.write_at(written, kept.data(), kept.size());
    written += kept.size();
    kept.clear();
  };
  std::int64_t damaged = 0;
  for (std::string line; read_metrics_line(in, line);) {
    const auto step = step_of(line);
    const bool whole = step && !in.eof();  // a line without a newline was not written completely
    if (!whole) ++damaged;
    if (whole && *step <= last_step) kept += line + '\n';
    if (kept.size() >= kBlock) write();
  }
  if (in.bad()) fail("cannot read ", from, ": ", io_error_text(EIO));
  write();
  out.sync();
  return damaged;
}

}  // namespace

std::int64_t truncate_metrics(const std::string& file, std::int64_t last_step) {
  std::error_code missing;
  if (fs::symlink_status(file, missing).type() == fs::file_type::not_found) return 0;
  check_regular("read", file, O_RDONLY);
  std::ifstream in(file, std::ios::binary);  // allowed open: checked
  const std::string temporary = file + ".tmp";
  try {
    const std::int64_t damaged = copy_lines(in, file, temporary, last_step);
    rename_file(temporary, file);
    return damaged;
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

Metrics::Metrics(const std::string& directory, std::optional<std::int64_t> resumed_step)
    : file_(file_in(directory)), events_(directory) {
  const bool continues = prepare(file_, resumed_step);
  check_regular("write", file_, O_WRONLY | O_CREAT);
  lines_.emplace(file_, File::Mode::update);
  bytes_ = lines_->size();
  if (continues) events_.restart(resumed_step ? *resumed_step + 1 : 0);
}

void Metrics::record(const std::string& group, std::int64_t step, const Values& values) {
  const double time = wall_time_now();
  Json json = {{"step", step}, {"group", group}, {"time", time}};
  for (const auto& [name, value] : values) add(json, name, value);
  append(json_text(json));
  try {
    for (const auto& [name, value] : values) {
      const std::string tag = tag_of(group, name);
      if (const auto* number = std::get_if<double>(&value)) events_.add_scalar(tag, step, *number, time);
      if (const auto* count = std::get_if<std::int64_t>(&value)) {
        events_.add_scalar(tag, step, static_cast<double>(*count), time);
      }
    }
    events_.flush();
  } catch (const Error& e) {
    warn_once(e.what());
  }
}

void Metrics::append(const std::string& line) {
  const std::string text = line + '\n';
  try {
    lines_->write_at(bytes_, text.data(), text.size());
    bytes_ += text.size();
  } catch (const Error& e) {
    warn_once(e.what());
    std::error_code ignored;
    fs::resize_file(file_, bytes_, ignored);  // removes the part of the line that was written
  }
}

void Metrics::write_text(const std::string& tag, const std::string& text) {
  std::string block = "    ";
  for (const char c : text) block += c == '\n' ? std::string("\n    ") : std::string(1, c);
  events_.add_text(tag, 0, block);
  events_.flush();
}

void Metrics::write_hparams(const std::vector<std::pair<std::string, std::string>>& leaves) {
  auto chosen = leaves;
  std::erase_if(chosen, [](const auto& leaf) { return !is_hyperparameter(leaf.first); });
  events_.add_settings(chosen);
  events_.flush();
}

void Metrics::warn_once(const std::string& what) {
  if (!warned_) log::warn(what, " (metrics are incomplete, but training continues)");
  warned_ = true;
}

}  // namespace ring
