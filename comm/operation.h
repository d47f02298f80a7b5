#pragma once
// Description of an operation, for messages and for comparison with other ranks.

#include <algorithm>
#include <array>
#include <cstring>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "job/flight.h"

namespace ring {

using Site = std::source_location;
std::string to_string(const Site&);  // "trainer/train.cpp:120": folder and file name only

struct Operation {
  // collective: every rank runs the same operation. exchange: every rank runs one, with its own messages. pairwise:
  // only ranks that send or receive run one.
  enum class Kind : std::uint8_t { collective, exchange, pairwise };
  struct Message {
    int peer;
    std::string what;  // e.g. "f32 x 10"
  };

  std::string text;  // e.g. "all_reduce sum of f32[1000] on cpu:0"
  Site site;
  Kind kind = Kind::collective;
  std::vector<Message> sends = {}, receives = {};
  RecordedOperation record = {};

  std::string where() const { return str(text, " at ", to_string(site)); }
};

// Copies text into `to`, which ends with a NUL. Cuts text that is too long.
template <std::size_t N>
void copy_text(std::array<char, N>& to, std::string_view text) {
  const std::size_t size = std::min(text.size(), N - 1);
  std::memcpy(to.data(), text.data(), size);
  to[size] = '\0';
}

}  // namespace ring
