#include "job/agent_environment.h"

#include <algorithm>

#include "job/host_list.h"
#include "job/job_port.h"
#include "job/variables.h"

namespace ring {
namespace {

// Reads this agent's index and the number of agents. The launcher calls its processes ranks; here they are agents.
AgentEnvironment read_counts(Variables& v, const std::string& source, const RankNames& names) {
  v.set_context(source);
  AgentEnvironment a{.source = source};
  a.index = v.number(names.rank);
  a.agents = v.number(names.world, 1, kMaxProcesses, "processes");
  check_below(names.rank, a.index, names.world, a.agents);
  a.here = names.local_world ? v.number_or(names.local_world, 1) : 1;
  a.nodes = a.here > 0 ? (a.agents + a.here - 1) / a.here : 1;
  return a;
}

// Reads the allocation of a process that is not in a step of srun: a script of sbatch or a shell of salloc. Such a
// process runs once, on the first node or outside the allocation.
AgentEnvironment from_allocation(const Variables& v) {
  return {.source = "Slurm", .nodes = std::max(1, v.number_or("SLURM_JOB_NUM_NODES", v.number_or("SLURM_NNODES", 1)))};
}

AgentEnvironment from_step(Variables& v) {
  const char* tasks = v.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  AgentEnvironment a = read_counts(v, "srun", {"SLURM_PROCID", tasks, nullptr, nullptr});
  a.nodes = std::max(1, v.number_or("SLURM_STEP_NUM_NODES", v.number_or("SLURM_NNODES", a.agents)));
  a.here = (a.agents + a.nodes - 1) / a.nodes;
  a.job = v.text("SLURM_JOB_ID") + "." + v.text("SLURM_STEP_ID");
  const auto hosts = expand_host_list(v.text(v.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_NODELIST"));
  if (!hosts.empty()) a.endpoint = Endpoint{hosts.front(), port_from("agents of " + a.job)};
  return a;
}

AgentEnvironment from_kubernetes(Variables& v) {
  v.set_context("an indexed Job");
  return {.source = "Kubernetes", .index = v.number("JOB_COMPLETION_INDEX")};
}

}  // namespace

AgentEnvironment parse_agent_environment(const Environment& env) {
  Variables v(env);
  if (v.has(kOpenMpi.rank)) return read_counts(v, "mpirun", kOpenMpi);
  if (v.has(kHydra.rank) && v.has(kHydra.local_world)) return read_counts(v, "mpiexec", kHydra);
  if (v.has("SLURM_STEP_ID") && v.has("SLURM_PROCID")) return from_step(v);
  if (v.has("SLURM_JOB_ID")) return from_allocation(v);
  if (v.has("JOB_COMPLETION_INDEX")) return from_kubernetes(v);
  return {};
}

}  // namespace ring
