#include "tests/layouts/request.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/check.h"

namespace ring::test {

namespace {
constexpr std::size_t kMaxMessage = std::size_t{1} << 20;  // bytes
}

std::string to_text(const Request& o) {
  return nlohmann::json{{"rank", o.rank},         {"world", o.world},   {"gpu", o.gpu},
                        {"mesh", o.mesh},         {"cookie", o.cookie}, {"store_port", o.store_port},
                        {"settings", o.settings}, {"steps", o.steps}}
      .dump();
}

Request request_of(const std::string& text) {
  const auto j = nlohmann::json::parse(text);
  Request o;
  j.at("rank").get_to(o.rank);
  j.at("world").get_to(o.world);
  j.at("gpu").get_to(o.gpu);
  j.at("mesh").get_to(o.mesh);
  j.at("store_port").get_to(o.store_port);
  j.at("cookie").get_to(o.cookie);
  j.at("settings").get_to(o.settings);
  j.at("steps").get_to(o.steps);
  return o;
}

std::string to_text(const Reply& a) {
  return nlohmann::json{{"refused", a.refused}, {"error", a.error},     {"losses", a.losses},
                        {"norms", a.norms},     {"regions", a.regions}, {"replayed", a.replayed}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Reply reply_of(const std::string& text) {
  const auto j = nlohmann::json::parse(text);
  Reply a;
  j.at("refused").get_to(a.refused);
  j.at("error").get_to(a.error);
  j.at("losses").get_to(a.losses);
  j.at("norms").get_to(a.norms);
  j.at("regions").get_to(a.regions);
  j.at("replayed").get_to(a.replayed);
  return a;
}

void send_message(int socket, const std::string& text) {
  RING_CHECK(text.size() <= kMaxMessage, "expected a message of at most ", kMaxMessage, " bytes, got ", text.size());
  const ssize_t sent = send(socket, text.data(), text.size(), MSG_NOSIGNAL);
  if (sent < 0 && errno != EPIPE && errno != ECONNRESET)
    fail("cannot send a message of ", text.size(), " bytes: ", std::strerror(errno));
}

bool receive_message(int socket, std::string& text) {
  text.resize(kMaxMessage);
  ssize_t n = 0;
  do n = recv(socket, text.data(), text.size(), 0);
  while (n < 0 && errno == EINTR);
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return n > 0;
}

}  // namespace ring::test
