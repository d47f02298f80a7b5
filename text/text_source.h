#pragma once
// Source of training text for a vocabulary.

#include <functional>
#include <string_view>

namespace ring {

// Calls take(text) for each part of the training text. `text` is valid only during the call.
using TextSource = std::function<void(const std::function<void(std::string_view)>& take)>;

}  // namespace ring
