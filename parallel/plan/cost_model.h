#pragma once
// How long the work of a step takes: each kernel the larger of its FLOPs and its bytes at what the device sustains, and
// a fixed part; messages by their bytes over the link.

#include <string>
#include <string_view>
#include <vector>

#include "comm/fake.h"
#include "core/fields.h"
#include "kernels/kernel.h"

namespace ring {

struct DeviceRates {
  std::string device = "cpu";
  double peak_flops = 0;                // per second, as the data sheet says: what MFU refers to
  double matmul_flops = 0;              // that products reach
  double attention_flops = 0;           // of kept pairs, forward
  double attention_backward_flops = 0;  // and backward
  double bytes_per_second = 0;          // read and written by kernels
  double call_seconds = 0;              // of the shortest kernel
  double link_bytes_per_second = 0;     // between two devices of a machine, each way
  double host_bytes_per_second = 0;     // between device and host memory, each way
  double memory_bytes = 0;              // of the device; 0: not known
  void fields(Fields&);
};

// h100, h200, and cpu for `threads` of a usual one. Error names those that there are.
DeviceRates shipped_rates(const std::string& device, int threads = 1);

double seconds_of(const DeviceRates&, std::string_view slot, const Cost&);
double seconds_of(const DeviceRates&, const FakeTransfer&);

}  // namespace ring
