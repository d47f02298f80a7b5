#pragma once
// Frames of the store protocol: a 4-byte length, then a request (operation, number, key, value) or a reply (status,
// value). Integers are little-endian, like on every host that is supported.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/check.h"
#include "job/store.h"

namespace ring::store_protocol {

inline constexpr std::uint32_t kMagic = 0x31534D52;  // "RMS1": first word of a reply to hello
inline constexpr std::size_t kMaxKey = 1024, kMaxFrame = kMaxStoreValue + kMaxKey + 64;

enum class Op : std::uint8_t { hello = 1, set, get, add, beat, append };
enum class Status : std::uint8_t { ok = 0, absent = 1, refused = 2 };

struct Request {
  Op op = Op::hello;
  std::int64_t number = 0;  // get: timeout in ms; add: delta; beat: limit of silence in ms
  std::string key, value;
};

template <class T>
void put(std::string& out, T v) {
  out.append(reinterpret_cast<const char*>(&v), sizeof v);
}
template <class T>
T take(const std::string& in, std::size_t& at) {
  T v;
  if (in.size() - at < sizeof v) fail("store: a message is truncated");
  std::memcpy(&v, in.data() + at, sizeof v);
  at += sizeof v;
  return v;
}

inline std::string frame(const std::string& payload) {
  std::string out;
  put(out, static_cast<std::uint32_t>(payload.size()));
  return out + payload;
}

inline std::string encode(const Request& r) {
  std::string p;
  put(p, r.op);
  put(p, r.number);
  put(p, static_cast<std::uint32_t>(r.key.size()));
  return frame(p + r.key + r.value);
}

inline Request decode(const std::string& payload) {
  std::size_t at = 0;
  Request r;
  r.op = take<Op>(payload, at);
  r.number = take<std::int64_t>(payload, at);
  const auto key = take<std::uint32_t>(payload, at);
  if (key > kMaxKey || key > payload.size() - at) fail("store: a key has an invalid length of ", key, " bytes");
  r.key = payload.substr(at, key);
  r.value = payload.substr(at + key);
  return r;
}

inline std::string reply(Status status, const std::string& value = {}) {
  std::string p;
  put(p, kMagic);
  put(p, status);
  return frame(p + value);
}

inline void put_text(std::string& out, const std::string& text) {
  put(out, static_cast<std::uint32_t>(text.size()));
  out += text;
}
inline std::string take_text(const std::string& in, std::size_t& at) {
  const auto size = take<std::uint32_t>(in, at);
  if (size > in.size() - at) fail("store: a message is truncated");
  at += size;
  return in.substr(at - size, size);
}

inline void put_heartbeat(std::string& out, const std::string& name, std::int64_t age_ms,
                          const std::string& last_word) {
  put(out, age_ms);
  put_text(out, name);
  put_text(out, last_word);
}
inline std::vector<Heartbeat> take_heartbeats(const std::string& in) {
  std::vector<Heartbeat> out;
  for (std::size_t at = 0; at < in.size();) {
    Heartbeat h;
    h.age = Timeout(take<std::int64_t>(in, at));
    h.name = take_text(in, at);
    h.last_word = take_text(in, at);
    out.push_back(std::move(h));
  }
  return out;
}

}  // namespace ring::store_protocol
