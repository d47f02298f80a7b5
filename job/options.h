#pragma once
// Options that every transport needs.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ring {

class HostLink;
class Store;

#ifdef NDEBUG
inline constexpr bool kVerifyByDefault = false;
#else
inline constexpr bool kVerifyByDefault = true;
#endif

// Liveness limit if there are several hosts; it is longer, because a network link can be down for some seconds.
inline constexpr std::chrono::milliseconds kSilenceOverNetwork{30'000};
inline constexpr const char* kMoreTime = "to wait longer, set RINGMASTER_COMM_TIMEOUT or `launch --timeout` (seconds)";

struct CommOptions {
  std::string address = "127.0.0.1";                  // numeric address of this host that the other ranks can reach
  std::chrono::milliseconds connect_timeout{60'000};  // maximum time until all ranks are connected
  std::chrono::milliseconds timeout{300'000};         // maximum time of one communication operation
  std::chrono::milliseconds liveness{3'000};  // a rank that is silent for longer counts as dead; 0 disables the check
  bool verify = kVerifyByDefault;  // true to compare operation, shape and dtype between ranks before each operation
  bool copy_engines = true;        // true to exchange data between GPUs of one host without NCCL if possible
  int nccl_max_ctas = 0;           // maximum number of thread blocks of an NCCL kernel; 0 lets NCCL choose
  std::vector<int> ranks;          // the members' ranks in the run, for messages; empty means 0, 1, ...

  // Called when a connection breaks, because the neighbour may have left due to another rank's failure. Returns "" if
  // unknown.
  std::function<std::string()> who_is_lost = {};
  // If set, replaces Gloo for transfers in host memory: connects the ranks of the group `name`. Collective.
  std::function<std::unique_ptr<HostLink>(int rank, int size, Store&, const std::string& name, const CommOptions&)>
      make_link = {};

  int rank_of_run(int member) const { return ranks.empty() ? member : ranks[static_cast<std::size_t>(member)]; }
};

}  // namespace ring
