#pragma once
// NCCL for ranks on GPUs, one device each. Operations run on the communicator's own stream, in the order in which they
// are started. `after` and Work::wait(stream) order them with other streams; the host does not block. One thread starts
// all operations. The library is loaded at first use.
//
// Exchanges between GPUs of one host use copy engines if options.copy_engines is set and all ranks can access each
// other's memory. They run after the collectives that were started before, and later collectives run after them. Of two
// exchanges with different peers, however, the later one may run first, unless its `after` depends on the earlier one.
//
// Memory: a Work's tensors may be freed once the host, or the stream whose allocator they came from, has waited for the
// Work. The communicator may use memory that was just allocated on a stream only after an event of that stream.
//
// Sums: the same ranks, sizes and NCCL version give bit-identical results, which may differ from the sum in rank order.
// max does not propagate NaN.

#include <cstdint>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/nccl/group.h"
#include "job/options.h"
#include "job/store.h"

namespace ring {

bool nccl_available();  // true if NCCL is in this build

// The thread that watches all NCCL communicators of a process. If one of them reports an error, or an operation takes
// longer than options.timeout, it aborts all, so that no rank waits forever.
class NcclWatchdog;
// Throws Error, which says how to get NCCL, if this build lacks it. world: number of ranks in the run.
std::shared_ptr<NcclWatchdog> make_nccl_watchdog(const Device& device, int world);
void check_nccl(NcclWatchdog&);  // throws PeerLost if a communicator was aborted
// Returns a flag in page-locked host memory that is 0 until a communicator is aborted. It becomes 1 after the
// point from which check_nccl() throws, and before this rank aborts operations on the device (see Mesh::abort_flag()).
const std::uint32_t* nccl_abort_flag(const NcclWatchdog&);

// Collective over the group. Throws Error if the ranks do not meet within options.connect_timeout, or if NCCL cannot be
// loaded.
std::unique_ptr<Communicator> make_nccl_communicator(const NcclGroup&, std::shared_ptr<Store>,
                                                     std::shared_ptr<NcclWatchdog>, const CommOptions& = {});

}  // namespace ring
