#pragma once
// The process of one rank, which trains whatever it is told to.

namespace ring::test {

// Answers orders (order.h) from the socket until the other side closes it. Groups of ranks, the stream and measured
// choices stay from one order to the next as far as they fit. Ends the process after a run that failed. Returns the
// exit code.
int serve_orders(int socket);

}  // namespace ring::test
