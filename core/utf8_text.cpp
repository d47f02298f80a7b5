#include "core/utf8_text.h"

#include <nlohmann/json.hpp>

namespace ring {

bool is_utf8(std::string_view text) try {
  return !nlohmann::json(text).dump().empty();
} catch (const nlohmann::json::type_error&) {
  return false;
}

}  // namespace ring
