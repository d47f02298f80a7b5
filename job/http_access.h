#pragma once
// Who may talk to an HttpServer.

#include <string>

#include "job/socket.h"

namespace ring {

inline constexpr const char* kHttpUser = "ringmaster";  // whose password is the token, for browsers

// What a request says of where it comes from.
struct HttpVisitor {
  std::string authorization, host, origin;  // headers; empty: not given
};

class HttpAccess {
 public:
  // Error: others can reach the address, and there is no token.
  HttpAccess(const Endpoint&, const std::string& token);
  // Returns 0, or the status to refuse the request with. 400: the Host header is not HOST or HOST:PORT. With a token,
  // 401: the request does not show it. Without one, 403: the request does not name this machine, or comes from a page
  // of another site, which may have given its own name this machine's address.
  int refusal(const HttpVisitor&) const;

 private:
  std::string bearer_, basic_;  // the header with the token, in its two forms; empty: there is none
};

}  // namespace ring
