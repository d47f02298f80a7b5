#pragma once
// Decides which requests an HttpServer accepts.

#include <string>

#include "job/socket.h"

namespace ring {

inline constexpr const char* kHttpUser = "ringmaster";  // user name for browsers; the password is the token

// Headers that show where a request comes from.
struct HttpVisitor {
  std::string authorization, host, origin;  // headers; empty if missing
};

class HttpAccess {
 public:
  // Throws Error if other machines can reach the address and there is no token.
  HttpAccess(const Endpoint&, const std::string& token);
  // Returns 0 to accept the request, or the HTTP status with which to refuse it. 400: the Host header is not HOST or
  // HOST:PORT. With a token, 401: the request does not contain the token. Without a token, 403: the Host header does
  // not name this machine, or the request comes from a page of a different site (which may have pointed its own name to
  // this machine: DNS rebinding).
  int refusal_status(const HttpVisitor&) const;

 private:
  std::string bearer_, basic_;  // the two Authorization headers that are accepted; empty without a token
};

}  // namespace ring
