#pragma once
// Applies a plan to a declared model. parallelize.cpp says how each matrix is cut, what is gathered when, and where
// weights, gradients and optimizer states live; layers and ops know nothing of the plan.

#include <memory>

#include "parallel/context/batch.h"
#include "parallel/data_parallel.h"
#include "parallel/plan.h"

namespace ring {

// What keeps a parallel model together beside the model itself.
struct Parallelized {
  ContextBatches context;              // cp: this rank's part of every sequence
  std::unique_ptr<DataParallel> data;  // dp and ZeRO: parameters, gradients and their owners
};

struct ParameterOptions {
  ParamTypes types;
  std::uint64_t seed = 0;
  std::int64_t bucket_bytes = 0;  // of gradients that are reduced together
};

// Collective. Cuts the model into slices of tp, and allocates and fills its parameters. All of it must outlive what is
// returned.
Parallelized parallelize(Model&, Mesh&, const ParallelPlan&, const ParameterOptions&, const ExecContext&);

// Its steps, in this order.
ContextBatches parallelize_context(Mesh&, const ParallelPlan&);
std::unique_ptr<DataParallel> parallelize_data(Model&, Mesh&, const ParallelPlan&, const ParameterOptions&,
                                               const ExecContext&);

}  // namespace ring
