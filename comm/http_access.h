#pragma once
// Who may talk to an HttpServer.

#include <string>

#include "comm/socket.h"

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
  // 0: welcome; else the status to refuse with. With a token whoever shows it is welcome: 401. Without one, requests
  // must name this machine and come from none of another site's pages, which may have given its own name this
  // machine's address: 403.
  int refusal(const HttpVisitor&) const;

 private:
  std::string bearer_, basic_;  // the header with the token, in its two forms; empty: there is none
};

}  // namespace ring
