#pragma once
// Predicts the time of a step's work. A kernel takes max(fixed time, FLOPs / rate, bytes / rate), and attention
// max(fixed time, FLOPs / rate + bytes / rate), with the rates that the device sustains. A message takes a fixed time
// plus bytes / link rate.

#include <string>
#include <string_view>
#include <vector>

#include "comm/fake.h"
#include "core/fields.h"
#include "kernels/kernel.h"

namespace ring {

// FLOP/s in one precision; 0 if unknown.
struct ComputeRates {
  double products = 0;            // FLOP/s of GEMMs
  double attention = 0;           // FLOP/s in the forward, of unmasked query-key pairs, without the time of bytes
  double attention_backward = 0;  // same for the backward
  void fields(Fields&);
};

struct DeviceRates {
  std::string device = "cpu";
  double peak_flops = 0;  // FLOP/s in the data sheet, on which MFU is based
  ComputeRates bf16, tf32, fp32;
  double bytes_per_second = 0;             // bytes that kernels read and write
  double call_seconds = 0;                 // time of the shortest kernel
  double link_bytes_per_second = 0;        // rate between two devices of a machine, in each direction
  double link_seconds = 0;                 // time of the shortest message; 0 means call_seconds
  double collective_bytes_per_second = 0;  // sent by each rank in a collective of all ranks (reduce, gather, scatter)
  double collective_seconds = 0;           // time of the shortest collective
  double node_link_bytes_per_second = 0;   // rate from a node to other nodes, in each direction, shared by its ranks
  double node_link_seconds = 0;            // time of the shortest message between nodes
  double host_bytes_per_second = 0;        // rate between device and host memory, in each direction
  double memory_bytes = 0;                 // device memory; 0 if unknown
  void fields(Fields&);
  ComputeRates& of(Precision);
  // Throws Error if the rates are unknown. The message gives the command that measures them.
  const ComputeRates& of(Precision) const;
};

// Returns the shipped table h100, h200, or cpu (for `threads` threads of a typical CPU). Throws Error, which lists the
// tables, for other names.
DeviceRates shipped_rates(const std::string& device, int threads = 1);

double seconds_of(const DeviceRates&, Precision, std::string_view slot, const Cost&);

// Returns the bytes that a rank sends in an exchange, or in a collective that runs as a ring.
double sent_bytes(const FakeTransfer&);
// Returns the part of sent_bytes() that goes to other nodes: the mean over the ranks that the group has on a node.
double sent_between_nodes(const FakeTransfer&);

// Returns the time of a message that does not wait for another rank; 0 if the rates of all its links are unknown. All
// ranks of a node send at the same time. Messages inside nodes and between nodes run at the same time, so the slower
// ones count.
double seconds_of(const DeviceRates&, const FakeTransfer&);
// Returns the time of the part of a message that stays inside nodes; 0 if the link's rate is unknown.
double seconds_inside_node(const DeviceRates&, const FakeTransfer&);
// Returns the time of the part of a message that goes between nodes; 0 if the group is on one node or the link's rate
// is unknown.
double seconds_between_nodes(const DeviceRates&, const FakeTransfer&);

}  // namespace ring
