#include "comm/mesh/meeting.h"

#include <chrono>
#include <thread>

#include "core/awake_clock.h"
#include "core/check.h"

namespace ring {
namespace {

using Clock = AwakeClock;

// Hosts the store on the first free port of the range. The cookie tells other ranks which store is ours.
std::unique_ptr<StoreServer> host_store(const WorkerEnvironment& env) {
  // If there are several nodes, listens on all addresses, because the host's name may resolve to loopback on the host
  // itself. The secret protects the store.
  const bool v6 = env.store.host.find(':') != std::string::npos;
  const std::string host = is_loopback(env.store.host) ? env.store.host : v6 ? "::" : "0.0.0.0";
  std::string reason;
  for (int k = 0; k < env.store_ports; ++k) {
    try {
      return std::make_unique<StoreServer>(Endpoint{host, env.store.port + k}, env.cookie);
    } catch (const Error& e) {
      reason = e.what();
    }
  }
  fail("rank 0 found no free port in ", env.store.port, "..", env.store.port + env.store_ports - 1, ": ", reason,
       "; set MASTER_PORT to a different port");
}

std::unique_ptr<Store> find_store(const WorkerEnvironment& env, Timeout timeout) {
  if (env.store_ports == 1)
    return connect_store(env.store, env.cookie, timeout, is_store_on_this_host(env) ? kWhileConnected : kAnswerTime);
  const auto deadline = Clock::now() + timeout;
  std::string reason;  // error at the first port, which rank 0 prefers
  do {
    for (int k = 0; k < env.store_ports; ++k) {
      try {
        return try_store({env.store.host, env.store.port + k}, env.cookie, Timeout(100));
      } catch (const Error& e) {
        if (k == 0) reason = e.what();
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (Clock::now() < deadline);
  fail("rank 0 did not arrive within ", static_cast<double>(timeout.count()) / 1000, " s; is it running, and can rank ",
       env.rank, " reach ", to_string(env.store), "? The last attempt failed with: ", reason,
       ". All ranks need the same address and port, and the same number of processes (here ", env.world, "); ",
       kMoreTime);
}

// Agents that met at a loopback address are on one host, even if they call themselves several nodes.
void refuse_loopback_between_nodes(const WorkerEnvironment& env, const std::string& address) {
  if (env.source == "ringmaster" && is_loopback(env.store.host)) return;
  if (env.local_world < env.world && is_loopback(address))
    fail("rank ", env.rank, " has the address ", address, ", which no other node can reach (", env.local_world, " of ",
         env.world, " ranks are on this one): set RINGMASTER_ADDRESS to this node's address");
}

}  // namespace

bool is_store_on_this_host(const WorkerEnvironment& env) { return !env.host_store && is_loopback(env.store.host); }

Meeting::Meeting(const WorkerEnvironment& env, const CommOptions& options) : env_(env), options_(options) {
  if (env.world == 1) return;
  if (env.host_store && env.rank == 0) server_ = host_store(env);
  store_ = find_store(env, options.connect_timeout);
  if (options_.address.empty()) options_.address = store_->local_address();
  refuse_loopback_between_nodes(env, options_.address);
}

void Meeting::check_agreement(const Topic& topic, const Facts& facts) {
  if (store_) ring::agree(*store_, env_.rank, env_.world, topic, facts, options_.connect_timeout);
}

}  // namespace ring
