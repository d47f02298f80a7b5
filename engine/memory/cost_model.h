#pragma once
// Predicts the time of a step's work. A kernel takes a fixed time plus the larger of its FLOPs and its bytes, divided
// by the rates that the device sustains; a message takes a fixed time plus its bytes over the link.

#include <string>
#include <string_view>
#include <vector>

#include "comm/fake.h"
#include "core/fields.h"
#include "kernels/kernel.h"

namespace ring {

// FLOP/s in one precision; 0 if unknown.
struct ComputeRates {
  double products = 0;            // GEMMs
  double attention = 0;           // of kept pairs, forward
  double attention_backward = 0;  // of kept pairs, backward
  void fields(Fields&);
};

struct DeviceRates {
  std::string device = "cpu";
  double peak_flops = 0;  // FLOP/s of the data sheet, on which MFU is based
  ComputeRates bf16, tf32, fp32;
  double bytes_per_second = 0;             // read and written by kernels
  double call_seconds = 0;                 // of the shortest kernel
  double link_bytes_per_second = 0;        // between two devices of a machine, each way
  double link_seconds = 0;                 // of the shortest message; 0 means call_seconds
  double collective_bytes_per_second = 0;  // sent by each rank in a collective of all ranks (reduce, gather, scatter)
  double collective_seconds = 0;           // of the shortest collective
  double host_bytes_per_second = 0;        // between device and host memory, each way
  double memory_bytes = 0;                 // of the device; 0 if unknown
  void fields(Fields&);
  ComputeRates& of(Precision);
  // Throws Error, with the command that measures them, if the rates are unknown.
  const ComputeRates& of(Precision) const;
};

// Returns the table h100, h200, or cpu (for `threads` of a typical CPU). Throws Error, which lists the tables, for
// other names.
DeviceRates shipped_rates(const std::string& device, int threads = 1);

double seconds_of(const DeviceRates&, Precision, std::string_view slot, const Cost&);
// Returns the time of a message that waits for no other rank; 0 if the link's rate is unknown.
double seconds_of(const DeviceRates&, const FakeTransfer&);

}  // namespace ring
