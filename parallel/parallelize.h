#pragma once
// Applies a plan to a declared model. Layers declare how their matrices are sharded (Placement, model/params.h); layers
// and ops do not depend on the plan.

#include <memory>

#include "parallel/context/batch.h"
#include "parallel/data_parallel.h"
#include "parallel/plan.h"

namespace ring {

// The parallel parts of a model.
struct Parallelized {
  ContextBatches context;              // this rank's part of every sequence (cp), or of its chunks
  std::unique_ptr<DataParallel> data;  // dp and ZeRO: parameters, gradients and their owners
};

struct ParameterOptions {
  ParamTypes types;
  std::uint64_t seed = 0;
  std::int64_t bucket_bytes = 0;  // size of a gradient bucket
  std::size_t host_room = 0;      // maximum bytes of host memory for the keys of earlier chunks; 0 means none
};

// Keeps this rank's stage of the model (pp) and its slice of the stage (tp). The mesh must outlive the model.
void divide_model(Model&, Mesh&, const ParallelPlan&);

// Divides the model, and allocates and fills its parameters. Collective. All arguments must outlive the result.
Parallelized parallelize(Model&, Mesh&, const ParallelPlan&, const ParameterOptions&, const ExecContext&);

// Returns the ranks that share the data, grouped by node if several nodes have several of these ranks each. Collective.
CompressionRanks compression_ranks(Mesh&);

// The steps of parallelize(), in this order.
ContextBatches parallelize_context(Mesh&, const ParallelPlan&, const ModelConfig&, std::size_t host_room,
                                   const ExecContext&);
std::unique_ptr<DataParallel> parallelize_data(Model&, Mesh&, const ParallelPlan&, const ParameterOptions&,
                                               const ExecContext&);

}  // namespace ring
