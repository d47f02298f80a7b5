#include "tests/layouts/request.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/json.h"

namespace ring::test {

namespace {
constexpr std::size_t kMaxMessage = std::size_t{1} << 20;  // bytes
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Request, rank, world, gpu, mesh, store_port, cookie, settings, steps)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Reply, refused, error, losses, norms, regions, replayed, gpus)

std::string to_text(const Request& o) { return nlohmann::json(o).dump(); }
Request request_of(const std::string& text) { return nlohmann::json::parse(text).get<Request>(); }

std::string to_text(const Reply& a) { return json_text(nlohmann::json(a)); }
Reply reply_of(const std::string& text) { return nlohmann::json::parse(text).get<Reply>(); }

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
