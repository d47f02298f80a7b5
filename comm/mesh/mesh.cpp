#include "comm/mesh/mesh.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "comm/gloo/gloo.h"
#include "comm/host.h"
#include "comm/nccl/nccl.h"
#include "comm/self.h"
#include "core/joined.h"
#include "job/liveness.h"
#include "job/worker_status.h"

namespace ring {
namespace {

// Maximum NCCL CTAs for transfers that overlap with kernels.
constexpr int kFewCtas = 8;
// Timeout of operations of background groups, which may wait for slow disks or for ranks that are behind. Liveness
// detects lost ranks earlier.
constexpr std::chrono::hours kBesideSteps{24};

// Numbers distinct names in order of first appearance.
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
  Impl(Meeting meeting, const MeshLayout& layout)
      : meeting_(std::move(meeting)),
        env_(meeting_.environment()),
        options_(meeting_.options()),
        device_(layout.device),
        axes_(layout.axes),
        store_(meeting_.store()) {
    RING_CHECK(axes_.size() == env_.world, "mesh: axes of ", axes_.size(), " ranks in a world of ", env_.world);
    if (env_.world > 1) queue_ = std::make_shared<CommQueue>();
    if (env_.world > 1 && device_.backend == Backend::cuda) watchdog_ = make_nccl_watchdog(device_, env_.world);
    if (env_.world > 1 && options_.liveness.count() > 0) watch();
    make_groups(layout.unions);
    find_nodes(layout.emulate_nodes);
  }

  // Fake mesh: the other ranks do not exist.
  Impl(const MeshLayout& layout, int rank, TransferObserver seen)
      : meeting_({}), device_(layout.device), axes_(layout.axes), seen_(std::move(seen)), fake_(true) {
    env_.rank = rank;
    env_.world = axes_.size();
    ranks_of_node_ = layout.emulate_nodes > 0 ? layout.emulate_nodes : env_.world;
    find_nodes(ranks_of_node_);
    make_groups(layout.unions);
  }

  // Closes communicators in the same order on all ranks, because closing may wait for the other ranks.
  ~Impl() {
    if (liveness_) liveness_->say_goodbye();
    for (Group& g : groups_) g.comm.reset();
  }

  void set_layout(const MeshLayout& layout) {
    RING_CHECK(MeshAxes(layout.axes).size() == env_.world && layout.device == device_,
               "mesh: a layout of a different size or device");
    axes_ = MeshAxes(layout.axes);
    named_.clear();
    make_groups(layout.unions);
  }

  int rank() const { return env_.rank; }
  int world() const { return env_.world; }
  const Device& device() const { return device_; }
  Store* store() { return store_.get(); }
  const MeshAxes& axes() const { return axes_; }
  Communicator& group(const AxisNames& names) {
    const auto it = named_.find(names);
    if (it != named_.end()) return *it->second;
    for (const std::string& name : names) axes_.axis(name);
    fail("mesh: no group ", joined(names, " x "), " was declared in its layout");
  }
  NodeGroups groups_by_node(const AxisNames& names, int per_node) {
    const std::string name = joined(names, " x ");
    const std::vector<int> all = axes_.group(env_.rank, names);
    const int size = static_cast<int>(all.size());
    RING_CHECK(per_node >= 1 && size % per_node == 0, "mesh: ", per_node, " ranks per node do not divide the ", size,
               " ranks of ", name);
    const int own = static_cast<int>(std::find(all.begin(), all.end(), env_.rank) - all.begin());
    const AxisTransfers transfers = names.size() == 1 ? axes_.axis(names[0]).transfers : AxisTransfers::between_kernels;
    std::vector<int> node, between;
    for (int i = 0; i < size; ++i) {
      if (i / per_node == own / per_node) node.push_back(all[static_cast<std::size_t>(i)]);
      if (i % per_node == own % per_node) between.push_back(all[static_cast<std::size_t>(i)]);
    }
    Communicator& here = *make_group(name + " in node", node, device_.backend, transfers);
    return {here, *make_group(name + " between nodes", between, device_.backend, transfers)};
  }
  Communicator& all() { return *all_; }
  Communicator& host() { return *host_; }
  Communicator& background() {
    if (!background_)
      background_ = env_.world == 1 || fake_ ? host_ : make_background(kBackgroundGroup, groups_.front().ranks);
    return *background_;
  }
  Communicator& host_group(const AxisNames& names) {
    if (fake_) return *host_;
    return *make_group(joined(names, " x ") + " on hosts", axes_.group(env_.rank, names), Backend::cpu);
  }
  Communicator& background_group(const AxisNames& names) {
    if (fake_) return *host_;
    Communicator*& group = background_groups_[names];
    if (!group) group = make_background(joined(names, " x ") + " beside steps", axes_.group(env_.rank, names));
    return *group;
  }
  std::vector<int> nodes_along(const AxisNames& names) const {
    std::vector<int> nodes;
    for (const int r : axes_.group(env_.rank, names)) nodes.push_back(nodes_[static_cast<std::size_t>(r)]);
    return nodes;
  }
  void check() {
    if (watchdog_) check_nccl(*watchdog_);
  }
  void abort(const std::string& reason) { abort_all(reason); }
  bool idle() const {
    return std::ranges::all_of(groups_, [](const Group& g) { return g.comm->idle(); });
  }
  const std::uint32_t* abort_flag() const { return watchdog_ ? nccl_abort_flag(*watchdog_) : nullptr; }
  void check_agreement(const Topic& topic, const Facts& facts) {
    if (store_)
      ring::agree(*store_, env_.rank, env_.world, topic, facts, options_.timeout, [this] { check_aborted(); });
  }

 private:
  using Owned = std::unique_ptr<Communicator>;
  struct Group {
    std::vector<int> ranks;
    Backend backend;
    AxisTransfers transfers;
    Owned comm;
    bool background = false;  // true if it has its own operation order
  };

  void make_groups(const std::vector<AxisNames>& unions);
  void find_nodes(int emulate);
  void watch();
  void abort_all(const std::string& reason);
  void check_aborted();
  void name_group(const AxisNames&, AxisTransfers = AxisTransfers::between_kernels);
  Communicator* make_group(const std::string& name, std::vector<int> ranks, Backend,
                           AxisTransfers = AxisTransfers::between_kernels);
  FakePlacement placement_of(const std::vector<int>& ranks) const;
  Communicator* make_background(const std::string& name, const std::vector<int>& ranks);
  Communicator* keep_group(Group, const std::string& name);
  static void rename(Group&, const std::string& name);

  Meeting meeting_;
  WorkerEnvironment env_;
  CommOptions options_;
  Device device_;
  MeshAxes axes_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<CommQueue> queue_;
  std::shared_ptr<NcclWatchdog> watchdog_;
  std::vector<Group> groups_;  // distinct groups in the order of creation, which is the same on all ranks
  std::map<AxisNames, Communicator*> named_, background_groups_;
  Communicator *all_ = nullptr, *host_ = nullptr, *background_ = nullptr;
  std::vector<int> nodes_;  // node index by rank
  std::mutex mutex_;        // protects aborted_, and groups_ while they are created
  std::string aborted_;
  std::shared_ptr<Liveness> liveness_;  // aborts all groups when a rank is lost
  TransferObserver seen_;
  bool fake_ = false;
  int ranks_of_node_ = 1;  // used only by a fake mesh
};

// Creates the groups in the same order on every rank.
void Mesh::Impl::make_groups(const std::vector<AxisNames>& unions) {
  std::vector<int> every;
  for (int r = 0; r < env_.world; ++r) every.push_back(r);
  host_ = make_group("host", every, Backend::cpu);
  all_ = make_group("all", every, device_.backend);
  for (const AxisNames& names : unions) name_group(names);
  for (const MeshAxis& axis : axes_.all()) name_group({axis.name}, axis.transfers);
}

void Mesh::Impl::name_group(const AxisNames& names, AxisTransfers transfers) {
  named_[names] = make_group(joined(names, " x "), axes_.group(env_.rank, names), device_.backend, transfers);
}

Communicator* Mesh::Impl::make_group(const std::string& name, std::vector<int> ranks, Backend backend,
                                     AxisTransfers transfers) {
  for (Group& g : groups_)
    if (g.ranks == ranks && g.backend == backend && g.transfers == transfers && !g.background &&
        !fake_)  // a fake mesh shares no communicators: it reports transfers by group name
      return rename(g, name), g.comm.get();
  const int size = static_cast<int>(ranks.size());
  const int own = static_cast<int>(std::find(ranks.begin(), ranks.end(), env_.rank) - ranks.begin());
  // Groups of the same name differ in their first rank.
  const std::string key = str("group/", name, "/", ranks.front());
  CommOptions options = options_;
  options.ranks = ranks;
  // Transfers that overlap with kernels have their own communicator and order, so that a running gradient reduction
  // does not delay attention's keys.
  options.copy_engines = options_.copy_engines && transfers != AxisTransfers::between_kernels;
  if (transfers == AxisTransfers::beside_kernels) options.nccl_max_ctas = kFewCtas;
  Owned comm;
  if (size == 1)
    comm = make_self_communicator();
  else if (fake_)
    comm = make_fake_communicator(name, own, size, name == "host" ? TransferObserver() : seen_, placement_of(ranks));
  else if (backend == Backend::cuda)
    comm = make_nccl_communicator({own, size, device_, key}, store_, watchdog_, options);
  else
    comm = make_gloo_communicator(own, size, store_, key, queue_, options);
  return keep_group({std::move(ranks), backend, transfers, std::move(comm)}, name);
}

FakePlacement Mesh::Impl::placement_of(const std::vector<int>& ranks) const {
  FakePlacement p{.ranks_of_node = std::min(ranks_of_node_, env_.world)};
  for (const int r : ranks) p.nodes.push_back(nodes_[static_cast<std::size_t>(r)]);
  return p;
}

Communicator* Mesh::Impl::make_background(const std::string& name, const std::vector<int>& ranks) {
  const int size = static_cast<int>(ranks.size());
  const int own = static_cast<int>(std::find(ranks.begin(), ranks.end(), env_.rank) - ranks.begin());
  CommOptions options = options_;
  options.ranks = ranks;
  options.timeout = kBesideSteps;
  Owned comm = size == 1 ? make_self_communicator()
                         : make_gloo_communicator(own, size, store_, str("group/", name, "/", ranks.front()),
                                                  std::make_shared<CommQueue>(), options);
  return keep_group({ranks, Backend::cpu, AxisTransfers::between_kernels, std::move(comm), true}, name);
}

// Renames the group in flight logs if `name` is a single axis, because axis names are preferred for shared groups.
void Mesh::Impl::rename(Group& g, const std::string& name) {
  if (name.find(' ') == std::string::npos && name != "all") g.comm->flights().rename(name);
}

Communicator* Mesh::Impl::keep_group(Group group, const std::string& name) {
  const auto size = static_cast<int>(group.ranks.size());
  if (size > 1 && !fake_) group.comm->record(FlightLog(own_status().flights, name, group.ranks.front(), size));
  const std::lock_guard lock(mutex_);
  if (!aborted_.empty()) group.comm->abort(aborted_);
  return groups_.emplace_back(std::move(group)).comm.get();
}

void Mesh::Impl::find_nodes(int emulate) {
  if (emulate > 0)
    for (int r = 0; r < env_.world; ++r) nodes_.push_back(r / emulate);
  else
    nodes_ = number(gather_host(*host_, host_identity()));
}

void Mesh::Impl::watch() {
  Liveness::Setup setup;
  setup.rank = env_.rank;
  setup.limit = setup.store_limit = options_.liveness;
  if (is_store_on_this_host(env_)) setup.store_limit = kWhileConnected;
  setup.server = env_.host_store ? "rank 0" : "the launcher";
  setup.hosts_store = meeting_.hosts_store();
  liveness_ = std::make_shared<Liveness>(*store_, setup, [this](const std::string& why) { abort_all(why); });
  options_.who_is_lost = [weak = std::weak_ptr(liveness_)] {
    const auto alive = weak.lock();
    return alive ? alive->lost_rank_text() : "";
  };
}

void Mesh::Impl::abort_all(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (aborted_.empty()) aborted_ = reason;
  for (const Group& g : groups_) g.comm->abort(reason);
}

void Mesh::Impl::check_aborted() {
  const std::lock_guard lock(mutex_);
  if (!aborted_.empty()) throw PeerLost(aborted_);
}

Mesh::Mesh(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Mesh::~Mesh() = default;

std::unique_ptr<Mesh> Mesh::join(const WorkerEnvironment& env, const CommOptions& options, const MeshLayout& layout) {
  return join(Meeting(env, options), layout);
}

std::unique_ptr<Mesh> Mesh::fake(const MeshLayout& layout, int rank, const TransferObserver& seen) {
  return std::unique_ptr<Mesh>(new Mesh(std::make_unique<Impl>(layout, rank, seen)));
}

void Mesh::set_layout(const MeshLayout& layout) { impl_->set_layout(layout); }

std::unique_ptr<Mesh> Mesh::join(Meeting meeting, const MeshLayout& layout) {
  return std::unique_ptr<Mesh>(new Mesh(std::make_unique<Impl>(std::move(meeting), layout)));
}

int Mesh::rank() const { return impl_->rank(); }
int Mesh::world() const { return impl_->world(); }
const Device& Mesh::device() const { return impl_->device(); }
int Mesh::degree(const std::string& axis) const { return impl_->axes().axis(axis).degree; }
int Mesh::coord(const std::string& axis) const { return impl_->axes().coord(rank(), axis); }
Communicator& Mesh::group(const AxisNames& names) { return impl_->group(names); }
Mesh::NodeGroups Mesh::groups_by_node(const AxisNames& names, int per_node) {
  return impl_->groups_by_node(names, per_node);
}
Communicator& Mesh::all() { return impl_->all(); }
Communicator& Mesh::host() { return impl_->host(); }
Communicator& Mesh::background() { return impl_->background(); }
Communicator& Mesh::host_group(const AxisNames& names) { return impl_->host_group(names); }
Communicator& Mesh::background_group(const AxisNames& names) { return impl_->background_group(names); }
std::vector<int> Mesh::nodes_along(const AxisNames& names) const { return impl_->nodes_along(names); }
Store* Mesh::store() { return impl_->store(); }
void Mesh::check() { impl_->check(); }
void Mesh::abort(const std::string& reason) { impl_->abort(reason); }
bool Mesh::idle() const { return impl_->idle(); }
const std::uint32_t* Mesh::abort_flag() const { return impl_->abort_flag(); }
void Mesh::check_agreement(const Topic& topic, const Facts& facts) { impl_->check_agreement(topic, facts); }

}  // namespace ring
