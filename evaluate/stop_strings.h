#pragma once
// Text that ends before given strings, however tokens cut them.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes the next piece of the text and returns what is certain to be shown: what may be the beginning of a stop
  // string is held back, and from the first stop string on nothing comes.
  std::string push(std::string_view text);
  std::string finish();                                               // what was held back
  const std::optional<std::string>& found() const { return found_; }  // the one that ended the text

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::string> found_;
};

}  // namespace ring
