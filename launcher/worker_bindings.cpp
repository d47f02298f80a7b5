#include "launcher/worker_bindings.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/check.h"

namespace ring {
namespace {

using Numbers = std::vector<int>;

bool has(const Numbers& sorted, int n) { return std::ranges::binary_search(sorted, n); }

// Chooses from the cores that the agent may use.
class Chooser {
 public:
  Chooser(const Machine& machine, const BindingRequest& q) : q_(q) {
    for (const Core& c : machine.cores)
      if (std::ranges::find(q.allowed, c.number) != q.allowed.end()) cores_.push_back(c);
    std::set<int> nodes;
    for (const Core& c : cores_) nodes.insert(c.node);
    nodes_.assign(nodes.begin(), nodes.end());
    on_gpus_ = !q.gpus || (!q.gpus->empty() && q.workers <= static_cast<int>(q.gpus->size()));
  }

  std::vector<WorkerBinding> choose() const {
    std::vector<WorkerBinding> places(static_cast<std::size_t>(q_.workers));
    if (const std::string why = why_not(); !why.empty()) {
      if (q_.binding == NumaBinding::automatic || q_.binding == NumaBinding::none) return places;
      fail("launch: --numa-binding: ", why,
           ". Without this option, or with auto or none, the workers run on all cores");
    }
    std::map<Numbers, int> before;  // number of earlier workers with the same home
    for (int w = 0; w < q_.workers; ++w) {
      const Numbers home = home_of(w);
      places[static_cast<std::size_t>(w)] = {.cores = cores_of(home, before[home]++), .gpu = on_gpus_ ? w : -1};
    }
    for (WorkerBinding& p : places) {
      p.nodes = nodes_of(p.cores);
      p.workers = static_cast<int>(std::ranges::count(places, p.cores, &WorkerBinding::cores));
    }
    return places;
  }

 private:
  // Returns the reason why the workers are not bound; empty if they are bound.
  std::string why_not() const {
    const bool automatic = q_.binding == NumaBinding::automatic;
    if (q_.binding == NumaBinding::none) return "none";
    if (cores_.empty()) return "the kernel does not show this machine's cores (/sys/devices/system/cpu)";
    if (automatic && nodes_.size() == 1) return "there is only one NUMA node";
    if (on_gpus_ && !q_.gpus) return "it is unknown which GPU each worker uses: set CUDA_DEVICE_ORDER=PCI_BUS_ID";
    if (automatic && !on_gpus_ && q_.workers == 1) return "one worker has all cores";
    if (automatic && !on_gpus_ && !divides_evenly())
      return "cores would be left over, or workers would have unequal shares";
    for (int w = 0; on_gpus_ && w < q_.workers; ++w)
      if (nodes_.size() > 1 && !has(nodes_, node_of_gpu(w)))
        return str("GPU ", w, " (", gpu(w).bus, ") is not near a NUMA node whose cores this process may use");
    return "";
  }
  bool divides_evenly() const {
    const auto nodes = static_cast<int>(nodes_.size());
    return q_.workers % nodes == 0 || nodes % q_.workers == 0;
  }
  const Gpu& gpu(int w) const { return (*q_.gpus)[static_cast<std::size_t>(w)]; }
  int node_of_gpu(int w) const { return nodes_.size() == 1 ? nodes_.front() : gpu(w).node; }

  // Returns the NUMA nodes of a worker. Adjacent workers get adjacent nodes.
  Numbers home_of(int w) const {
    if (on_gpus_) return {node_of_gpu(w)};
    const auto nodes = static_cast<int>(nodes_.size());
    const int first = w * nodes / q_.workers, end = std::max(first + 1, (w + 1) * nodes / q_.workers);
    return {nodes_.begin() + first, nodes_.begin() + end};
  }
  int workers_with(const Numbers& home) const {
    int n = 0;
    for (int w = 0; w < q_.workers; ++w) n += home_of(w) == home ? 1 : 0;
    return n;
  }

  // turn: number of earlier workers with this home.
  Numbers cores_of(const Numbers& home, int turn) const {
    switch (q_.binding) {
      case NumaBinding::socket: return socket_of(home);
      case NumaBinding::exclusive: return share_of(home, turn);
      case NumaBinding::core_complex: return complex_of(home, turn);
      default: return numbers(home);
    }
  }
  Numbers numbers(const Numbers& home) const {
    Numbers n;
    for (const Core& c : cores_)
      if (has(home, c.node)) n.push_back(c.number);
    return n;
  }
  Numbers socket_of(const Numbers& home) const {
    std::set<int> sockets;
    for (const Core& c : cores_)
      if (has(home, c.node)) sockets.insert(c.socket);
    Numbers n;
    for (const Core& c : cores_)
      if (sockets.contains(c.socket)) n.push_back(c.number);
    return n;
  }
  // Groups the cores of a home by the resource that they share.
  std::map<int, Numbers> groups(const Numbers& home, int Core::*shared) const {
    std::map<int, Numbers> groups;
    for (const Core& c : cores_)
      if (has(home, c.node)) groups[c.*shared].push_back(c.number);
    return groups;
  }
  Numbers share_of(const Numbers& home, int turn) const {
    const std::map<int, Numbers> physical = groups(home, &Core::physical);
    const auto all = static_cast<int>(physical.size()), workers = workers_with(home);
    if (all < workers)
      fail("launch: --numa-binding exclusive: ", workers, " workers share NUMA node ", format_number_list(home),
           ", which has only ", all, " physical cores");
    Numbers n;
    int i = 0;
    for (const auto& [core, siblings] : physical) {
      if (i >= turn * all / workers && i < (turn + 1) * all / workers)
        n.insert(n.end(), siblings.begin(), siblings.end());
      ++i;
    }
    std::ranges::sort(n);
    return n;
  }
  // Assigns the complexes in turn, the larger ones first.
  Numbers complex_of(const Numbers& home, int turn) const {
    std::vector<Numbers> complexes;
    for (auto& [first, cores] : groups(home, &Core::complex)) complexes.push_back(cores);
    std::ranges::stable_sort(complexes, std::ranges::greater{}, &Numbers::size);
    return complexes[static_cast<std::size_t>(turn) % complexes.size()];
  }
  Numbers nodes_of(const Numbers& cores) const {
    std::set<int> nodes;
    for (const Core& c : cores_)
      if (has(cores, c.number)) nodes.insert(c.node);
    return {nodes.begin(), nodes.end()};
  }

  const BindingRequest& q_;
  std::vector<Core> cores_;
  Numbers nodes_;
  bool on_gpus_ = false;
};

std::string with_numbers(const char* thing, const char* things, int first, int last) {
  return first == last ? str(thing, " ", first) : str(things, " ", first, "-", last);
}

}  // namespace

std::vector<WorkerBinding> choose_bindings(const Machine& machine, const BindingRequest& question) {
  return Chooser(machine, question).choose();
}

std::vector<std::string> describe_bindings(const std::vector<WorkerBinding>& places, int first_rank) {
  std::vector<std::string> lines;
  const auto end = static_cast<int>(places.size());
  for (int first = 0, last = 0; first < end; first = last + 1) {
    const WorkerBinding& p = places[static_cast<std::size_t>(first)];
    for (last = first; last + 1 < end && places[static_cast<std::size_t>(last) + 1].cores == p.cores;) ++last;
    if (p.cores.empty()) continue;
    const std::string gpus = p.gpu < 0 ? "" : " on " + with_numbers("GPU", "GPUs", first, last);
    lines.push_back(str(with_numbers("rank", "ranks", first_rank + first, first_rank + last), gpus, ": cores ",
                        format_number_list(p.cores), " of NUMA node", p.nodes.size() > 1 ? "s " : " ",
                        format_number_list(p.nodes)));
  }
  return lines;
}

}  // namespace ring
