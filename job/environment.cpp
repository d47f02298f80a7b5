#include "job/environment.h"

#include <unistd.h>

#include <algorithm>

#include "core/check.h"
#include "job/host_list.h"
#include "job/job_port.h"
#include "job/secret.h"
#include "job/variables.h"
#include "job/worker_status.h"

namespace ring {
namespace {

constexpr int kPortTries = 16, kLastPort = 65535;

WorkerEnvironment read_ranks(Variables& v, const std::string& source, const RankNames& names) {
  v.set_context(source);
  WorkerEnvironment w;
  w.source = source;
  w.rank = v.number(names.rank);
  w.world = v.number(names.world, 1, kMaxProcesses, "processes");
  check_below(names.rank, w.rank, names.world, w.world);
  w.local_rank = v.number_or(names.local_rank, 0);
  check_below(names.local_rank, w.local_rank, names.world, w.world);
  if (names.local_world && v.has(names.local_world)) {
    w.local_world = v.number(names.local_world);
    check_below(names.local_rank, w.local_rank, names.local_world, w.local_world);
    if (w.local_world > w.world)
      fail("environment: ", names.local_world, "=", w.local_world, " contradicts ", names.world, "=", w.world,
           ": a node cannot have more ranks than the job");
  }
  return w;
}

// Guesses the number of ranks on this node if the launcher does not set it: all ranks if the store's address is
// loopback, else the smallest possible number.
void guess_local_world(const Variables& v, WorkerEnvironment& w, const char* local_world_name) {
  if (!v.has(local_world_name)) w.local_world = is_loopback(w.store.host) ? w.world : w.local_rank + 1;
}

int port_of(const Variables& v, const std::string& name) {
  const int port = v.number(name);
  if (port < 1 || port > kLastPort) fail("environment: ", name, "=", port, " is not a port (1..", kLastPort, ")");
  return port;
}

// Uses MASTER_ADDR and MASTER_PORT if they are set, else `host` and a port derived from the job's name.
void place_store(const Variables& v, WorkerEnvironment& w, const std::string& job, const std::string& host,
                 int port_offset = 0) {
  if (w.world == 1) return;
  w.cookie = w.source + "/" + job + "/" + std::to_string(w.world);
  w.host_store = true;
  w.store.host = v.has("MASTER_ADDR") ? v.text("MASTER_ADDR") : host;
  if (w.store.host.empty())
    fail("environment: ", w.world, " ranks from ", w.source,
         ", but no address to meet at: set MASTER_ADDR and MASTER_PORT");
  w.store.port = (v.has("MASTER_PORT") ? port_of(v, "MASTER_PORT") : port_from(w.cookie)) + port_offset;
  if (w.store.port > kLastPort)
    fail("environment: MASTER_PORT=", w.store.port - port_offset, " leaves no port above it: set a lower port");
  w.store_ports = std::min(kPortTries, kLastPort - w.store.port + 1);
}

// Derives the cookie from RINGMASTER_SECRET if it is set. Without the secret the cookie can be guessed: it then only
// keeps jobs apart, and the store may only listen on this host.
void guard_store(const Variables& v, WorkerEnvironment& w, bool one_node) {
  if (w.world == 1) return;
  const std::string secret = v.text("RINGMASTER_SECRET");
  if (!secret.empty())
    w.cookie = hmac(checked_secret(secret, "environment: RINGMASTER_SECRET"), w.cookie);
  else if (!one_node)
    fail("environment: ", w.world, " ranks on several nodes from ", w.source,
         ", but RINGMASTER_SECRET is not set, so anyone could join them. Make one with `ringmaster launch "
         "--make-secret FILE`, and start all ranks with RINGMASTER_SECRET=$(cat FILE)");
  else if (!is_loopback(w.store.host))
    w.store.host = "127.0.0.1";
}

WorkerEnvironment from_ours(Variables& v) {
  WorkerEnvironment w = read_ranks(
      v, "ringmaster", {"RINGMASTER_RANK", "RINGMASTER_WORLD", "RINGMASTER_LOCAL_RANK", "RINGMASTER_LOCAL_WORLD"});
  w.nodes = v.has("RINGMASTER_NODES") ? v.number("RINGMASTER_NODES", 1, w.world, "nodes") : 1;
  w.node = v.number_or("RINGMASTER_NODE_RANK", 0);
  check_below("RINGMASTER_NODE_RANK", w.node, "RINGMASTER_NODES", w.nodes);
  w.restarts = v.number_or("RINGMASTER_RESTART_COUNT", 0);
  if (w.world == 1 && !v.has("RINGMASTER_STORE")) return w;
  for (const char* name : {"RINGMASTER_STORE", "RINGMASTER_COOKIE"})
    if (!v.has(name)) fail("environment: ", name, " is not set, but RINGMASTER_WORLD=", w.world, " needs it");
  try {
    w.store = parse_endpoint(v.text("RINGMASTER_STORE"));
  } catch (const Error& e) {
    fail("environment: RINGMASTER_STORE: ", e.what());
  }
  w.cookie = v.text("RINGMASTER_COOKIE");
  guess_local_world(v, w, "RINGMASTER_LOCAL_WORLD");
  return w;
}

WorkerEnvironment from_torchrun(Variables& v) {
  WorkerEnvironment w = read_ranks(v, "torchrun", {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  if (w.world > 1)
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT"})
      if (!v.has(name)) fail("environment: ", name, " is not set, but torchrun always sets it");
  w.restarts = v.number_or("TORCHELASTIC_RESTART_COUNT", 0);
  const std::string job = v.text("TORCHELASTIC_RUN_ID") + "." + v.text("TORCHELASTIC_RESTART_COUNT");
  place_store(v, w, job, "", 1);  // torchrun's agent listens on MASTER_PORT itself, so our store starts one above
  guard_store(v, w, w.local_world == w.world);
  return w;
}

WorkerEnvironment from_mpirun(Variables& v) {
  WorkerEnvironment w = read_ranks(v, "mpirun", kOpenMpi);
  std::string job = v.text("PMIX_NAMESPACE");
  if (job.empty()) job = v.text("OMPI_MCA_ess_base_jobid");
  place_store(v, w, job, w.local_world == w.world ? "127.0.0.1" : "");
  guard_store(v, w, w.local_world == w.world);
  return w;
}

// Reads the variables of mpiexec from MPICH and Intel MPI. srun also sets PMI_RANK, but not MPI_LOCALRANKID. No
// variable contains the name of the job.
WorkerEnvironment from_hydra(Variables& v) {
  WorkerEnvironment w = read_ranks(v, "mpiexec", kHydra);
  const bool one_node = w.local_world == w.world;
  place_store(v, w, "", one_node ? "127.0.0.1" : "");
  guard_store(v, w, one_node);
  return w;
}

WorkerEnvironment from_srun(Variables& v) {
  const bool step = v.has("SLURM_STEP_NUM_TASKS");  // SLURM_NTASKS may describe the whole allocation
  WorkerEnvironment w =
      read_ranks(v, "srun", {"SLURM_PROCID", step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", "SLURM_LOCALID", nullptr});
  const std::string nodes = v.has("SLURM_STEP_NODELIST") ? v.text("SLURM_STEP_NODELIST") : v.text("SLURM_NODELIST");
  const std::vector<std::string> hosts = expand_host_list(nodes);
  const bool one_node = hosts.size() == 1 || v.number_or("SLURM_STEP_NUM_NODES", 0) == 1;
  w.local_world = one_node ? w.world : w.local_rank + 1;  // a lower bound; the exact number is not needed yet
  std::string host = one_node ? "127.0.0.1" : "";
  if (!one_node && !hosts.empty()) host = hosts.front();
  place_store(v, w, v.text("SLURM_JOB_ID") + "." + v.text("SLURM_STEP_ID"), host);
  guard_store(v, w, one_node);
  return w;
}

WorkerEnvironment from_plain(Variables& v) {
  WorkerEnvironment w = read_ranks(v, "environment", {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  if (w.world > 1 && !v.has("LOCAL_RANK"))
    fail("environment: RANK=", w.rank, " and WORLD_SIZE=", w.world,
         " are set without LOCAL_RANK, so they may count nodes or processes; start the workers with `ringmaster "
         "launch`, or set LOCAL_RANK too");
  place_store(v, w, "plain", "");
  guess_local_world(v, w, "LOCAL_WORLD_SIZE");
  guard_store(v, w, v.has("LOCAL_WORLD_SIZE") ? w.local_world == w.world : is_loopback(w.store.host));
  return w;
}

// Throws Error if RANK or WORLD_SIZE contradicts the variables of another launcher.
void refuse_contradiction(const char* name, int value, const char* other, int other_value) {
  if (value != other_value)
    fail("environment: ", name, "=", value, " contradicts ", other, "=", other_value,
         "; unset one of them, or set RINGMASTER_RANK and RINGMASTER_WORLD, which take precedence");
}

void compare_plain(const Variables& v, const WorkerEnvironment& w, const char* rank_name, const char* world_name) {
  if (v.has("RANK")) refuse_contradiction("RANK", v.number("RANK"), rank_name, w.rank);
  if (v.has("WORLD_SIZE")) refuse_contradiction("WORLD_SIZE", v.number("WORLD_SIZE"), world_name, w.world);
}

WorkerEnvironment alone(const Variables& v) {
  WorkerEnvironment w;
  if (v.has("RANK") != v.has("WORLD_SIZE")) {
    const bool rank = v.has("RANK");
    fail("environment: ", rank ? "RANK" : "WORLD_SIZE", " is set without ", rank ? "WORLD_SIZE" : "RANK",
         "; set both or neither");
  }
  if (v.has("SLURM_NTASKS") && v.number("SLURM_NTASKS") > 1)
    w.note = "SLURM_NTASKS=" + v.text("SLURM_NTASKS") +
             ", but this process is not in a job step, so it trains alone; start all tasks with srun";
  return w;
}

}  // namespace

WorkerEnvironment parse_environment(const Environment& env) {
  Variables v(env);
  for (const char* name : {"RINGMASTER_RANK", "RINGMASTER_WORLD"})
    if (v.has(name)) return from_ours(v);
  if (v.has("TORCHELASTIC_RUN_ID")) return from_torchrun(v);
  if (v.has(kOpenMpi.rank)) {
    const WorkerEnvironment w = from_mpirun(v);
    compare_plain(v, w, kOpenMpi.rank, kOpenMpi.world);
    return w;
  }
  if (v.has(kHydra.rank) && v.has(kHydra.local_rank)) {
    const WorkerEnvironment w = from_hydra(v);
    compare_plain(v, w, kHydra.rank, kHydra.world);
    return w;
  }
  if (v.has("SLURM_STEP_ID") && v.has("SLURM_PROCID")) {
    const WorkerEnvironment w = from_srun(v);
    compare_plain(v, w, "SLURM_PROCID", v.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
    return w;
  }
  if (v.has("RANK") && v.has("WORLD_SIZE")) return from_plain(v);
  return alone(v);
}

CommOptions parse_comm_options(const Environment& env) {
  Variables v(env);
  CommOptions options;
  options.address = v.text("RINGMASTER_ADDRESS");
  if (v.has("RINGMASTER_COMM_TIMEOUT")) {
    options.timeout = std::chrono::seconds(v.number("RINGMASTER_COMM_TIMEOUT", 1, kMaxSeconds, "seconds"));
    options.connect_timeout = options.timeout;
  }
  const WorkerEnvironment who = parse_environment(env);
  if (who.local_world < who.world) options.liveness = kSilenceOverNetwork;
  if (v.has("RINGMASTER_LIVENESS")) {
    const int seconds = v.number("RINGMASTER_LIVENESS", 0, kMaxSeconds, "seconds");
    if (seconds == 1) fail("environment: RINGMASTER_LIVENESS is 1 second; it must be at least 2, or 0 to turn it off");
    options.liveness = std::chrono::seconds(seconds);
  }
  const int copies = v.number_or("RINGMASTER_COPY_ENGINES", 1);
  if (copies > 1)
    fail("environment: RINGMASTER_COPY_ENGINES is ", copies, "; expected 0 (off) or 1 (on where possible)");
  options.copy_engines = copies == 1;
  return options;
}

std::string start_command(const WorkerEnvironment& w, const std::string& command) {
  const std::string program = "ringmaster " + command;
  if (w.world == 1) return program;
  if (w.nodes > 1)
    return str("on each of the ", w.nodes, " nodes: ringmaster launch, with the same options, -- ", command);
  if (w.source == "ringmaster") return str("ringmaster launch --nproc-per-node ", w.world, " -- ", command);
  if (w.source == "mpirun" || w.source == "mpiexec") return str(w.source, " -n ", w.world, " ", program);
  if (w.source == "srun") return str("srun --ntasks ", w.world, " ", program);
  if (w.source != "torchrun") return str(program, " in each of the ", w.world, " processes");
  const int nodes = w.world / w.local_world;
  const std::string per_node = str("--nproc-per-node ", w.local_world, " ", program);
  if (nodes == 1) return "torchrun --no-python " + per_node;
  return str("torchrun --no-python --nnodes ", nodes, " ", per_node, " on each node");
}

Environment current_environment() {
  Environment env;
  for (char** e = environ; *e; ++e) {
    const std::string entry = *e;
    const std::size_t equals = entry.find('=');
    if (equals != std::string::npos) env[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  const std::string cookie = env.contains("RINGMASTER_PAGE") ? own_status().cookie.data() : "";
  if (!cookie.empty()) env["RINGMASTER_COOKIE"] = cookie;
  return env;
}

}  // namespace ring
