#include "job/http_clients.h"

#include <utility>

namespace ring {

std::map<std::string, std::size_t> HttpClients::connections_by_address() const {
  std::map<std::string, std::size_t> count;
  for (const auto& [socket, client] : clients_)
    if (client.state != State::closing) ++count[client.address];
  return count;
}

std::optional<int> HttpClients::on_open(int socket, const std::string& address, Time now) {
  clients_[socket] = {address, State::waits_for_request, now};
  const std::map<std::string, std::size_t> count = connections_by_address();
  std::size_t total = 0;
  for (const auto& [other, n] : count) total += n;
  const bool address_is_full = count.at(address) > limits_.per_address;
  if (!address_is_full && total <= limits_.connections) return std::nullopt;
  auto chosen = clients_.find(socket);
  const auto rank = [&](const Client& c) { return std::pair(count.at(c.address), now - c.since); };
  for (auto at = clients_.begin(); at != clients_.end(); ++at) {
    const Client& c = at->second;
    if (c.state != State::waits_for_request || (address_is_full && c.address != address)) continue;
    if (rank(c) > rank(chosen->second)) chosen = at;
  }
  chosen->second.state = State::closing;
  return chosen->first;
}

void HttpClients::set_state(int socket, State state, Time now) {
  const auto at = clients_.find(socket);
  if (at == clients_.end() || at->second.state == State::closing) return;
  at->second.state = state;
  at->second.since = now;
}

void HttpClients::on_request(int socket) { set_state(socket, State::working, {}); }
void HttpClients::on_reply_begin(int socket, Time now) { set_state(socket, State::replying, now); }
void HttpClients::on_reply_end(int socket, Time now) { set_state(socket, State::waits_for_request, now); }
void HttpClients::on_close(int socket) { clients_.erase(socket); }

std::optional<HttpClients::Time> HttpClients::deadline_of(const Client& c) const {
  if (c.state == State::waits_for_request) return c.since + limits_.request;
  if (c.state == State::replying) return c.since + limits_.reply;
  return std::nullopt;
}

std::vector<int> HttpClients::take_overdue(Time now) {
  std::vector<int> sockets;
  for (auto& [socket, client] : clients_) {
    const std::optional<Time> deadline = deadline_of(client);
    if (!deadline || *deadline > now) continue;
    client.state = State::closing;
    sockets.push_back(socket);
  }
  return sockets;
}

}  // namespace ring
