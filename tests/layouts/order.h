#pragma once
// What a test asks of a worker, and what the worker answers: messages of JSON.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ring::test {

// A training run of one rank.
struct Order {
  int rank = 0, world = 1;
  int gpu = 0;         // number of the device, if run.device is cuda
  int groups = 0;      // a number of the world's groups of ranks: orders with equal numbers share them
  int store_port = 0;  // of the world's store at 127.0.0.1; for several ranks
  std::string cookie;  // of the store
  std::vector<std::string> settings;
  int steps = 0;
};

struct Answer {
  std::string refused;                           // why the settings were refused, before any other rank was met
  std::string error;                             // why the run failed; empty: it did not
  std::vector<double> losses, norms;             // of each step; norms: of the gradient
  std::map<std::string, std::uint32_t> regions;  // checksums of this rank's part of the state, by tensor and region
  bool replayed = false;                         // the last step was a CUDA graph
};

std::string to_text(const Order&);
std::string to_text(const Answer&);
Order order_of(const std::string& text);
Answer answer_of(const std::string& text);

// Sends a message over a socket of packets, unless the other side has closed it.
void send_message(int socket, const std::string& text);
// Waits for a message. Returns false once the other side has closed the socket.
bool receive_message(int socket, std::string& text);

}  // namespace ring::test
