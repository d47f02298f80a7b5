#pragma once
// `train --preflight`: before the first step, each rank computes a GEMM, each GPU copies memory, and each pair of nodes
// (on a single node, each pair of ranks) exchanges messages. Results are compared with known answers, and rates with
// those of the other ranks.

#include <cstdint>
#include <string>
#include <vector>

#include "comm/mesh/mesh.h"
#include "kernels/kernel.h"

namespace ring {

struct MessageFacts {
  int peer = 0;                 // the other rank
  double bytes_per_second = 0;  // rate per direction, with both directions in use
  bool wrong = false;           // true if the received data differs from the data that was sent
};

// Findings of one rank.
struct PreflightFacts {
  std::string host, device;  // e.g. "a", "NVIDIA H200"
  bool on_gpu = false;
  // Rates of the GEMM and of the copy (bytes read plus bytes written); 0 if not measured.
  double flops_per_second = 0, bytes_per_second = 0;
  std::int64_t wrong_products = 0, wrong_copies = 0;  // number of wrong elements
  std::vector<MessageFacts> messages = {};            // sorted by peer
};

// A rate below this share of the median of comparable rates is a problem. Comparable are GPUs of the same model, CPUs
// (which other programs also use), pairs of GPUs, and pairs of CPUs.
inline constexpr double kMinOfGpu = 0.8, kMinOfCpu = 0.2, kMinOfGpuPair = 0.5, kMinOfCpuPair = 0.2;

// Returns a sentence for each rank or pair that computes or transfers wrong values or is too slow, sorted by rank.
std::vector<std::string> preflight_problems(const std::vector<PreflightFacts>&);
std::string preflight_table(const std::vector<PreflightFacts>&);

// Collective; takes about two seconds. Rank 0 logs the table. If there is a problem, or a message does not arrive
// within 20 seconds, throws Error with the measurement on every rank.
void run_preflight(const ExecContext&, Mesh&);

// Returns the partner with which `unit` (a host, or a rank if there is only one host) exchanges messages in a round; -1
// if there is none. Each pair of units meets once in the num_units - 1 rounds (in `num_units` rounds if `num_units` is
// odd).
int partner_in_round(int unit, int num_units, int round);

// Returns the number of elements of c [S,S] that differ from the result of the preflight's GEMM. For tests.
std::int64_t count_wrong_elements(const Tensor& c, const Stream&);

}  // namespace ring
