#pragma once
// Ends a text before given stop strings, even if a stop string spans several tokens.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes the next piece of the text and returns the part that can certainly be shown: a possible beginning of a stop
  // string is held back, and nothing from the first stop string on is returned.
  std::string push(std::string_view text);
  std::string finish();                                               // returns the text that was held back
  const std::optional<std::string>& found() const { return found_; }  // stop string that ended the text

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::string> found_;
};

}  // namespace ring
