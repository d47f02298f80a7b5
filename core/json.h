#pragma once
// JSON of files and clients, which may be anything: whoever walks it, copies it or prints it recurses.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/check.h"

namespace ring {

inline constexpr int kDeepestJson = 100;  // levels of what people write

// Json: nlohmann::json or nlohmann::ordered_json. Error, which says what is wrong but not where: no JSON, or more
// levels than `deepest`.
template <class Json>
Json parse_json(std::string_view text, int deepest = kDeepestJson) {
  try {
    return Json::parse(text, [&](int depth, typename Json::parse_event_t, Json&) {
      if (depth > deepest) fail("more than ", deepest, " levels deep");
      return true;
    });
  } catch (const typename Json::exception& e) {
    const std::string_view what = e.what();  // "[json.exception.parse_error.101] parse error at ..."
    const std::size_t at = what.find("] ");
    throw Error(std::string(at == std::string_view::npos ? what : what.substr(at + 2)));
  }
}

}  // namespace ring
