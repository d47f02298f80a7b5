#pragma once
// Measures messages between all processes of a run: a fixed time per message, and a rate for the bytes.

#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "kernels/kernel.h"

namespace ring {

struct MessageSample {
  double bytes = 0, seconds = 0;
};

struct MessageTime {
  double seconds = 0;           // latency: fixed time per message
  double bytes_per_second = 0;  // bandwidth: rate of the bytes, without the latency
};

// Fits by least squares of relative errors, so that short messages have as much weight as long ones. If noise would
// make a part negative, the fixed part is 0 instead. Requires at least two different sizes, each with positive bytes
// and seconds.
MessageTime fit_message_time(const std::vector<MessageSample>&);

// Returns the seconds per message when messages are queued back to back for about `target_seconds`: on the slowest
// rank, in the best of several rounds. Collective over `host`, a communicator for host memory, which starts each round
// and agrees on the number of messages, so that queue_one may be a collective. All ranks return the same value.
double measure_message_seconds(const ExecContext&, Communicator& host, double target_seconds,
                               const std::function<void()>& queue_one);

inline constexpr double kMessageSeconds = 0.1;  // target seconds of a round of messages of one size

// The following functions send messages of several sizes in `group` and fit their times. Once a message takes long,
// larger ones are not sent. Collective over `group` and over `host`, which may have more ranks than `group`: then all
// groups send at the same time.

// Measures the mean time of an all-gather and a reduce-scatter, as a function of the bytes that each rank passes on.
MessageTime measure_collective_time(const ExecContext&, Communicator& group, Communicator& host,
                                    double seconds = kMessageSeconds);
// Measures an all-reduce in f32, as a function of the bytes that each rank passes on: 2 (n - 1) / n of the tensor.
MessageTime measure_all_reduce_time(const ExecContext&, Communicator& group, Communicator& host,
                                    double seconds = kMessageSeconds);
// Measures a ring exchange, in which each rank sends to the next rank and receives from the previous one, as a function
// of the bytes of a message.
MessageTime measure_exchange_time(const ExecContext&, Communicator& group, Communicator& host,
                                  double seconds = kMessageSeconds);
// Measures the first two ranks of `group`, which send to each other, while all others are idle. The ranks of only one
// group pass active = true.
MessageTime measure_pair_time(const ExecContext&, Communicator& group, Communicator& host, bool active,
                              double seconds = kMessageSeconds);

}  // namespace ring
