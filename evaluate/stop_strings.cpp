#include "evaluate/stop_strings.h"

#include <algorithm>
#include <utility>

namespace ring {

std::string StopStrings::push(std::string_view text) {
  if (found_) return "";
  held_ += text;
  std::size_t end = std::string::npos, keep = 0;
  for (const std::string& stop : stops_)
    if (const std::size_t at = held_.find(stop); at < end) end = at, found_ = stop;
  if (found_) return std::exchange(held_, "").substr(0, end);
  for (const std::string& stop : stops_)
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n)
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) keep = n;
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::finish() { return std::exchange(held_, ""); }

}  // namespace ring
