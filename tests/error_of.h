#pragma once
#include <string>

#include "core/check.h"

namespace ring {

// Returns the message of the Error that f throws; "" if it throws none.
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace ring
