#pragma once
// `train --preflight`: before the first step each rank computes a product, each GPU makes a copy, and each pair of
// nodes (on one node: of ranks) exchanges messages. All of them have known answers, and are compared with the others'.

#include <cstdint>
#include <string>
#include <vector>

#include "comm/mesh/mesh.h"
#include "kernels/kernel.h"

namespace ring {

struct MessageFacts {
  int peer = 0;                 // rank
  double bytes_per_second = 0;  // each way, both ways at once
  bool wrong = false;           // what came is not what was sent
};

// What one rank found.
struct PreflightFacts {
  std::string host, device;  // "a", "NVIDIA H200"
  bool on_gpu = false;
  double flops_per_second = 0, bytes_per_second = 0;  // of the product, and of the copy, read and written; 0: none
  std::int64_t wrong_products = 0, wrong_copies = 0;  // elements
  std::vector<MessageFacts> messages = {};            // in the order of their peers
};

// Less than this share of the median of the others is bad: of GPUs alike; of CPUs, which other programs use, too; of
// pairs of GPUs, and of CPUs.
inline constexpr double kLeastOfGpu = 0.8, kLeastOfCpu = 0.2, kLeastOfGpuPair = 0.5, kLeastOfCpuPair = 0.2;

// A sentence for each rank or pair that computes or moves something wrong, or too slowly. By rank.
std::vector<std::string> preflight_problems(const std::vector<PreflightFacts>&);
std::string preflight_table(const std::vector<PreflightFacts>&);

// Collective; takes about two seconds. Rank 0 logs the table. Error, on every rank: something is bad, or a message does
// not come through within 20 seconds; it is named with what was measured.
void preflight(const ExecContext&, Mesh&);

// Whom a unit of `units` meets in a round, of units - 1 (or units, where that is odd); -1: nobody. In all rounds
// together it meets every other one once.
int partner_in_round(int unit, int units, int round);

// Elements of c [S,S] that are not the product of the preflight's matrices. For tests.
std::int64_t wrong_elements(const Tensor& c, const Stream&);

}  // namespace ring
