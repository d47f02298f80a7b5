#pragma once
// HTTP server for job monitoring and for model inference, based on libmicrohttpd (docs/adr/0028-http.md). So that
// no client can use up resources, the server limits the number of connections (in total and per address), the size of
// requests, and the time for requests and replies. If there are too many connections and some only wait for a request,
// it accepts a new client and closes the connection that has waited longest. Without a token, it only serves this
// machine, and no browser pages of other sites.

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "job/socket.h"

namespace ring {

bool http_available();  // true if this build has HTTP support

struct HttpRequest {
  std::string method;                        // "GET" (also for HEAD), "POST", ...
  std::string path;                          // e.g. "/metrics"
  std::map<std::string, std::string> query;  // parameters after the "?"
  std::string accept;                        // Accept header: media types that the client accepts
  std::string body;
  std::function<bool()> gone = nullptr;  // returns true if the client is known to have closed the connection
};

struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  // Used instead of the body if set: each call returns the next piece; an empty piece ends the reply. Destroyed when
  // the client disconnects, or after HttpOptions::silence without a piece.
  std::function<std::string()> stream = nullptr;
  std::map<std::string, std::string> headers = {};
};

using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

struct HttpOptions {
  Endpoint at;                       // port 0 selects an ephemeral port
  std::string token;                 // clients send it as "Authorization: Bearer TOKEN" or as a password
  bool may_block = false;            // true if handlers and streams may block: then each connection has its own thread
  unsigned connections = 256;        // maximum in total; at most half of them per address if other machines can connect
  std::chrono::seconds silence{3};   // a connection is closed after this time without traffic
  std::chrono::seconds request{30};  // maximum time from the connect or the previous reply to the end of a request
  std::chrono::seconds reply{60};    // maximum time for a client to read a whole reply that is not a stream
  std::size_t max_body = 0;          // maximum bytes of a request body
  // Creates the reply to a request that is not passed to the handler or that fails, e.g. with status 401. If null, the
  // text is sent as is.
  std::function<HttpReply(int status, const std::string& text)> refuse = nullptr;
};

class HttpServer {
 public:
  // Throws Error if this build has no HTTP support, if other machines can reach the address and there is no token, or
  // if listening fails. If the handler throws, the reply has status 500.
  HttpServer(HttpOptions, HttpHandler);
  ~HttpServer();  // closes all connections and waits for streams to end
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  const Endpoint& endpoint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Parses PORT (on 127.0.0.1; 0 selects a free port) or HOST:PORT. Throws Error, with the option's name, for anything
// else.
Endpoint parse_http_endpoint(const std::string& option, const std::string& text);

}  // namespace ring
