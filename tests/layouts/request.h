#pragma once
// Messages between a test and its workers, as JSON: a test sends a Request, and the worker answers with a Reply.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ring::test {

// Asks one rank to train.
struct Request {
  int rank = 0, world = 1;
  int gpu = 0;         // index of the device if run.device is cuda
  int mesh = 0;        // number of the mesh to train in: requests with equal numbers share it
  int store_port = 0;  // port of the store at 127.0.0.1; used if world > 1
  std::string cookie;  // secret of the store
  std::vector<std::string> settings;
  int steps = 0;
};

struct Reply {
  std::string refused;  // why the settings were refused, which happens before ranks connect; "" if accepted
  std::string error;    // why the run failed; "" if it did not
  std::vector<double> losses, norms;             // loss and gradient norm of each step
  std::map<std::string, std::uint32_t> regions;  // checksums of this rank's part of the state, by tensor and region
  bool replayed = false;                         // true if the last step was replayed as a CUDA graph
  std::vector<int> gpus;                         // on which this process has a CUDA context
};

std::string to_text(const Request&);
std::string to_text(const Reply&);
Request request_of(const std::string& text);
Reply reply_of(const std::string& text);

// Sends a message over a SOCK_SEQPACKET socket. Does nothing if the other side has closed it.
void send_message(int socket, const std::string& text);
// Waits for a message. Returns false once the other side has closed the socket.
bool receive_message(int socket, std::string& text);

}  // namespace ring::test
