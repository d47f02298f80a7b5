#pragma once
// HTTP for whoever looks at a job or tries a model, by libmicrohttpd (docs/adr/0028-http.md). Connections are bounded
// in number, per address, in size and in time, so that clients cost no more than that, whatever they do. A newcomer
// always gets in as long as some connection only waits for a request: the oldest of those makes way for it. Without a
// token only this machine is served, and no page of another site that a browser shows here.

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "job/socket.h"

namespace ring {

bool http_available();  // in this build

struct HttpRequest {
  std::string method;                        // "GET", also for HEAD; "POST", ...
  std::string path;                          // "/metrics"
  std::map<std::string, std::string> query;  // what follows the ?
  std::string accept;                        // media types that the client takes
  std::string body;
  std::function<bool()> gone = nullptr;  // the client has closed the connection, as far as this side can see now
};

struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  // Instead of the body: gives the next piece each time, and an empty one at the end. It goes when the client does, and
  // after HttpOptions::silence without a piece.
  std::function<std::string()> stream = nullptr;
  std::map<std::string, std::string> headers = {};
};

using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

struct HttpOptions {
  Endpoint at;                       // port 0: an ephemeral one
  std::string token;                 // that clients show: "Authorization: Bearer TOKEN", or as a password
  bool may_block = false;            // handlers and streams wait: each connection has a thread of its own
  unsigned connections = 256;        // at once; if other machines can connect, at most half of them from one address
  std::chrono::seconds silence{3};   // of a client, after which its connection closes
  std::chrono::seconds request{30};  // from the connect, or the end of the reply before, to the end of a request
  std::chrono::seconds reply{60};    // for a client to read a whole reply that is no stream
  std::size_t most_body = 0;         // bytes of a request
  // Makes the reply to what is not let through to the handler, such as 401; null: the text as it is.
  std::function<HttpReply(int status, const std::string& text)> refuse = nullptr;
};

class HttpServer {
 public:
  // Error: this build has no HTTP, there is no token although others can reach the address, or the address cannot be
  // listened at. What the handler throws becomes a reply with status 500.
  HttpServer(HttpOptions, HttpHandler);
  ~HttpServer();  // closes all connections; streams have ended when it returns
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  const Endpoint& endpoint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// "8080" is that port of 127.0.0.1, "0" a free one; "HOST:PORT". Error: neither, with the option's name.
Endpoint parse_http_endpoint(const std::string& option, const std::string& text);

}  // namespace ring
