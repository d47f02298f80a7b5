#pragma once
// The reader of JSON: of files, of requests, and of what other processes say.
//
// Parsing takes linear time in the text, or n log n in the keys of an object. nlohmann's own parser does not: with a
// callback it scans a value's siblings, and an ordered object searches all its keys for each new one.

#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
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
  refused
};

struct JsonLimits {
  std::size_t bytes = kMaxJsonBytes;
  int depth = kMaxJsonDepth;              // arrays and objects inside each other, counting the outermost
  std::size_t entries = kMaxJsonEntries;  // elements of arrays and members of objects, over all levels
  DuplicateKeys duplicate_keys = DuplicateKeys::last_wins;
  // Called once for each kJsonWorkPerCheck units of work: a value, a key, or a comparison of two keys. If it returns
  // true, the parse ends with JsonStopped. Null: never called.
  std::function<bool()> stop = stop_requested;
};

// The parse was stopped; the text may be valid.
struct JsonStopped : Error {
  using Error::Error;
};

// Returns the value that `text` holds. Json is nlohmann::json or nlohmann::ordered_json. Throws Error if `text` is not
// JSON or exceeds a limit; the message says what is wrong but not where the text came from.
template <class Json>
Json parse_json(std::string_view text, const JsonLimits& limits = {});

// Returns the value of a text that this program wrote, such as the description of a checkpoint: with any number of
// entries, and also while a stop signal waits for that checkpoint.
template <class Json>
Json parse_own_json(std::string_view text);

}  // namespace ring
