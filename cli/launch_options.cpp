#include "cli/launch_options.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <thread>

#include "core/check.h"
#include "core/counted.h"
#include "core/devices.h"
#include "job/environment.h"
#include "job/secret.h"

namespace ring {
namespace {

constexpr int kRdzvPort = 29400;  // torchrun's default
constexpr int kMaxNodes = 4096, kMaxLocal = 4096;

int number(const std::string& option, const std::string& text, int min, int max) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size() || n < min || n > max)
    fail("launch: ", option, ": expected a number from ", min, " to ", max, ", got '", text, "'");
  return n;
}

std::vector<std::string> parts(const std::string& text, char separator) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == separator)
      out.emplace_back();
    else if (c != ' ')
      out.back() += c;
  }
  return out;
}

}  // namespace

void read_nodes(const std::string& text, LaunchOptions& o) {
  const std::vector<std::string> range = parts(text, ':');
  if (range.size() > 2) fail("launch: --nnodes: expected N or MIN:MAX, got '", text, "'");
  o.min_nodes = number("--nnodes", range.front(), 1, kMaxNodes);
  o.max_nodes = number("--nnodes", range.back(), o.min_nodes, kMaxNodes);
}

int read_processes(const std::string& text) {
  const int gpus = text == "auto" || text == "gpu" ? device_count(Backend::cuda) : 0;
  if (text == "gpu" && gpus == 0)
    fail("launch: --nproc-per-node gpu: this machine has no usable GPU. Give a number, or cpu");
  if (gpus > 0) return gpus;
  if (text == "auto" || text == "cpu") return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return number("--nproc-per-node", text, 1, kMaxLocal);
}

Endpoint read_rdzv_endpoint(const std::string& text) {
  const bool v6 = text.starts_with("[") ? text.ends_with("]") : std::count(text.begin(), text.end(), ':') > 1;
  if (v6) return {text.starts_with("[") ? text.substr(1, text.size() - 2) : text, kRdzvPort};
  if (text.find(':') == std::string::npos) return {text, kRdzvPort};
  try {
    return parse_endpoint(text);
  } catch (const Error& e) {
    fail("launch: --rdzv-endpoint: ", e.what());
  }
}

void read_rdzv_conf(const std::string& text, LaunchOptions& o) {
  for (const std::string& pair : parts(text, ',')) {
    const std::string key = pair.substr(0, pair.find('=')), value = pair.substr(std::min(pair.size(), key.size() + 1));
    std::chrono::milliseconds* known = key == "join_timeout" || key == "timeout" ? &o.join_timeout
                                       : key == "last_call_timeout"              ? &o.last_call
                                       : key == "return_timeout"                 ? &o.return_timeout
                                       : key == "keep_alive_timeout"             ? &o.silence
                                                                                 : nullptr;
    if (!known)
      fail("launch: --rdzv-conf: expected join_timeout, last_call_timeout, return_timeout or keep_alive_timeout, got '",
           key, "'");
    *known = std::chrono::seconds(number("--rdzv-conf " + key, value, 1, kMaxSeconds));
  }
}

// Reads --tee or --redirects. Both streams of a worker are written to one file in order of time, so a request for one
// of them gives both.
LocalRanks read_streams(const char* option, const std::string& text) {
  if (text.find(':') == std::string::npos) return {.all = number(option, text, 0, 3) > 0};
  LocalRanks ranks;
  for (const std::string& pair : parts(text, ',')) {
    const std::size_t colon = pair.find(':');
    if (colon == std::string::npos) fail("launch: ", option, ": expected LOCAL_RANK:STREAMS, got '", pair, "'");
    const bool selected = number(option, pair.substr(colon + 1), 0, 3) > 0;
    const int rank = number(option, pair.substr(0, colon), 0, kMaxLocal);
    if (selected)
      ranks.some.insert(rank);
    else
      ranks.some.erase(rank);
  }
  return ranks;
}

LocalRanks read_local_ranks(const std::string& text) {
  LocalRanks ranks;
  for (const std::string& rank : parts(text, ','))
    ranks.some.insert(number("--local-ranks-filter", rank, 0, kMaxLocal));
  return ranks;
}

std::vector<int> read_signals(const std::string& text) {
  const std::map<std::string, int> known = {{"SIGTERM", SIGTERM}, {"SIGINT", SIGINT},   {"SIGHUP", SIGHUP},
                                            {"SIGQUIT", SIGQUIT}, {"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2}};
  std::vector<int> signals;
  for (const std::string& name : parts(text, ',')) {
    if (!known.contains(name))
      fail("launch: --signals-to-handle: expected SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 or SIGUSR2, got '", name,
           "'");
    signals.push_back(known.at(name));
  }
  return signals;
}

NumaBinding read_numa_binding(const std::string& word) {
  const std::map<std::string, NumaBinding> known = {
      {"auto", NumaBinding::automatic},      {"none", NumaBinding::none},
      {"node", NumaBinding::node},           {"socket", NumaBinding::socket},
      {"exclusive", NumaBinding::exclusive}, {"core-complex", NumaBinding::core_complex}};
  const auto at = known.find(word);
  if (at == known.end())
    fail("launch: --numa-binding: expected auto, none, node, socket, exclusive or core-complex, got '", word, "'");
  return at->second;
}

void apply_agent_environment(const AgentEnvironment& environment, bool nodes_given, LaunchOptions& o) {
  const std::string& who = environment.source;
  if (environment.here > 1)
    fail("launch: ", who, " started ", environment.agents, " copies of this command on ",
         counted(environment.nodes, "node"),
         ", but a node needs only one, which starts all workers of the node. Use srun --ntasks-per-node=1, "
         "mpirun --map-by ppr:1:node or mpiexec -ppn 1");
  if (!nodes_given && environment.agents > 1) o.min_nodes = o.max_nodes = environment.agents;
  if (o.max_nodes == 1 && (environment.agents > 1 || environment.index > 0))
    fail("launch: ", who, " started this command ",
         environment.agents > 1 ? counted(environment.agents, "time") : "several times",
         ", but --nnodes is 1, so each would train alone. Give --nnodes, or --standalone if that is intended");
  if (o.max_nodes == 1) return;
  if (o.node_rank < 0 && environment.index < o.max_nodes) o.node_rank = environment.index;
  o.endpoint = environment.endpoint;
  if (o.rdzv_id == kNoId && !environment.job.empty()) o.rdzv_id = environment.job;
}

void reject_loopback(const AgentEnvironment& environment, const LaunchOptions& o) {
  if (o.max_nodes == 1 || !o.endpoint || !is_loopback(o.endpoint->host)) return;
  const std::string what = "launch: --rdzv-endpoint: " + o.endpoint->host + " is a loopback address, ";
  const char* remedy = "Give an address of node 0 that the others can reach";
  if (environment.nodes > 1)
    fail(what, "but this ", environment.source, " job has ", environment.nodes, " nodes. ", remedy);
  if (o.min_nodes == 1)
    fail(what, "and with --nnodes 1:", o.max_nodes, " each machine would train alone. ", remedy,
         " (on a single machine, its host name works, too)");
}

std::string find_secret(const std::string& file) {
  if (!file.empty()) return read_secret(file);
  const char* text = std::getenv("RINGMASTER_SECRET");
  return text && *text ? checked_secret(text, "RINGMASTER_SECRET") : "";
}

}  // namespace ring
