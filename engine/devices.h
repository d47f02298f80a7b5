#pragma once
// Chooses the device, the processes and the number types of a run.

#include <functional>
#include <memory>
#include <string>

#include "comm/mesh/mesh.h"
#include "engine/config.h"
#include "job/environment.h"
#include "model/params.h"
#include "parallel/plan.h"

namespace ring {

// Returns the device of this process of a launcher. `auto` chooses a GPU if NCCL connects the GPUs and each process on
// the machine can have its own GPU. Throws Error if run.device is cuda and this is not possible.
Device worker_device(const Config&, const WorkerEnvironment&);
BatchSize batch_size(const Config&);
// Returns the layout of a run over `world` processes; see make_plan().
ParallelPlan plan_of(const Config&, int world);
// Axis of all ranks in the mesh of a run whose layout is not chosen yet (engine/layout_choice.h).
inline constexpr const char* kAxisBeforeChoice = "all";
// Connects to the other processes that a launcher started, or returns the mesh of a single process. Throws Error if the
// processes differ in settings, program, device or `extra_facts` (such as command-line options). If the layout is still
// open (ParallelConfig::is_open), all ranks form one axis, and choose_layout() must follow. Collective.
std::unique_ptr<Mesh> join_mesh(const Config&, const Facts& extra_facts = {});
// Same, with the axes that `layout_of` returns instead of the axes of the settings.
using LayoutOfMesh = std::function<MeshLayout(const WorkerEnvironment&, Device)>;
std::unique_ptr<Mesh> join_mesh(const Config&, const Facts& extra_facts, const LayoutOfMesh& layout_of);

// Returns the execution context of a resolved config. Measured kernel choices are read from run.tuning or from the
// run's directory. device: index of the GPU.
ExecContext make_exec_context(const Config& resolved, int device = 0);
// Returns a context on the mesh's device, ignoring run.device. Use it for measurements before the run claims its
// directory: the context neither reads nor records measured kernel choices, which are stored in that directory.
ExecContext make_exec_context_before_run(Config, const Mesh&);
Backend backend_of(DeviceChoice);  // resolves `auto` on this machine
Precision precision_of(const Config& resolved);
// Returns the types in which a resolved config stores parameters.
ParamTypes param_types(const Config& resolved);

// Returns the multiple to which the embedding's rows are padded in memory, which makes GEMMs on GPUs faster.
std::int64_t vocab_padding(Backend);

}  // namespace ring
