#include "comm/mesh.h"

#include <algorithm>
#include <array>
#include <thread>

#include "comm/gloo/gloo.h"
#include "comm/self.h"

namespace ring {
namespace {

constexpr std::array<const char*, 4> kAxes = {"dp", "cp", "tp", "pp"};
using Clock = std::chrono::steady_clock;

void check_degrees(const std::map<std::string, int>& degrees, int world) {
  int product = 1;
  for (const auto& [name, degree] : degrees) {
    if (std::find(kAxes.begin(), kAxes.end(), name) == kAxes.end())
      fail("mesh: no axis '", name, "'; there are dp, cp, tp, pp");
    if (degree < 1) fail("mesh: the degree of axis '", name, "' is ", degree, "; at least 1");
    if (name != "dp" && degree > 1)
      fail("mesh: axis '", name, "' of degree ", degree, " is not in this version; set it to 1 and use dp: ", world);
    product *= degree;
  }
  if (degrees.count("dp") && product != world)
    fail("mesh: the degrees multiply to ", product, ", but ", world, " processes were started");
}

// The first free port of the range; the cookie tells the others which one is ours.
std::unique_ptr<StoreServer> host_store(const WorkerEnvironment& env) {
  // Several nodes: the host's name may mean a loopback address on the host itself, so listen on all; the cookie guards.
  const std::string host = env.local_world == env.world ? env.store.host : "0.0.0.0";
  std::string reason;
  for (int k = 0; k < env.store_ports; ++k) {
    try {
      return std::make_unique<StoreServer>(Endpoint{host, env.store.port + k}, env.cookie);
    } catch (const Error& e) {
      reason = e.what();
    }
  }
  fail("rank 0 found no free port in ", env.store.port, "..", env.store.port + env.store_ports - 1, ": ", reason,
       "; set MASTER_PORT to another one");
}

std::unique_ptr<Store> find_store(const WorkerEnvironment& env, Timeout timeout) {
  if (env.store_ports == 1) return connect_store(env.store, env.cookie, timeout);
  const auto deadline = Clock::now() + timeout;
  std::string reason;
  do {
    for (int k = 0; k < env.store_ports; ++k) {
      try {
        return connect_store({env.store.host, env.store.port + k}, env.cookie, Timeout(100));
      } catch (const Error& e) {
        if (k == 0) reason = e.what();
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (Clock::now() < deadline);
  fail("rank ", env.rank, " of ", env.world, " did not find rank 0's store on ports ", env.store.port, "..",
       env.store.port + env.store_ports - 1, " of ", env.store.host, ": ", reason);
}

void refuse_loopback_between_nodes(const WorkerEnvironment& env, const std::string& address) {
  if (env.local_world < env.world && (address.rfind("127.", 0) == 0 || address == "::1"))
    fail("rank ", env.rank, " would be reached at ", address, ", which no other node can reach (", env.local_world,
         " of ", env.world, " ranks are on this one): set RINGMASTER_ADDRESS to this node's address");
}

}  // namespace

std::unique_ptr<Mesh> Mesh::join(const WorkerEnvironment& env, const CommOptions& options,
                                 const std::map<std::string, int>& degrees) {
  check_degrees(degrees, env.world);
  std::unique_ptr<Mesh> mesh(new Mesh);
  mesh->rank_ = env.rank;
  mesh->world_ = env.world;
  mesh->local_rank_ = env.local_rank;
  for (const char* name : kAxes) mesh->axes_[name] = make_self_communicator();
  if (env.world == 1) return mesh;
  if (env.host_store && env.rank == 0) mesh->server_ = host_store(env);
  mesh->store_ = find_store(env, options.connect_timeout);
  CommOptions own = options;
  if (own.address.empty()) own.address = mesh->store_->local_address();
  refuse_loopback_between_nodes(env, own.address);
  mesh->queue_ = std::make_shared<CommQueue>();
  mesh->axes_["dp"] = make_gloo_communicator(env.rank, env.world, mesh->store_, "dp", mesh->queue_, own);
  return mesh;
}

Communicator& Mesh::axis(const std::string& name) {
  const auto it = axes_.find(name);
  if (it == axes_.end()) fail("mesh: no axis '", name, "'; there are dp, cp, tp, pp");
  return *it->second;
}

}  // namespace ring
