#pragma once
// How long the work of a step takes: each kernel the larger of its FLOPs and its bytes at what the device sustains, and
// a fixed part; messages a fixed part and their bytes over the link.

#include <string>
#include <string_view>
#include <vector>

#include "comm/fake.h"
#include "core/fields.h"
#include "kernels/kernel.h"

namespace ring {

// FLOP/s in one precision; 0: not known.
struct ComputeRates {
  double products = 0;
  double attention = 0;           // of kept pairs, forward
  double attention_backward = 0;  // and backward
  void fields(Fields&);
};

struct DeviceRates {
  std::string device = "cpu";
  double peak_flops = 0;  // per second, as the data sheet says: what MFU refers to
  ComputeRates bf16, tf32, fp32;
  double bytes_per_second = 0;             // read and written by kernels
  double call_seconds = 0;                 // of the shortest kernel
  double link_bytes_per_second = 0;        // from one device of a machine to another, each way
  double link_seconds = 0;                 // of the shortest message over it; 0: call_seconds
  double collective_bytes_per_second = 0;  // that a rank passes on while all reduce, gather or scatter
  double collective_seconds = 0;           // of the shortest of these
  double host_bytes_per_second = 0;        // between device and host memory, each way
  double memory_bytes = 0;                 // of the device; 0: not known
  void fields(Fields&);
  ComputeRates& of(Precision);
  // Error: they are not known, with the command that measures them.
  const ComputeRates& of(Precision) const;
};

// h100, h200, and cpu for `threads` of a usual one. Error names those that there are.
DeviceRates shipped_rates(const std::string& device, int threads = 1);

double seconds_of(const DeviceRates&, Precision, std::string_view slot, const Cost&);
// A message's, which waits for nobody. 0: the link is not known.
double seconds_of(const DeviceRates&, const FakeTransfer&);

}  // namespace ring
