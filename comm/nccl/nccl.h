#pragma once
// NCCL for ranks on GPUs, one device each. Operations run on a stream of the communicator's own, in the order in which
// they were started: `after` and Work::wait(stream) order it with others, and the host goes on. Started by one thread
// only. The library is loaded at its first use.
//
// Exchanges between GPUs of one host go by copy engines where options.copy_engines asks for it and all ranks can reach
// each other's memory. They too run after the collectives that were started before, and those after them; but of two
// exchanges the later one may run first where the peers differ, unless its `after` names the earlier one.
//
// Memory: a Work's tensors may be freed once the stream that owns them (whose allocator they came from) waited for it,
// or the host did. Memory that was just allocated on a stream is there for the communicator after an event of that
// stream.
//
// Sums: the same ranks, sizes and NCCL give the same bits, but not those of the sum in rank order. max does not keep a
// NaN.

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/nccl/group.h"
#include "job/options.h"
#include "job/store.h"

namespace ring {

bool nccl_available();  // in this build

// The thread of a process that looks after its NCCL communicators: when one of them reports an error or an operation
// takes longer than options.timeout, all are aborted, so that no rank waits for one that will not come.
class NcclWatchdog;
std::shared_ptr<NcclWatchdog> make_nccl_watchdog();  // Error: NCCL is not in this build (says how to get it)
void check_nccl(NcclWatchdog&);                      // throws PeerLost once a communicator was aborted

// Collective: every rank of the group calls it. Error: the ranks did not meet within options.connect_timeout, or NCCL
// cannot be loaded.
std::unique_ptr<Communicator> make_nccl_communicator(const NcclGroup&, std::shared_ptr<Store>,
                                                     std::shared_ptr<NcclWatchdog>, const CommOptions& = {});

}  // namespace ring
