#pragma once
// Small host values between ranks, waited for at once: counts, flags, hashes. Every rank calls, in the same order.
// Error: what another rank sent arrived damaged.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace ring {

void all_reduce_host(Communicator&, std::span<double> values, Reduce op,
                     Site site = Site::current());  // in place; sums in rank order, exact to 2^53
double sum_host(Communicator&, double value, Site site = Site::current());
bool any_host(Communicator&, bool value, Site site = Site::current());

std::vector<std::string> gather_host(Communicator&, const std::string& value,
                                     Site site = Site::current());  // every rank's, in rank order

// The ranks that run on the same host as this one.
struct OnThisHost {
  int processes = 0;
  std::uint64_t sum = 0;  // of their values
};
OnThisHost sum_on_this_host(Communicator&, std::uint64_t value, Site site = Site::current());

}  // namespace ring
