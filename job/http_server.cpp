#include "job/http_server.h"

#include "core/check.h"

#ifdef RING_WITH_HTTP
#include <fcntl.h>
#include <microhttpd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/signals.h"
#include "job/http_access.h"
#include "job/http_clients.h"

namespace ring {
namespace {

constexpr std::size_t kConnectionBytes = 32 * 1024;  // buffer per connection for headers and data in transit
constexpr std::size_t kPiece = 16 * 1024;            // maximum bytes of a stream per call
constexpr std::size_t kThreadStack = 1024 * 1024;
constexpr unsigned kClosing = 32;  // maximum number of connections that are being closed

// A request, as far as it has been received.
struct Exchange {
  HttpRequest request;
  bool too_large = false;
};

struct ReplyStream {
  explicit ReplyStream(std::function<std::string()> pieces) : next(std::move(pieces)) {}
  std::function<std::string()> next;
  std::string rest;  // unsent part of the last piece
};

ssize_t read_stream(void* of, std::uint64_t, char* out, std::size_t max) try {
  auto& stream = *static_cast<ReplyStream*>(of);
  if (stream.rest.empty()) stream.rest = stream.next();
  if (stream.rest.empty()) return MHD_CONTENT_READER_END_OF_STREAM;
  const std::size_t n = std::min(max, stream.rest.size());
  std::memcpy(out, stream.rest.data(), n);
  stream.rest.erase(0, n);
  return static_cast<ssize_t>(n);
} catch (const std::exception&) {
  return MHD_CONTENT_READER_END_WITH_ERROR;
}

void end_stream(void* of) { delete static_cast<ReplyStream*>(of); }

std::string header_of(MHD_Connection* c, const char* name) {
  const char* value = MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
  return value ? value : "";
}

// Headers that determine where a request ends and to which host it is sent.
struct Framing {
  int hosts = 0, lengths = 0;
  std::vector<std::string> encodings;
  bool spaced = false;  // true if a header name contains blank space, which other servers may strip
};

MHD_Result add_framing(void* to, MHD_ValueKind, const char* name, const char* value) {
  auto& f = *static_cast<Framing*>(to);
  const auto is = [&](const char* known) { return strcasecmp(name, known) == 0; };
  if (is("Host")) ++f.hosts;
  if (is("Content-Length")) ++f.lengths;
  if (is("Transfer-Encoding")) f.encodings.emplace_back(value ? value : "");
  f.spaced |= std::strpbrk(name, " \t") != nullptr;
  return MHD_YES;
}

// Returns why another parser, e.g. a proxy's, may find a different end or host in this request; empty if it cannot.
// Such a request could be used to smuggle a second one past a proxy (RFC 9112, 6.3 and 3.2).
std::string framing_problem(MHD_Connection* c, const char* version) {
  Framing f;
  MHD_get_connection_values(c, MHD_HEADER_KIND, add_framing, &f);
  if (f.spaced) return "a header has a space before its colon";
  if (f.hosts > 1) return str("expected one Host header, got ", f.hosts);
  if (f.hosts == 0 && std::strcmp(version, "HTTP/1.1") == 0) return "an HTTP/1.1 request needs a Host header";
  if (f.lengths > 1) return str("expected one Content-Length, got ", f.lengths);
  if (f.lengths && !f.encodings.empty()) return "expected a Content-Length or a Transfer-Encoding, got both";
  if (f.encodings.size() > 1 || (f.encodings.size() == 1 && strcasecmp(f.encodings[0].c_str(), "chunked") != 0))
    return "the only supported Transfer-Encoding is chunked";
  return "";
}

// Closes the connections that HttpClients selects, from a thread that checks once a second while there are connections.
class HttpWatch {
 public:
  explicit HttpWatch(const HttpClientLimits& limits) : clients_(limits) {
    const BlockSignals block;
    thread_ = std::thread([this] { run(); });
  }
  ~HttpWatch() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  HttpWatch(const HttpWatch&) = delete;
  HttpWatch& operator=(const HttpWatch&) = delete;

  void opened(MHD_Connection* c) {
    const MHD_ConnectionInfo* from = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const std::lock_guard lock(mutex_);
    if (const auto socket = clients_.on_open(socket_of(c), from ? client_of(*from->client_addr) : "", Clock::now()))
      close(*socket);
    changed_.notify_one();
  }
  void request_arrived(MHD_Connection* c) {
    const std::lock_guard lock(mutex_);
    clients_.on_request(socket_of(c));
  }
  void reply_begins(MHD_Connection* c) {
    const std::lock_guard lock(mutex_);
    clients_.on_reply_begin(socket_of(c), Clock::now());
  }
  void reply_ended(MHD_Connection* c) {
    const std::lock_guard lock(mutex_);
    clients_.on_reply_end(socket_of(c), Clock::now());
  }
  // Call before the socket is closed, because its file descriptor may then be reused.
  void closed(MHD_Connection* c) {
    const std::lock_guard lock(mutex_);
    clients_.on_close(socket_of(c));
  }

 private:
  using Clock = AwakeClock;

  static int socket_of(MHD_Connection* c) {
    return MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
  }
  // The thread that serves the connection detects the end of the stream and closes the socket.
  static void close(int socket) { shutdown(socket, SHUT_RDWR); }

  void run() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      if (clients_.empty())
        changed_.wait(lock, [&] { return ending_ || !clients_.empty(); });
      else
        changed_.wait_for(lock, std::chrono::seconds(1), [&] { return ending_; });
      for (const int socket : clients_.take_overdue(Clock::now())) close(socket);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  HttpClients clients_;
  bool ending_ = false;
  std::thread thread_;
};

MHD_Result add_query(void* to, MHD_ValueKind, const char* key, const char* value) {
  (*static_cast<std::map<std::string, std::string>*>(to))[key] = value ? value : "";
  return MHD_YES;
}

MHD_Response* response_of(HttpReply& reply) {
  if (!reply.stream)
    return MHD_create_response_from_buffer(reply.body.size(), reply.body.data(), MHD_RESPMEM_MUST_COPY);
  auto stream = std::make_unique<ReplyStream>(std::move(reply.stream));
  MHD_Response* response =
      MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, kPiece, read_stream, stream.get(), end_stream);
  if (response) stream.release();
  return response;
}

MHD_Result queue(MHD_Connection* c, HttpReply reply) {
  MHD_Response* response = response_of(reply);
  if (!response) return MHD_NO;
  reply.headers["Content-Type"] = reply.type;
  reply.headers.try_emplace("Cache-Control", "no-store");
  reply.headers["X-Content-Type-Options"] = "nosniff";
  if (reply.status == 401) reply.headers["WWW-Authenticate"] = "Basic realm=\"ringmaster\", charset=\"UTF-8\"";
  for (const auto& [name, value] : reply.headers) MHD_add_response_header(response, name.c_str(), value.c_str());
  const MHD_Result done = MHD_queue_response(c, static_cast<unsigned>(reply.status), response);
  MHD_destroy_response(response);
  return done;
}

// Returns true if the client has closed the connection. While bytes of a next request are unread, recv() returns these
// first, so the client counts as connected.
bool has_left(MHD_Connection* c) {
  const MHD_ConnectionInfo* info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
  char byte = 0;
  const ssize_t n = info ? recv(info->connect_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) : 1;
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

const char* refusal_text(int status) {
  if (status == 400) return "the Host header is not HOST or HOST:PORT";
  if (status == 401) return "send the token as Authorization: Bearer TOKEN, or as the password of the user ringmaster";
  return "only requests from this machine are served, to 127.0.0.1 or localhost";
}

}  // namespace

bool http_available() { return true; }

struct HttpServer::Impl {
  Impl(HttpOptions o, HttpHandler h)
      : options(std::move(o)), handler(std::move(h)), access(options.at, options.token), watch(limits_of(options)) {
    Fd listening = listen_on(options.at);
    options.at = local_endpoint(listening);
    start(listening);
  }
  ~Impl() {
    if (daemon) MHD_stop_daemon(daemon);
  }

  // Limits each address to half of the connections, except on loopback, where all clients may have the same address.
  static HttpClientLimits limits_of(const HttpOptions& o) {
    return {.connections = o.connections,
            .per_address = is_loopback(o.at.host) ? o.connections : (o.connections + 1) / 2,
            .request = o.request,
            .reply = o.reply};
  }

  void start(const Fd& listening) {
    const unsigned threads = options.may_block ? MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD
                                               : MHD_USE_INTERNAL_POLLING_THREAD;
    const int own = fcntl(listening.get(), F_DUPFD_CLOEXEC, 0);  // the daemon closes its copy
    const BlockSignals block;
    daemon =
        MHD_start_daemon(threads | (options.may_block ? MHD_USE_POLL : MHD_USE_EPOLL), 0, nullptr, nullptr,
                         &Impl::answer, this, MHD_OPTION_LISTEN_SOCKET, own, MHD_OPTION_CONNECTION_LIMIT,
                         options.connections + kClosing, MHD_OPTION_CONNECTION_TIMEOUT,
                         static_cast<unsigned>(options.silence.count()), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         kConnectionBytes, MHD_OPTION_THREAD_STACK_SIZE, kThreadStack, MHD_OPTION_NOTIFY_COMPLETED,
                         &Impl::completed, this, MHD_OPTION_NOTIFY_CONNECTION, &Impl::connection, this, MHD_OPTION_END);
    if (!daemon) fail("cannot serve HTTP at ", to_string(options.at), ": libmicrohttpd did not start");
  }

  // Called after the headers, for each piece of the body, and at the end of the body.
  static MHD_Result answer(void* self, MHD_Connection* c, const char* path, const char* method, const char* version,
                           const char* data, std::size_t* size, void** state) try {
    auto& server = *static_cast<Impl*>(self);
    if (!*state) return server.begin(c, path, method, version, state);
    auto& exchange = *static_cast<Exchange*>(*state);
    if (*size == 0) return server.finish(c, exchange);
    std::string& body = exchange.request.body;
    exchange.too_large |= body.size() + *size > server.options.max_body;
    if (exchange.too_large)
      body.clear();
    else
      body.append(data, *size);
    *size = 0;
    return MHD_YES;
  } catch (const std::exception&) {
    return MHD_NO;  // out of memory: closes the connection
  }

  static void connection(void* self, MHD_Connection* c, void**, MHD_ConnectionNotificationCode what) {
    HttpWatch& watch = static_cast<Impl*>(self)->watch;
    what == MHD_CONNECTION_NOTIFY_STARTED ? watch.opened(c) : watch.closed(c);
  }

  static void completed(void* self, MHD_Connection* c, void** state, MHD_RequestTerminationCode) {
    static_cast<Impl*>(self)->watch.reply_ended(c);
    delete static_cast<Exchange*>(*state);
    *state = nullptr;
  }

  MHD_Result begin(MHD_Connection* c, const char* path, const char* method, const char* version, void** state) {
    if (const std::string problem = framing_problem(c, version); !problem.empty())
      return send(c, refusal(400, problem));
    const int refused =
        access.refusal_status({header_of(c, "Authorization"), header_of(c, "Host"), header_of(c, "Origin")});
    if (refused) return send(c, refusal(refused, refusal_text(refused)));
    const std::string length = header_of(c, "Content-Length");
    std::size_t bytes = 0;
    std::from_chars(length.data(), length.data() + length.size(), bytes);
    if (bytes > options.max_body) return send(c, too_large());
    auto exchange = std::make_unique<Exchange>();
    HttpRequest& r = exchange->request;
    r.method = std::strcmp(method, "HEAD") == 0 ? "GET" : method;
    r.path = path;
    r.accept = header_of(c, "Accept");
    MHD_get_connection_values(c, MHD_GET_ARGUMENT_KIND, add_query, &r.query);
    *state = exchange.release();
    return MHD_YES;
  }

  HttpReply refusal(int status, const std::string& text) const {
    HttpReply r = options.refuse ? options.refuse(status, text) : HttpReply{.body = text + "\n"};
    r.status = status;
    return r;
  }
  HttpReply too_large() const { return refusal(413, str("a request may have at most ", options.max_body, " bytes")); }

  MHD_Result send(MHD_Connection* c, HttpReply reply) {
    reply.stream ? watch.request_arrived(c) : watch.reply_begins(c);
    return queue(c, std::move(reply));
  }

  MHD_Result finish(MHD_Connection* c, Exchange& exchange) {
    if (exchange.too_large) return send(c, too_large());
    watch.request_arrived(c);
    exchange.request.gone = [c] { return has_left(c); };
    HttpReply reply;
    try {
      reply = handler(exchange.request);
    } catch (const std::exception& e) {
      reply = refusal(500, e.what());
    }
    return send(c, std::move(reply));
  }

  HttpOptions options;
  HttpHandler handler;
  HttpAccess access;
  HttpWatch watch;
  MHD_Daemon* daemon = nullptr;
};

HttpServer::HttpServer(HttpOptions o, HttpHandler h) : impl_(std::make_unique<Impl>(std::move(o), std::move(h))) {}
HttpServer::~HttpServer() = default;
const Endpoint& HttpServer::endpoint() const { return impl_->options.at; }

}  // namespace ring

#else

namespace ring {

bool http_available() { return false; }

struct HttpServer::Impl {};
HttpServer::HttpServer(HttpOptions, HttpHandler) {
  fail("this build has no HTTP: install libmicrohttpd-dev, then configure and build again");
}
HttpServer::~HttpServer() = default;
const Endpoint& HttpServer::endpoint() const { fail("this build has no HTTP"); }

}  // namespace ring
#endif

namespace ring {

Endpoint parse_http_endpoint(const std::string& option, const std::string& text) try {
  const bool port_alone = text.find_first_not_of("0123456789") == std::string::npos;
  if (text == "0") return {"127.0.0.1", 0};
  return parse_endpoint(port_alone ? "127.0.0.1:" + text : text);
} catch (const Error& e) {
  fail(option, ": ", e.what(), ". Give PORT, or HOST:PORT with a token");
}

}  // namespace ring
