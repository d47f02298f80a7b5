#include "engine/devices.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "comm/nccl/nccl.h"
#include "core/checked.h"
#include "core/counted.h"
#include "core/devices.h"
#include "core/log.h"
#include "engine/agreement.h"
#include "job/worker_status.h"
#include "kernels/tuning.h"
#include "parallel/misfit.h"

namespace ring {

std::int64_t vocab_padding(Backend backend) { return backend == Backend::cuda ? 128 : 1; }

Backend backend_of(DeviceChoice device) {
  if (device == DeviceChoice::automatic) return backend_available(Backend::cuda) ? Backend::cuda : Backend::cpu;
  return device == DeviceChoice::cuda ? Backend::cuda : Backend::cpu;
}

Precision precision_of(const Config& c) {
  const PrecisionChoice choice = c.train.precision;
  if (backend_of(c.run.device) == Backend::cpu || choice == PrecisionChoice::fp32) return Precision::fp32;
  return choice == PrecisionChoice::tf32 ? Precision::tf32 : Precision::bf16;
}

Device worker_device(const Config& c, const WorkerEnvironment& env) {
  if (env.world == 1) return {backend_of(c.run.device), 0};
  const int gpus = device_count(Backend::cuda);
  const bool possible = nccl_available() && gpus >= env.local_world;
  if (c.run.device == DeviceChoice::cuda && !possible)
    fail("run.device: cuda with ", env.local_world, " processes on this machine: ",
         nccl_available()
             ? str(gpus == 1 ? "there is " : "there are ", counted(gpus, "GPU"), ", but each process needs its own")
             : std::string("this build has no NCCL (libnccl-dev)"),
         ". Start fewer processes, or set run.device: cpu");
  if (c.run.device == DeviceChoice::cpu || !possible) return {};
  return {Backend::cuda, env.local_rank};
}

// Returns the batch sizes of the run. While train.micro_batch is undecided, the micro-batch is 0, which means the
// replica's share of the batch, or 1 if sequences are split into chunks or slices. While train.sequence_chunk is
// undecided, assumes unsplit sequences.
BatchSize batch_size(const Config& c) {
  BatchSize b{c.train.batch_size, std::max(c.train.micro_batch, std::int64_t{0}), {}};
  if (c.train.sequence_chunk < c.model.context) b.sequence_chunk = std::max(c.train.sequence_chunk, std::int64_t{0});
  if ((b.sequence_chunk || c.parallel.pp_slices > 1) && b.micro_batch == 0) b.micro_batch = 1;
  b.packed = c.data.packing.documents || c.train.context > 0;
  for (const TokenChange& change : c.train.batch_sizes)
    if (const auto sequences = static_cast<std::int64_t>(change.value); sequences != b.sequences)
      b.others.push_back(sequences);
  return b;
}

ParallelPlan plan_of(const Config& c, int world) {
  return make_plan(c.parallel, c.model.resolved(), batch_size(c), world);
}

// Throws errors that the launcher recognizes, since it may be able to start a different number of processes.
static ParallelPlan degrees_of(const Config& c, int world) try {
  return plan_degrees(c.parallel, c.model.resolved(), batch_size(c), world);
} catch (const WorldSizeError&) {
  own_status().misfit = 1;
  throw;
}

// Asks for two more hardware queues of the GPU for each rank with which this rank exchanges copies. Otherwise streams
// would share a queue, and a copy from one rank would also wait for another rank. Must be called before CUDA starts.
// CUDA has 8 queues by default and at most 32. Each queue costs time: with 32, four processes start CUDA in 2.2 s
// instead of 0.4 s, and shut it down 1.3 s later.
static void ask_for_queues(const ParallelConfig& p) {
  constexpr int kDefault = 8, kMost = 32;
  const int open = p.is_automatic() ? kMost : 0;
  const int copying = open + (p.cp > 1 ? p.cp : 0) + (p.tp > 1 ? p.tp : 0) + (p.pp > 1 ? p.pp : 0);
  const int queues = std::min(kDefault + 2 * copying, kMost);
  if (copying > 0) setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(queues).c_str(), 0);
}

std::unique_ptr<Mesh> join_mesh(const Config& c, const Facts& extra_facts) {
  return join_mesh(c, extra_facts, [&](const WorkerEnvironment& env, Device device) {
    if (c.parallel.is_open(env.world)) return MeshLayout{.axes = {{kAxisBeforeChoice, env.world}}, .device = device};
    return mesh_layout(degrees_of(c, env.world), device);
  });
}

std::unique_ptr<Mesh> join_mesh(const Config& c, const Facts& extra_facts, const LayoutOfMesh& layout_of) {
  const Environment environment = current_environment();
  const WorkerEnvironment env = parse_environment(environment);
  const CommOptions options = parse_comm_options(environment);
  if (!env.note.empty()) log::warn(env.note);
  ask_for_queues(c.parallel);
  const Device device = worker_device(c, env);
  Meeting meeting(env, options);
  meeting.check_agreement(settings_topic(), facts_of_start(c, device.backend, options, extra_facts));
  own_status().start.mark_reached(StartStage::met);
  const MeshLayout layout = layout_of(env, device);
  if (device.backend != Backend::cpu) Stream::create(device);  // starts CUDA on the GPU, which takes seconds
  own_status().start.mark_reached(StartStage::opened);
  std::unique_ptr<Mesh> mesh = Mesh::join(std::move(meeting), layout);
  own_status().start.mark_reached(StartStage::meshed);
  return mesh;
}

namespace {

Tuning::Sources tuning_sources(const RunConfig& run) {
  Tuning::Sources sources{.record = run.path() + "/tuning.yaml", .seconds = run.tuning_seconds};
  sources.shipped = run.tuning == "auto";
  sources.measures = run.tuning != "rule";
  if (sources.shipped)
    sources.store = user_choice_store_path();
  else if (sources.measures)
    sources.store = run.tuning;
  return sources;
}

}  // namespace

ExecContext make_exec_context(const Config& c, int device) {
  const Backend backend = backend_of(c.run.device);
  ExecContext ctx{Stream::create({backend, device}, narrow<int>(c.run.threads))};
  ctx.precision = precision_of(c);
  ctx.deterministic = c.run.deterministic;
  if (backend == Backend::cuda) ctx.tuning = std::make_shared<Tuning>(tuning_sources(c.run));
  return ctx;
}

ExecContext make_exec_context_before_run(Config c, const Mesh& mesh) {
  c.run.device = mesh.device().backend == Backend::cuda ? DeviceChoice::cuda : DeviceChoice::cpu;
  ExecContext ctx = make_exec_context(c, mesh.device().index);
  ctx.tuning.reset();
  return ctx;
}

ParamTypes param_types(const Config& c) {
  ParamTypes types{.master = c.optimizer.master, .gradients = c.optimizer.gradients};
  if (c.optimizer.offload >= StateOffload::all) types.on_host = HostParams::master;
  if (c.optimizer.offload == StateOffload::weights) types.on_host = HostParams::weights;
  types.weights = activation_type(precision_of(c));
  return types;
}

}  // namespace ring
