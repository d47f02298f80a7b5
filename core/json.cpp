#include "core/json.h"

#include <nlohmann/json.hpp>
#include <string>

#include "core/check.h"
#include "core/yaml.h"

namespace ring {

template <class Json>
Json parse_json(std::string_view text, int deepest) {
  try {
    return Json::parse(text, [&](int depth, typename Json::parse_event_t, Json&) {
      if (depth > deepest) fail("more than ", deepest, " levels deep");
      return true;
    });
  } catch (const typename Json::exception& e) {
    const std::string_view what = e.what();  // "[json.exception.parse_error.101] parse error at ..."
    const std::size_t at = what.find("] ");
    throw Error(
        shown(std::string(at == std::string_view::npos ? what : what.substr(at + 2)), 400));  // it quotes the text
  }
}

template nlohmann::json parse_json(std::string_view, int);
template nlohmann::ordered_json parse_json(std::string_view, int);

}  // namespace ring
