#pragma once
// What a rank is asked to do, as it is told to others: in messages, and to the other ranks, which compare it with their
// own.

#include <source_location>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "job/flight.h"

namespace ring {

using Site = std::source_location;
std::string to_string(const Site&);  // "trainer/train.cpp:120": the file's folder and name, no path of the machine

struct Operation {
  // collective: every rank runs the same. exchange: every rank runs one, with messages of its own. pairwise: only those
  // that send or receive run it.
  enum class Kind : std::uint8_t { collective, exchange, pairwise };
  struct Message {
    int peer;
    std::string what;  // "f32 x 10"
  };

  std::string text;  // "all_reduce sum of f32[1000] on cpu:0"
  Site site;
  Kind kind = Kind::collective;
  std::vector<Message> sends = {}, receives = {};
  Flight flight = {};

  std::string where() const { return str(text, " at ", to_string(site)); }
};

}  // namespace ring
