#include "engine/memory_check.h"

#include <algorithm>
#include <limits>

#include "comm/host.h"
#include "core/counted.h"
#include "core/device_memory.h"
#include "core/log.h"
#include "core/storage.h"
#include "engine/devices.h"
#include "model/architectures.h"
#include "optim/groups.h"
#include "optim/optimizer.h"
#include "optim/outer_optimizer.h"
#include "optim/weight_average.h"
#include "parallel/compression.h"
#include "parallel/parallelize.h"

namespace ring {
namespace {

std::string kinds_text(const StateMemory& m) {
  std::string text;
  const auto add = [&](const char* kind, std::uint64_t bytes) {
    if (bytes) text += str(text.empty() ? "" : ", ", kind, " ", bytes_text(bytes));
  };
  add("weights", m.weights);
  add("master copies", m.master);
  add("exact values of frozen FP8 weights", m.exact);
  add("gradients", m.gradients);
  add("optimizer states", m.optimizer_states);
  add("residuals of compressed gradients", m.residuals);
  add("outer optimizer of parallel.local_steps", m.outer);
  add("average of the weights", m.average);
  add("copies for train.diagnostics_interval", m.watched);
  add("staging for states on the host", m.staging);
  add("buffers of parallel.zero", m.buffers());
  add("copies for checkpoints", m.snapshot);
  return text;
}

Device device_of(const Config& resolved, const Mesh& mesh) {
  return {backend_of(resolved.run.device), mesh.device().index};
}

std::vector<MemoryBound> bounds_of(Device device) {
  if (device.backend == Backend::cpu) return memory_bounds();
  const auto memory = device_memory(device);
  if (!memory) return {};
  return {{str("memory of ", device), memory->total, memory->free, 0, true}};
}

void add_average(StateMemory& m) {
  m.average = average_bytes(m.owned.size);
  m.snapshot += static_cast<std::uint64_t>(m.owned.size) * size_of(DType::f32);
}

// Residuals have two copies: those after the last accepted step, and those of the current step.
void add_residuals(StateMemory& m, std::int64_t trained) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(trained) * size_of(DType::f32);
  m.residuals = 2 * bytes;
  m.snapshot += bytes;
}

// Adds the outer optimizer, whose states are also in the copy that checkpoints are written from.
void add_outer(StateMemory& m, const OuterOptimizer::HostMemory& outer) {
  m.outer = outer.states + outer.buffers;
  m.snapshot += outer.states;
}

StateMemory memory_of(const Config& c, Mesh& mesh, std::int64_t zero) {
  const std::unique_ptr<Model> model = make_model(c.model, vocab_padding(backend_of(c.run.device)));
  bind_groups(c.optimizer, model->parameters());
  bind_linears(*model, linears_of(c.train), mesh.degree("tp"));
  divide_model(*model, mesh, plan_of(c, mesh.world()));
  const Communicator& data = mesh.group(kDataAxes);
  StateMemory m = state_memory(*model, static_cast<int>(zero), data.size(), data.rank(), param_types(c),
                               [&](const OwnedShard& owned) { return state_bytes(c.optimizer, owned); });
  m.staging = staging_bytes(c.optimizer, m.owned, param_types(c));
  if (c.train.ema > 0) add_average(m);
  const std::optional<GradientCoding> coding = coding_of(c.parallel);
  if (coding && coding->code != GradientCode::f32 && data.size() > 1)
    add_residuals(m, model->parameters().trained_size());
  if (c.parallel.local_steps > 0)
    add_outer(m, OuterOptimizer::host_memory(c.parallel, *model, m.owned, data, zero > 0 && data.size() > 1));
  if (c.train.diagnostics_interval) m.watched = static_cast<std::uint64_t>(m.owned.size) * size_of(c.optimizer.master);
  m.owned = {};  // refers to a model that no longer exists
  return m;
}

// Adds up the memory needs of processes that share a host's memory. Each GPU has its own memory.
MemoryNeed gather_need(const StateMemory& own, Device device, Mesh& mesh) {
  if (device.backend != Backend::cpu) return {own, own.total(), 1};
  const OnThisHost here = sum_on_this_host(mesh.host(), own.total());
  return {own, here.sum, here.processes};
}

// Returns the host memory that a run on a GPU needs: the checkpoint copy, the outer optimizer, the exact values of
// encoded weights, and the states and weights that are offloaded.
StateMemory beside_device(const StateMemory& own, StateOffload offload, Device device) {
  StateMemory host;
  if (device.backend == Backend::cpu) return host;
  host.snapshot = own.snapshot;
  host.outer = own.outer;
  host.watched = own.watched;
  host.exact = own.exact;
  if (offload != StateOffload::none) host.optimizer_states = own.optimizer_states;
  if (offload >= StateOffload::all) host.master = own.master;
  if (offload == StateOffload::weights) host.weights = own.weights;
  return host;
}

StateMemory on_device(StateMemory own, StateOffload offload, Device device) {
  const StateMemory host = beside_device(own, offload, device);
  own.snapshot -= host.snapshot;
  own.outer -= host.outer;
  own.watched -= host.watched;
  own.exact -= host.exact;
  own.optimizer_states -= host.optimizer_states;
  own.master -= host.master;
  own.weights -= host.weights;
  return own;
}

// Returns advice that names the first ZeRO stage with which the run fits.
std::string zero_advice(const Config& c, Mesh& mesh, int processes, const std::vector<MemoryBound>& bounds) {
  if (mesh.group(kDataAxes).size() == 1) return "";
  for (std::int64_t zero = c.parallel.zero + 1; zero <= 3; ++zero) {
    StateMemory own = on_device(memory_of(c, mesh, zero), c.optimizer.offload, device_of(c, mesh));
    own.snapshot = 0;  // a run can do without the checkpoint copy
    const std::uint64_t here = own.total() * static_cast<std::uint64_t>(processes);
    if (shortage_message({own, here, processes}, bounds).empty())
      return str("set parallel.zero: ", zero, " (which needs ", bytes_text(here), "), ");
  }
  return "";
}

std::string advice(const Config& c, Mesh& mesh, int processes, const std::vector<MemoryBound>& bounds) {
  const bool gpu = c.run.device == DeviceChoice::cuda;
  std::string text = zero_advice(c, mesh, processes, bounds);
  if (gpu && c.train.precision == PrecisionChoice::bf16 && c.optimizer.moments == MomentType::f32)
    text += "keep states in bf16 (optimizer.master, .moments, .gradients), ";
  if (gpu && c.optimizer.offload == StateOffload::none)
    text += "keep states in host memory (optimizer.offload: states, all or weights), ";
  if (text.empty())
    text = str("share the model among more ", gpu ? "GPUs" : "machines",
               " (ringmaster launch with parallel.zero or parallel.tp), ");
  return str("To make it fit, ", text, "or use fewer model.layers (", c.model.layers, ") or a smaller model.width (",
             c.model.width, ")");
}

}  // namespace

namespace {

// Returns the bytes by kind and the limit that they exceed; empty if everything fits.
std::string facts_of_shortage(const MemoryNeed& need, const std::vector<MemoryBound>& bounds) {
  const MemoryBound* worst = nullptr;
  std::uint64_t missing = 0;
  for (const MemoryBound& b : bounds) {
    const std::uint64_t wanted = b.of_process ? need.own.total() : need.here;
    if (wanted <= b.limit() || wanted - b.limit() <= missing) continue;
    worst = &b;
    missing = wanted - b.limit();
  }
  if (!worst) return "";
  const bool together = !worst->of_process && need.processes > 1;
  return str(kinds_text(need.own), ", in total ", bytes_text(need.own.total()),
             together ? str(" in this process and ", bytes_text(need.here), " in the ",
                            counted(need.processes, "process"), " of this machine")
                      : "",
             "; available: ", bytes_text(worst->available), " of ", bytes_text(worst->total),
             worst->swap ? str(" and ", bytes_text(worst->swap), " of swap") : "", " (", worst->source,
             "). Activations need more memory on top");
}

constexpr const char* kCannotFit = "the model cannot fit into memory: ";

}  // namespace

std::string shortage_message(const MemoryNeed& need, const std::vector<MemoryBound>& bounds) {
  const std::string facts = facts_of_shortage(need, bounds);
  return facts.empty() ? "" : kCannotFit + facts;
}

namespace {

// Returns the memory of the state with all copies, except copies that the launcher already holds.
StateMemory with_copies(StateMemory m, const Saving& saving, const MemoryTier* tier) {
  m.snapshot *= static_cast<std::uint64_t>(saving.copies());
  if (saving.keeps && tier) m.snapshot -= std::min(m.snapshot, tier->bytes());
  return m;
}

// Returns the message of the first rank that has too little memory; empty if all ranks have enough.
std::string problem_of(const Config& c, const StateMemory& all, Mesh& mesh) {
  const Device device = device_of(c, mesh);
  const std::vector<MemoryBound> bounds = bounds_of(device);
  const StateOffload offload = c.optimizer.offload;
  const MemoryNeed need = gather_need(on_device(all, offload, device), device, mesh);
  const MemoryNeed host = gather_need(beside_device(all, offload, device), Device{}, mesh);
  std::string problem = facts_of_shortage(need, bounds);
  if (!problem.empty()) problem += ". " + advice(c, mesh, need.processes, bounds);
  if (problem.empty() && !(problem = facts_of_shortage(host, memory_bounds())).empty())
    problem += ". Share the states with parallel.zero, or use a machine with more memory";
  const std::vector<std::string> problems = gather_host(mesh.host(), problem);
  for (std::size_t rank = 0; rank < problems.size(); ++rank)
    if (!problems[rank].empty()) return str(problems.size() > 1 ? str("rank ", rank, ": ") : "", problems[rank]);
  return "";
}

// Returns ways to save, from the requested one to the one that needs the least memory.
std::vector<Saving> ways_to_save(const Config& c, const MemoryTier* tier) {
  const Saving wanted = saving_of(c.checkpoint);
  std::vector<Saving> ways;
  if (wanted.keeps && tier) ways.push_back(wanted);
  if (wanted.mode == SaveMode::async) ways.push_back({SaveMode::async, false});
  ways.push_back({SaveMode::blocking, false});
  return ways;
}

void warn_of_fewer_copies(const Saving& wanted, const Saving& now, const std::string& problem) {
  if (wanted.keeps) log::warn("checkpoint.memory_interval: there is too little memory to keep snapshots: ", problem);
  if (wanted.mode == SaveMode::async && now.mode == SaveMode::blocking)
    log::warn(
        "checkpoint.mode: there is too little memory for a copy of the state, so steps wait while checkpoints are "
        "written, as with blocking: ",
        problem);
}

}  // namespace

Saving check_memory(const Config& c, Mesh& mesh, const MemoryTier* tier) {
  const StateMemory state = memory_of(c, mesh, c.parallel.zero);
  const std::vector<Saving> ways = ways_to_save(c, tier);
  std::string first, problem;
  for (const Saving& way : ways) {
    problem = problem_of(c, with_copies(state, way, tier), mesh);
    if (problem.empty() && !first.empty() && mesh.rank() == 0) warn_of_fewer_copies(ways.front(), way, first);
    if (problem.empty()) return way;
    if (first.empty()) first = problem;
  }
  fail(kCannotFit, problem);
}

namespace {

// Returns this process's share of the free host memory, minus the bytes that it will allocate for states and their
// copies.
std::uint64_t free_share(const Config& c, Mesh& mesh) {
  const auto processes = static_cast<std::uint64_t>(sum_on_this_host(mesh.host(), 0).processes);
  std::uint64_t share = std::numeric_limits<std::uint64_t>::max();
  for (const MemoryBound& b : memory_bounds()) share = std::min(share, b.available / (b.of_process ? 1 : processes));
  const StateMemory all = with_copies(memory_of(c, mesh, c.parallel.zero), saving_of(c.checkpoint), nullptr);
  StateMemory taken = beside_device(all, c.optimizer.offload, device_of(c, mesh));
  taken.snapshot = all.snapshot;
  taken.outer = all.outer;
  return share - std::min(share, taken.total());
}

}  // namespace

std::size_t activation_room(const Config& c, Mesh& mesh) {
  if (c.train.activation_offload == Switch::off) return 0;
  double negative[] = {-static_cast<double>(free_share(c, mesh) / 8 * 7)};  // 1/8 stays free for other programs
  all_reduce_host(mesh.host(), negative, Reduce::max);
  const auto room = static_cast<std::size_t>(-negative[0]);
  const auto wanted = static_cast<std::size_t>(c.train.activation_offload_bytes);
  if (wanted > room && mesh.rank() == 0)
    log::warn("train.activation_offload_bytes: ", bytes_text(wanted),
              " per process do not fit into memory. The limit is now ", bytes_text(room));
  if (!may_offload(c)) return 0;  // returns only after the reduction, in which all ranks must take part
  return wanted ? std::min(wanted, room) : room;
}

void check_memory(Model& declared, Device device, const ParamTypes& types) {
  const StateMemory own = state_memory(declared, 0, 1, 0, types, [](const OwnedShard&) { return 0; });
  const std::string problem = shortage_message({own, own.total(), 1}, bounds_of(device));
  if (!problem.empty()) fail(problem, ". End other programs, or use a machine with more memory");
}

}  // namespace ring
