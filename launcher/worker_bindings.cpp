#include "launcher/worker_bindings.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/check.h"

namespace ring {
namespace {

using Cores = std::vector<int>;  // sorted numbers of cores
using Nodes = std::vector<int>;  // sorted numbers of NUMA nodes

bool has(const std::vector<int>& sorted, int n) { return std::ranges::binary_search(sorted, n); }

// Chooses the cores of each worker from the cores that the agent may use.
class Chooser {
 public:
  Chooser(const Machine& machine, const BindingRequest& request) : request_(request) {
    for (const Core& c : machine.cores)
      if (std::ranges::find(request.allowed, c.number) != request.allowed.end()) cores_.push_back(c);
    std::set<int> nodes;
    for (const Core& c : cores_) nodes.insert(c.node);
    nodes_.assign(nodes.begin(), nodes.end());
    // With unknown GPUs, why_not() refuses.
    on_gpus_ = !request.gpus || (!request.gpus->empty() && request.workers <= static_cast<int>(request.gpus->size()));
  }

  std::vector<WorkerBinding> choose() const {
    std::vector<WorkerBinding> bindings(static_cast<std::size_t>(request_.workers));
    if (const std::string why = why_not(); !why.empty()) {
      if (request_.binding == NumaBinding::automatic || request_.binding == NumaBinding::none) return bindings;
      fail("launch: --numa-binding: ", why,
           ". Without this option, or with auto or none, the workers run on all cores");
    }
    std::map<Nodes, int> turns;  // number of earlier workers with the same NUMA nodes
    for (int w = 0; w < request_.workers; ++w) {
      const Nodes home = home_of(w);
      bindings[static_cast<std::size_t>(w)] = {.cores = cores_of(home, turns[home]++), .gpu = on_gpus_ ? w : -1};
    }
    for (WorkerBinding& p : bindings) {
      p.nodes = nodes_of(p.cores);
      p.workers = static_cast<int>(std::ranges::count(bindings, p.cores, &WorkerBinding::cores));
    }
    return bindings;
  }

 private:
  // Returns the reason why the workers are not bound; empty if they are bound.
  std::string why_not() const {
    const bool automatic = request_.binding == NumaBinding::automatic;
    if (request_.binding == NumaBinding::none) return "none";
    if (cores_.empty()) return "the kernel does not show this machine's cores (/sys/devices/system/cpu)";
    if (automatic && nodes_.size() == 1) return "there is only one NUMA node";
    if (on_gpus_ && !request_.gpus) return "it is unknown which GPU each worker uses: set CUDA_DEVICE_ORDER=PCI_BUS_ID";
    if (automatic && !on_gpus_ && request_.workers == 1) return "one worker has all cores";
    if (automatic && !on_gpus_ && !divides_evenly())
      return "cores would be left over, or workers would have unequal shares";
    if (on_gpus_ && nodes_.size() > 1)
      for (int w = 0; w < request_.workers; ++w)
        if (!has(nodes_, node_of_gpu(w)))
          return str("GPU ", w, " (", gpu(w).bus, ") is not near a NUMA node whose cores this process may use");
    return "";
  }
  bool divides_evenly() const {
    const auto nodes = static_cast<int>(nodes_.size());
    return request_.workers % nodes == 0 || nodes % request_.workers == 0;
  }
  const Gpu& gpu(int w) const { return (*request_.gpus)[static_cast<std::size_t>(w)]; }
  int node_of_gpu(int w) const { return nodes_.size() == 1 ? nodes_.front() : gpu(w).node; }

  // Returns the NUMA nodes from which a worker gets its cores: its home. Adjacent workers get adjacent nodes.
  Nodes home_of(int w) const {
    if (on_gpus_) return {node_of_gpu(w)};
    const auto nodes = static_cast<int>(nodes_.size());
    const int first = w * nodes / request_.workers, end = std::max(first + 1, (w + 1) * nodes / request_.workers);
    return {nodes_.begin() + first, nodes_.begin() + end};
  }
  int workers_with(const Nodes& home) const {
    int n = 0;
    for (int w = 0; w < request_.workers; ++w) n += home_of(w) == home ? 1 : 0;
    return n;
  }

  // turn: number of earlier workers with this home.
  Cores cores_of(const Nodes& home, int turn) const {
    switch (request_.binding) {
      case NumaBinding::socket: return socket_of(home);
      case NumaBinding::exclusive: return share_of(home, turn);
      case NumaBinding::core_complex: return complex_of(home, turn);
      default: return cores_on(home);
    }
  }
  Cores cores_on(const Nodes& home) const {
    Cores n;
    for (const Core& c : cores_)
      if (has(home, c.node)) n.push_back(c.number);
    return n;
  }
  Cores socket_of(const Nodes& home) const {
    std::set<int> sockets;
    for (const Core& c : cores_)
      if (has(home, c.node)) sockets.insert(c.socket);
    Cores n;
    for (const Core& c : cores_)
      if (sockets.contains(c.socket)) n.push_back(c.number);
    return n;
  }
  // Groups the cores of a home by the resource that they share.
  std::map<int, Cores> groups(const Nodes& home, int Core::*shared) const {
    std::map<int, Cores> groups;
    for (const Core& c : cores_)
      if (has(home, c.node)) groups[c.*shared].push_back(c.number);
    return groups;
  }
  Cores share_of(const Nodes& home, int turn) const {
    const std::map<int, Cores> physical = groups(home, &Core::physical);
    const auto all = static_cast<int>(physical.size()), workers = workers_with(home);
    if (all < workers)
      fail("launch: --numa-binding exclusive: ", workers, " workers share NUMA node ", format_number_list(home),
           ", which has only ", all, " physical cores");
    Cores n;
    int i = 0;
    for (const auto& [core, siblings] : physical) {
      if (i >= turn * all / workers && i < (turn + 1) * all / workers)
        n.insert(n.end(), siblings.begin(), siblings.end());
      ++i;
    }
    std::ranges::sort(n);
    return n;
  }
  // Assigns the core complexes in turn, the larger ones first.
  Cores complex_of(const Nodes& home, int turn) const {
    std::vector<Cores> complexes;
    for (auto& [complex, cores] : groups(home, &Core::complex)) complexes.push_back(cores);
    std::ranges::stable_sort(complexes, std::ranges::greater{}, &Cores::size);
    return complexes[static_cast<std::size_t>(turn) % complexes.size()];
  }
  Nodes nodes_of(const Cores& cores) const {
    std::set<int> nodes;
    for (const Core& c : cores_)
      if (has(cores, c.number)) nodes.insert(c.node);
    return {nodes.begin(), nodes.end()};
  }

  const BindingRequest& request_;
  std::vector<Core> cores_;
  Nodes nodes_;
  bool on_gpus_ = false;
};

std::string with_numbers(const char* thing, const char* things, int first, int last) {
  return first == last ? str(thing, " ", first) : str(things, " ", first, "-", last);
}

}  // namespace

std::vector<WorkerBinding> choose_bindings(const Machine& machine, const BindingRequest& request) {
  return Chooser(machine, request).choose();
}

std::vector<std::string> describe_bindings(const std::vector<WorkerBinding>& bindings, int first_rank) {
  std::vector<std::string> lines;
  const auto end = static_cast<int>(bindings.size());
  for (int first = 0, last = 0; first < end; first = last + 1) {
    const WorkerBinding& p = bindings[static_cast<std::size_t>(first)];
    for (last = first; last + 1 < end && bindings[static_cast<std::size_t>(last) + 1].cores == p.cores;) ++last;
    if (p.cores.empty()) continue;
    const std::string gpus = p.gpu < 0 ? "" : " on " + with_numbers("GPU", "GPUs", first, last);
    lines.push_back(str(with_numbers("rank", "ranks", first_rank + first, first_rank + last), gpus, ": cores ",
                        format_number_list(p.cores), " of NUMA node", p.nodes.size() > 1 ? "s " : " ",
                        format_number_list(p.nodes)));
  }
  return lines;
}

}  // namespace ring
