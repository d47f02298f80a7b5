#pragma once
// What messages between all processes of a run take: a fixed part, and their bytes at a rate.

#include <functional>
#include <vector>

#include "comm/mesh/mesh.h"
#include "kernels/kernel.h"

namespace ring {

struct MessageSample {
  double bytes = 0, seconds = 0;
};

struct MessageTime {
  double seconds = 0;           // of the shortest
  double bytes_per_second = 0;  // that the others take more
};

// Least squares of the relative distances, so that short messages count like long ones. Neither part is negative: noise
// that says so is all rate. At least two sizes, each of more than 0 bytes and seconds.
MessageTime fit_messages(const std::vector<MessageSample>&);

// Seconds of one message, queued again and again for about `seconds`: those of the slowest rank in the best of some
// rounds. Collective, on a communicator of host memory: the ranks begin each round together and agree on how often it
// is queued, so that queue_one may be a collective, too. All of them get the same.
double message_seconds(const ExecContext&, Communicator& host, double seconds, const std::function<void()>& queue_one);

// Collective. Of gathering and of scattering sums, by the bytes that a rank passes on; and of an exchange, in which
// each rank sends to the next one and receives from the one before, by the bytes of a message.
MessageTime collective_time(const ExecContext&, Mesh&);
MessageTime exchange_time(const ExecContext&, Mesh&);

}  // namespace ring
