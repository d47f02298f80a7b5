#pragma once
// An HTTP/1.1 client that sends exactly the bytes that a test gives.

#include <chrono>
#include <map>
#include <string>

#include "job/socket.h"

namespace ring::test {

struct HttpAnswer {
  int status = 0;  // 0 if there was no answer
  std::map<std::string, std::string> headers;
  std::string body;
};

// Returns what arrives until the server closes or `patience` is over.
inline std::string received(const Fd& fd, std::chrono::seconds patience = std::chrono::seconds(120)) {
  std::string all;
  const auto deadline = AwakeClock::now() + patience;
  try {
    for (;;) all += recv_exactly(fd, 1, deadline);
  } catch (const Error&) {
    return all;
  }
}

inline std::string without_chunks(std::string text) {
  std::string out;
  for (;;) {
    const std::size_t end = text.find("\r\n");
    if (end == std::string::npos) return out;
    const std::size_t size = std::stoul(text.substr(0, end), nullptr, 16);
    if (size == 0) return out;
    out += text.substr(end + 2, size);
    text.erase(0, end + 2 + size + 2);
  }
}

inline HttpAnswer answer_of(const std::string& text) {
  HttpAnswer a;
  const std::size_t body = text.find("\r\n\r\n");
  if (!text.starts_with("HTTP/1.1 ") || body == std::string::npos) return a;
  a.status = std::stoi(text.substr(9, 3));
  for (std::size_t at = text.find("\r\n") + 2; at < body;) {
    const std::size_t end = text.find("\r\n", at), colon = text.find(": ", at);
    a.headers[text.substr(at, colon - at)] = text.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  a.body = text.substr(body + 4);
  if (a.headers["Transfer-Encoding"] == "chunked") a.body = without_chunks(a.body);
  return a;
}

inline HttpAnswer say(const Endpoint& to, const std::string& bytes) {
  const auto deadline = AwakeClock::now() + std::chrono::seconds(60);
  const Fd fd = connect_to(to, deadline);
  send_all(fd, bytes, deadline);
  return answer_of(received(fd));
}

// Sends a GET request. `headers` are whole header lines.
inline HttpAnswer http_get(const Endpoint& to, const std::string& path, const std::string& headers = "") {
  return say(to, str("GET ", path, " HTTP/1.1\r\nHost: ", to_string(to), "\r\nConnection: close\r\n", headers, "\r\n"));
}
inline HttpAnswer http_post(const Endpoint& to, const std::string& path, const std::string& body,
                            const std::string& headers = "") {
  return say(to, str("POST ", path, " HTTP/1.1\r\nHost: ", to_string(to),
                     "\r\nConnection: close\r\nContent-Length: ", body.size(), "\r\n", headers, "\r\n", body));
}

}  // namespace ring::test
