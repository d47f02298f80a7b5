#pragma once
// Where the training of a vocabulary gets its text from.

#include <functional>
#include <string_view>

namespace ring {

// Calls take(text) for each part of the training text; take keeps its own copy.
using TextSource = std::function<void(const std::function<void(std::string_view)>& take)>;

}  // namespace ring
