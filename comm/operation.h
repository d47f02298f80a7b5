#pragma once
// Description of an operation, for messages and for comparison with other ranks.

#include <source_location>
#include <string>
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

}  // namespace ring
