#pragma once
// Measures messages between all processes of a run: fixed seconds, and a rate for the bytes.

#include <functional>
#include <vector>

#include "comm/mesh/mesh.h"
#include "kernels/kernel.h"

namespace ring {

struct MessageSample {
  double bytes = 0, seconds = 0;
};

struct MessageTime {
  double seconds = 0;           // latency: the fixed part of every message
  double bytes_per_second = 0;  // bandwidth: the rate of the bytes beyond latency
};

// Fits by least squares of relative errors, so that short messages weigh as much as long ones. If noise would
// make a part negative, the fixed part is 0 instead. Requires at least two sizes, each with positive bytes and
// seconds.
MessageTime fit_messages(const std::vector<MessageSample>&);

// Returns seconds per message when it is queued back to back for about `seconds`: on the slowest rank, in the best of
// several rounds. Collective over `host`, a communicator of host memory, which starts each round and agrees on the
// number of messages, so that queue_one may be a collective. All ranks return the same.
double message_seconds(const ExecContext&, Communicator& host, double seconds, const std::function<void()>& queue_one);

// Measures all-gather and reduce-scatter, by the bytes that a rank passes on. Collective.
MessageTime collective_time(const ExecContext&, Mesh&);
// Measures a ring exchange, in which each rank sends to the next and receives from the previous one, by the bytes of a
// message. Collective.
MessageTime exchange_time(const ExecContext&, Mesh&);

}  // namespace ring
