#pragma once
// Parses JSON from files, from requests and from other processes.
//
// Parsing takes linear time in the length of the input, and n log n in the keys of an object. nlohmann's own parser
// takes quadratic time: with a callback it scans a value's siblings, and an ordered object searches all its keys for
// each new key.

#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/check.h"
#include "core/stop_signal.h"

namespace ring {

inline constexpr std::size_t kMaxJsonBytes = std::size_t{1} << 30;
inline constexpr int kMaxJsonDepth = 100;
inline constexpr std::size_t kMaxJsonEntries = std::size_t{1} << 24;
inline constexpr std::size_t kJsonWorkPerCheck = 4096;

enum class DuplicateKeys {
  last_wins,  // a key keeps its first position and its last value, as in Python and JavaScript
  refused     // throws Error
};

struct JsonLimits {
  std::size_t bytes = kMaxJsonBytes;
  int depth = kMaxJsonDepth;              // nesting of arrays and objects, including the outermost
  std::size_t entries = kMaxJsonEntries;  // elements of arrays plus members of objects, at all levels
  DuplicateKeys duplicate_keys = DuplicateKeys::last_wins;
  // Called after every kJsonWorkPerCheck units of work, where a unit is a value, a key, or a comparison of two keys. If
  // it returns true, parsing throws JsonStopped. May be null.
  std::function<bool()> stop = stop_requested;
};

// Parsing was stopped before the end of the input, which may be valid.
struct JsonStopped : Error {
  using Error::Error;
};

// Returns the value that `text` holds. Json is nlohmann::json or nlohmann::ordered_json. Throws Error if `text` is not
// JSON or exceeds a limit; the message says what is wrong but does not name the source of the text.
template <class Json>
Json parse_json(std::string_view text, const JsonLimits& limits = {});

// Like parse_json(), for JSON that this program wrote, such as a checkpoint's manifest. The number of entries is not
// limited, and stop signals are ignored, since a signal may be waiting for that checkpoint to be saved.
template <class Json>
Json parse_own_json(std::string_view text);

// Returns the value as JSON text on one line, or indented by `indent` columns for each level. Bytes of strings that are
// not UTF-8, such as those of a path, become U+FFFD.
template <class Json>
std::string json_text(const Json& value, int indent = -1);

}  // namespace ring
