#pragma once
#include <string>

#include "core/check.h"

namespace ring {

// The message of the Error that f throws; empty when it throws none.
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace ring
