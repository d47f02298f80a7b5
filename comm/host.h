#pragma once
// Exchanges small host values between ranks and blocks until they arrive: counts, flags, hashes. All functions are
// collective: every rank calls them in the same order. They throw Error if a message arrives corrupted.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace ring {

// Reduces in place. Sums are in rank order, and exact for integers up to 2^53.
void all_reduce_host(Communicator&, std::span<double> values, Reduce op, Site site = Site::current());
double sum_host(Communicator&, double value, Site site = Site::current());
bool any_host(Communicator&, bool value, Site site = Site::current());

// Returns every rank's value, in rank order.
std::vector<std::string> gather_host(Communicator&, const std::string& value, Site site = Site::current());

// Totals over the ranks that run on this rank's host.
struct OnThisHost {
  int processes = 0;
  std::uint64_t sum = 0;  // sum of the ranks' values
};
OnThisHost sum_on_this_host(Communicator&, std::uint64_t value, Site site = Site::current());

}  // namespace ring
