#include "comm/mesh/mesh.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "comm/gloo/gloo.h"
#include "comm/host.h"
#include "comm/liveness.h"
#include "comm/nccl/nccl.h"
#include "comm/self.h"
#include "core/counted.h"

namespace ring {
namespace {

constexpr std::array<const char*, 4> kAxes = {"dp", "cp", "tp", "pp"};
constexpr int kContextCtas = 8;

std::string divisors(int n) {  // "1, 2, 4 or 8"
  std::string out;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) out += str(d == 1 ? "" : d == n ? " or " : ", ", d);
  return out;
}

// Numbers in order of first appearance.
std::vector<int> number(const std::vector<std::string>& names) {
  std::vector<std::string> seen;
  std::vector<int> out;
  for (const std::string& name : names) {
    const auto at = std::find(seen.begin(), seen.end(), name);
    out.push_back(static_cast<int>(at - seen.begin()));
    if (at == seen.end()) seen.push_back(name);
  }
  return out;
}

}  // namespace

class Mesh::Impl {
 public:
  Impl(Meeting meeting, const MeshPlan& plan)
      : meeting_(std::move(meeting)),
        env_(meeting_.environment()),
        options_(meeting_.options()),
        device_(plan.device),
        degrees_(mesh_degrees(plan.degrees, env_.world)),
        store_(meeting_.store()) {
    if (env_.world > 1) queue_ = std::make_shared<CommQueue>();
    if (env_.world > 1 && device_.backend == Backend::cuda) watchdog_ = make_nccl_watchdog();
    if (env_.world > 1 && options_.liveness.count() > 0) watch();
    make_groups();
    find_nodes(plan.emulate_nodes);
  }

  // Closing a communicator may wait for its other ranks: all take them in the same order.
  ~Impl() {
    if (liveness_) liveness_->leave();
    for (Group& g : groups_) g.comm.reset();
  }

  int rank() const { return env_.rank; }
  int world() const { return env_.world; }
  const Device& device() const { return device_; }
  Store* store() { return store_.get(); }
  Communicator& axis(const std::string& name) {
    const auto it = axes_.find(name);
    if (it == axes_.end()) fail("mesh: no axis '", name, "'; there are dp, cp, tp, pp");
    return *it->second;
  }
  Communicator& data() { return *data_; }
  Communicator& all() { return *all_; }
  Communicator& host() { return *host_; }
  const std::vector<int>& nodes_of_cp_ranks() const { return cp_nodes_; }
  void check() {
    if (watchdog_) check_nccl(*watchdog_);
  }
  void agree(const Topic& topic, const Facts& facts) {
    if (store_)
      ring::agree(*store_, env_.rank, env_.world, topic, facts, options_.timeout, [this] { check_aborted(); });
  }

 private:
  using Owned = std::unique_ptr<Communicator>;

  void make_groups();
  void find_nodes(int emulate);
  void watch();
  void abort_all(const std::string& reason);
  void check_aborted();
  Communicator* group(const std::string& name, std::vector<int> ranks, Backend backend);
  int rank_at(int dp, int cp, int tp) const { return (dp * degrees_.cp + cp) * degrees_.tp + tp; }

  Meeting meeting_;
  WorkerEnvironment env_;
  CommOptions options_;
  Device device_;
  MeshDegrees degrees_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<CommQueue> queue_;
  std::shared_ptr<NcclWatchdog> watchdog_;
  struct Group {
    std::vector<int> ranks;
    Backend backend;
    bool context;
    Owned comm;
  };
  std::vector<Group> groups_;  // each once, in the order in which every rank made them
  std::map<std::string, Communicator*> axes_;
  Communicator *data_ = nullptr, *all_ = nullptr, *host_ = nullptr;
  std::vector<int> cp_ranks_, cp_nodes_;
  std::mutex mutex_;  // groups_ while they are made, and aborted_
  std::string aborted_;
  std::shared_ptr<Liveness> liveness_;  // aborts the groups
};

// Every rank makes its groups in this one order; ranks are in the order of the axis.
void Mesh::Impl::make_groups() {
  const auto [dp, cp, tp] = degrees_;
  const int t = env_.rank % tp, c = env_.rank / tp % cp, d = env_.rank / tp / cp;
  std::vector<int> every, data, along_dp, along_tp;
  for (int r = 0; r < env_.world; ++r) every.push_back(r);
  for (int i = 0; i < dp; ++i)
    for (int j = 0; j < cp; ++j) data.push_back(rank_at(i, j, t));
  for (int i = 0; i < dp; ++i) along_dp.push_back(rank_at(i, c, t));
  for (int j = 0; j < cp; ++j) cp_ranks_.push_back(rank_at(d, j, t));
  for (int k = 0; k < tp; ++k) along_tp.push_back(rank_at(d, c, k));
  host_ = group("host", every, Backend::cpu);
  all_ = group("all", every, device_.backend);
  data_ = group("data", data, device_.backend);
  axes_["dp"] = group("dp", along_dp, device_.backend);
  axes_["cp"] = group("cp", cp_ranks_, device_.backend);
  axes_["tp"] = group("tp", along_tp, device_.backend);
  axes_["pp"] = group("pp", {env_.rank}, device_.backend);
}

Communicator* Mesh::Impl::group(const std::string& name, std::vector<int> ranks, Backend backend) {
  const bool context = name == "cp";
  for (const Group& g : groups_)
    if (g.ranks == ranks && g.backend == backend && g.context == context) return g.comm.get();
  const int size = static_cast<int>(ranks.size());
  const int own = static_cast<int>(std::find(ranks.begin(), ranks.end(), env_.rank) - ranks.begin());
  const std::string key = str("group/", name, "/", ranks.front());  // groups of one name have different first ranks
  CommOptions options = options_;
  options.ranks = ranks;
  // Its transfers run beside attention, and get few multiprocessors or none. They have an order of their own: a
  // reduction of gradients that is under way does not hold up keys.
  options.copy_engines = options_.copy_engines && context;
  options.nccl_max_ctas = context ? kContextCtas : options_.nccl_max_ctas;
  Owned comm;
  if (size == 1)
    comm = make_self_communicator();
  else if (backend == Backend::cuda)
    comm = make_nccl_communicator({own, size, device_, key}, store_, watchdog_, options);
  else
    comm = make_gloo_communicator(own, size, store_, key, queue_, options);
  const std::lock_guard lock(mutex_);
  if (!aborted_.empty()) comm->abort(aborted_);
  return groups_.emplace_back(Group{std::move(ranks), backend, context, std::move(comm)}).comm.get();
}

void Mesh::Impl::find_nodes(int emulate) {
  std::vector<int> nodes;
  if (emulate > 0)
    for (int r = 0; r < env_.world; ++r) nodes.push_back(r / emulate);
  else
    nodes = number(gather_host(*host_, host_identity()));
  for (const int r : cp_ranks_) cp_nodes_.push_back(nodes[static_cast<std::size_t>(r)]);
}

void Mesh::Impl::watch() {
  Liveness::Setup setup;
  setup.rank = env_.rank;
  setup.limit = options_.liveness;
  setup.server = env_.host_store ? "rank 0" : "the launcher";
  setup.hosts_store = meeting_.hosts_store();
  liveness_ = std::make_shared<Liveness>(*store_, setup, [this](const std::string& why) { abort_all(why); });
  options_.who_is_lost = [weak = std::weak_ptr(liveness_)] {
    const auto alive = weak.lock();
    return alive ? alive->who_is_lost() : "";
  };
}

void Mesh::Impl::abort_all(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  aborted_ = reason;
  for (const Group& g : groups_) g.comm->abort(reason);
}

void Mesh::Impl::check_aborted() {
  const std::lock_guard lock(mutex_);
  if (!aborted_.empty()) throw PeerLost(aborted_);
}

MeshDegrees mesh_degrees(const std::map<std::string, int>& given, int world) {
  for (const auto& [name, degree] : given) {
    if (std::find(kAxes.begin(), kAxes.end(), name) == kAxes.end())
      fail("mesh: no axis '", name, "'; there are dp, cp, tp, pp");
    if (degree < 1) fail("mesh: the degree of axis '", name, "' is ", degree, "; at least 1");
  }
  const auto degree = [&](const char* name, int otherwise) {
    const auto it = given.find(name);
    return it == given.end() ? otherwise : it->second;
  };
  if (degree("pp", 1) > 1)
    fail("mesh: pp: ", degree("pp", 1), ": pipeline parallelism is not in this version; set pp: 1 and use cp or tp");
  MeshDegrees m{0, degree("cp", 1), degree("tp", 1)};
  if (world % m.cp != 0 || world % m.tp != 0 || world / m.cp % m.tp != 0) {
    const bool tp_fits = world % m.tp == 0, cp_fits = world % m.cp == 0 && m.tp > 1;
    const std::string what = tp_fits && m.cp > 1 ? "cp may be " : cp_fits ? "tp may be " : "cp x tp may be ";
    fail("mesh: cp: ", m.cp, " x tp: ", m.tp, " does not divide ", counted(world, "process"), "; ", what,
         divisors(tp_fits && m.cp > 1 ? world / m.tp
                  : cp_fits           ? world / m.cp
                                      : world),
         " with so many. Set parallel.cp and parallel.tp, or start others: ringmaster launch --nproc-per-node N");
  }
  const int rest = world / m.cp / m.tp;
  m.dp = degree("dp", rest);
  const std::int64_t needed = std::int64_t{m.dp} * (world / rest);
  if (m.dp != rest)
    fail("mesh: dp: ", m.dp, " x cp: ", m.cp, " x tp: ", m.tp, " needs ", counted(needed, "process"), ", but ", world,
         world == 1 ? " was" : " were", " started. Start them (ringmaster launch --nproc-per-node ", needed,
         " -- train ..), or set parallel.dp to ", rest, ", or to 0 for what is left");
  return m;
}

Mesh::Mesh(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Mesh::~Mesh() = default;

std::unique_ptr<Mesh> Mesh::join(const WorkerEnvironment& env, const CommOptions& options, const MeshPlan& plan) {
  mesh_degrees(plan.degrees, env.world);
  return join(Meeting(env, options), plan);
}

std::unique_ptr<Mesh> Mesh::join(Meeting meeting, const MeshPlan& plan) {
  return std::unique_ptr<Mesh>(new Mesh(std::make_unique<Impl>(std::move(meeting), plan)));
}

int Mesh::rank() const { return impl_->rank(); }
int Mesh::world() const { return impl_->world(); }
const Device& Mesh::device() const { return impl_->device(); }
Communicator& Mesh::axis(const std::string& name) { return impl_->axis(name); }
Communicator& Mesh::data() { return impl_->data(); }
Communicator& Mesh::all() { return impl_->all(); }
Communicator& Mesh::host() { return impl_->host(); }
const std::vector<int>& Mesh::nodes_of_cp_ranks() const { return impl_->nodes_of_cp_ranks(); }
Store* Mesh::store() { return impl_->store(); }
void Mesh::check() { impl_->check(); }
void Mesh::agree(const Topic& topic, const Facts& facts) { impl_->agree(topic, facts); }

}  // namespace ring
