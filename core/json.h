#pragma once
// JSON of files and clients, which may be anything: whoever walks it, copies it or prints it recurses.

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace ring {

inline constexpr int kDeepestJson = 100;  // levels of what people write

// Json: nlohmann::json or nlohmann::ordered_json. Error, which says what is wrong but not where: no JSON, or more
// levels than `deepest`.
template <class Json>
Json parse_json(std::string_view text, int deepest = kDeepestJson);

}  // namespace ring
