#include "kernels/tuning.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "core/check.h"
#include "core/text_file.h"

namespace ring {
namespace {

constexpr std::size_t kMostBytes = 16 << 20;  // a choice takes about 100

// One entry per line, `"key": "choice"`: YAML, and simple enough to be read without a parser. Neither holds quotes.
std::optional<std::pair<std::string, std::string>> parse_line(const std::string& line) {
  const std::size_t key = line.find('"'), key_end = line.find('"', key + 1);
  const std::size_t value = line.find('"', key_end + 1), value_end = line.find('"', value + 1);
  if (key != 0 || key_end == std::string::npos || value == std::string::npos || value_end == std::string::npos)
    return {};
  if (line.substr(key_end, value - key_end) != "\": ") return {};
  return std::pair{line.substr(1, key_end - 1), line.substr(value + 1, value_end - value - 1)};
}

}  // namespace

Tuning::Tuning(std::string path, double seconds) : path_(std::move(path)), seconds_(seconds) {
  if (path_.empty() || !std::filesystem::exists(path_)) return;
  std::istringstream in(read_text_file(path_, kMostBytes));
  read(in, path_);
}

void Tuning::read(std::istream& in, const std::string& name) {
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    const auto entry = parse_line(line);
    if (!entry)
      fail(name, ":", number, ": not a line of measured choices, \"key\": \"choice\". Delete the file to measure anew");
    entries_.insert_or_assign(entry->first, entry->second);
  }
}

std::optional<std::string> Tuning::find(const std::string& key) const {
  std::lock_guard lock(mutex_);
  const auto at = entries_.find(key);
  return at == entries_.end() ? std::nullopt : std::optional(at->second);
}

void Tuning::record(const std::string& key, const std::string& choice) {
  RING_CHECK(key.find('"') == std::string::npos && choice.find('"') == std::string::npos, "tuning: quotes in ", key);
  std::lock_guard lock(mutex_);
  std::string& known = entries_[key];
  if (known == choice) return;
  known = choice;
  changed_ = true;
}

std::string Tuning::text() const {
  std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [key, choice] : entries_) text += '"' + key + "\": \"" + choice + "\"\n";
  return text;
}

std::size_t Tuning::adopt(const std::string& text) {
  std::lock_guard lock(mutex_);
  const auto before = entries_;
  std::istringstream in(text);
  read(in, "measured choices of another process");
  if (entries_ == before) return 0;
  changed_ = true;
  ++generation_;
  return static_cast<std::size_t>(
      std::ranges::count_if(before, [&](const auto& entry) { return entries_.at(entry.first) != entry.second; }));
}

void Tuning::save() {
  const std::string all = text();
  std::lock_guard lock(mutex_);
  if (path_.empty() || !std::exchange(changed_, false)) return;
  const std::string temporary = path_ + ".new";
  std::error_code ignored;  // what matters shows when the file is written
  if (const auto folder = std::filesystem::path(path_).parent_path(); !folder.empty())
    std::filesystem::create_directories(folder, ignored);
  std::ofstream out(temporary);
  out << "# Measured choices of this run. Runs that share this file give the same bits.\n";
  out << all;
  out.close();
  if (!out) fail(temporary, ": cannot be written");
  std::filesystem::rename(temporary, path_);
}

}  // namespace ring
