#pragma once
// What every transport needs to know.

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace ring {

#ifdef NDEBUG
inline constexpr bool kVerifyByDefault = false;
#else
inline constexpr bool kVerifyByDefault = true;
#endif

// On several hosts: a link that is down for some seconds is no death.
inline constexpr std::chrono::milliseconds kSilenceOverNetwork{30'000};
inline constexpr const char* kMoreTime = "RINGMASTER_COMM_TIMEOUT or `launch --timeout` allow more seconds";

struct CommOptions {
  std::string address = "127.0.0.1";                  // numeric, of this host, that the other ranks can reach
  std::chrono::milliseconds connect_timeout{60'000};  // until all ranks have met
  std::chrono::milliseconds timeout{300'000};         // of one operation
  std::chrono::milliseconds liveness{3'000};  // a rank that is silent for longer is taken for dead; 0: nobody looks
  bool verify = kVerifyByDefault;             // compare operation, shape and dtype between ranks before each operation
  bool copy_engines = true;                   // exchanges between GPUs of one host without NCCL, where it can be done
  int nccl_max_ctas = 0;   // blocks of an NCCL kernel, where exchanges go by NCCL; 0: as many as it likes
  std::vector<int> ranks;  // of the run, for messages: those of this group in its order; empty: 0, 1, ...

  // Asked when a connection breaks: the neighbour may have left because of somebody else. Empty: nobody knows.
  std::function<std::string()> who_is_lost = {};

  int rank_of_run(int member) const { return ranks.empty() ? member : ranks[static_cast<std::size_t>(member)]; }
};

}  // namespace ring
