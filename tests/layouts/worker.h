#pragma once
// The worker process of one rank, which trains what the requests ask for.

namespace ring::test {

// Answers requests (request.h) from the socket until the other side closes it. The stream and the measured choices are
// reused for all requests, and the mesh for requests with the same mesh number. Exits the process after a failed run.
// Returns the exit code.
int serve_requests(int socket);

}  // namespace ring::test
