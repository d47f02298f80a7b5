#include "kernels/tuning.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "kernels/shipped_choices.h"

namespace ring {

Tuning::Tuning(Sources sources) : sources_(std::move(sources)) {
  if (!sources_.record.empty()) recorded_ = read_choice_file(sources_.record);
  if (sources_.measures && !sources_.store.empty()) store_ = std::make_unique<ChoiceStore>(sources_.store);
}

bool Tuning::has_recorded(const std::string& key) const {
  std::lock_guard lock(mutex_);
  return recorded_.contains(key);
}

std::optional<std::string> Tuning::find(const std::string& key) {
  std::lock_guard lock(mutex_);
  if (const auto at = recorded_.find(key); at != recorded_.end()) return at->second;
  if (!sources_.measures) return std::nullopt;
  std::optional<std::string> choice;
  if (sources_.shipped)
    if (const auto at = shipped_choices().find(key); at != shipped_choices().end()) choice = at->second;
  if (!choice && store_) choice = store_->find(key);
  if (choice) recorded_[key] = *choice, changed_ = true;
  return choice;
}

std::string Tuning::record(const std::string& key, const std::string& choice,
                           const std::optional<std::string>& rejected) {
  RING_CHECK(key.find('"') == std::string::npos && choice.find('"') == std::string::npos,
             "tuning: quotes in the key or the choice of ", key);
  std::lock_guard lock(mutex_);
  std::string valid = store_ ? store_->add(key, choice, rejected) : choice;
  std::string& known = recorded_[key];
  if (known != valid) known = valid, changed_ = true;
  return valid;
}

std::string Tuning::text() const {
  std::lock_guard lock(mutex_);
  return to_text(recorded_);
}

std::size_t Tuning::merge_record(const std::string& text) {
  std::lock_guard lock(mutex_);
  const ChoiceMap before = recorded_;
  parse_choices(text, "choices of another process", recorded_);
  if (recorded_ != before) changed_ = true;
  const auto replaced =
      std::ranges::count_if(before, [&](const auto& entry) { return recorded_.at(entry.first) != entry.second; });
  if (replaced > 0) ++generation_;
  return static_cast<std::size_t>(replaced);
}

bool Tuning::is_changed() const {
  std::lock_guard lock(mutex_);
  return changed_ && !sources_.record.empty();
}

void Tuning::save_if_changed() {
  std::lock_guard lock(mutex_);
  if (sources_.record.empty() || !changed_) return;
  write_choice_file(sources_.record, recorded_);
  changed_ = false;
}

}  // namespace ring
