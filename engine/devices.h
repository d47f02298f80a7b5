#pragma once
// Where a run computes, with whom, and in which types.

#include <memory>
#include <string>

#include "comm/mesh/mesh.h"
#include "engine/config.h"
#include "job/environment.h"
#include "model/params.h"
#include "parallel/plan.h"

namespace ring {

// Where this process of a launcher's computes. `auto`: on a GPU of its own where NCCL connects them and each process of
// the machine can have one. Error: cuda, and that is not so.
Device worker_device(const Config&, const WorkerEnvironment&);
BatchSize batch_size(const Config&);
// How a run is laid out over so many processes; see make_plan().
ParallelPlan plan_of(const Config&, int world);
// Meets the other processes that a launcher started with this one, or is alone. Error: their settings, program, device
// or `more`, such as options of the command line, differ.
std::unique_ptr<Mesh> join_mesh(const Config&, const Facts& more = {});

// Where and how a resolved config computes. Measured choices come from run.tuning, or the run's directory.
// device: number of the GPU.
ExecContext make_exec_context(const Config& resolved, int device = 0);
Backend backend_of(DeviceChoice);  // what `auto` means here
Precision precision_of(const Config& resolved);
// In what types a resolved config keeps parameters.
ParamTypes param_types(const Config& resolved);

// Rows of the embedding in memory are a multiple of this: matrix products of GPUs like it.
std::int64_t vocab_padding(Backend);

}  // namespace ring
