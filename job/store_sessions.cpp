#include "job/store_sessions.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "job/store_handshake.h"

namespace ring {

using namespace store_protocol;

namespace {

constexpr std::size_t kMaxHello = 512;
constexpr std::int64_t kLongest = 86'400'000;  // maximum milliseconds of a wait or of silence

std::chrono::milliseconds bounded(std::int64_t ms) {
  return std::chrono::milliseconds(std::clamp<std::int64_t>(ms, -1, kLongest));
}

bool had_its_time(const StoreSessions::Session& stranger, StoreSessions::Clock::time_point now) {
  return stranger.deadline - kHelloTime + kMinStrangerTime <= now;
}

}  // namespace

StoreSessions::Iterator StoreSessions::open(Clock::time_point now, std::string client) {
  Session& s = sessions_.emplace_back();
  s.client = std::move(client);
  s.deadline = now + kHelloTime;
  return std::prev(sessions_.end());
}

void StoreSessions::receive(Session& s, std::string_view bytes, Clock::time_point now) {
  s.in.append(bytes);
  std::size_t done = 0;
  while (s.in.size() - done >= 4 && !s.closing && !s.full()) {
    std::size_t at = done;
    const auto length = take<std::uint32_t>(s.in, at);
    if (length > (s.trusted ? kMaxFrame : kMaxHello)) fail("store: a message is too long: ", length, " bytes");
    if (s.in.size() - at < length) break;
    if (!s.waiting_for.empty()) fail("store: a second request came before the answer to the first");
    handle(s, decode(s.in.substr(at, length)), now);
    done = at + length;
  }
  s.in.erase(0, done);
}

void StoreSessions::greet(Session& s, const Request& r) {
  if (r.op != Op::hello) fail("store: a request came before the hello");
  if (s.nonce.empty()) {
    s.nonce = new_nonce_();
    s.out += reply(Status::ok, s.nonce);
    return;
  }
  s.trusted = store_handshake::client_knows(cookie_, s.nonce, r.value);
  s.closing = !s.trusted;
  s.out += !s.trusted ? reply(Status::refused)
                      : reply(Status::ok, store_handshake::proof(cookie_, "server", s.nonce,
                                                                 r.value.substr(0, store_handshake::kNonceSize)));
}

void StoreSessions::handle(Session& s, const Request& r, Clock::time_point now) {
  if (!s.trusted) return greet(s, r);
  if (r.key.empty()) fail("store: a request has no key");
  switch (r.op) {
    case Op::set: {
      const bool room = has_room(r.key, r.value.size());
      if (room) put_value(r.key, r.value);
      s.out += reply(room ? Status::ok : Status::refused);
      return;
    }
    case Op::add: return add(s, r);
    case Op::get: {
      const auto found = values_.find(r.key);
      if (found == values_.end() && r.number > 0) {
        s.waiting_for = r.key;
        s.deadline = now + bounded(r.number);
        return;
      }
      s.out += found == values_.end() ? reply(Status::absent) : reply(Status::ok, found->second);
      return;
    }
    case Op::beat: return beat(s, r, now);
    case Op::append: return append(s, r);
    default: fail("store: unknown operation");
  }
}

bool StoreSessions::has_room(const std::string& key, std::size_t value_bytes) const {
  return value_bytes <= kMaxStoreValue && bytes_ + key.size() + value_bytes <= kMaxStoreBytes;
}

void StoreSessions::put_value(const std::string& key, std::string value) {
  for (Session& s : sessions_) {
    if (s.waiting_for != key) continue;
    s.out += reply(Status::ok, value);
    s.waiting_for.clear();
  }
  const auto [at, fresh] = values_.try_emplace(key);
  bytes_ += (fresh ? key.size() : 0) + value.size() - at->second.size();
  at->second = std::move(value);
}

void StoreSessions::add(Session& s, const Request& r) {
  const auto found = values_.find(r.key);
  const std::int64_t before = found == values_.end() ? 0 : std::strtoll(found->second.c_str(), nullptr, 10);
  std::int64_t sum = 0;
  if (__builtin_add_overflow(before, r.number, &sum) || !has_room(r.key, 20)) {
    s.out += reply(Status::refused);
    return;
  }
  put_value(r.key, std::to_string(sum));
  s.out += reply(Status::ok, std::to_string(sum));
}

// Adds an entry to a list. The number of entries is stored under the list's own key.
void StoreSessions::append(Session& s, const Request& r) {
  const auto found = values_.find(r.key);
  const std::int64_t count = found == values_.end() ? 0 : std::strtoll(found->second.c_str(), nullptr, 10);
  const std::string key = r.key + "/" + std::to_string(count);
  if (count < 0 || count == std::numeric_limits<std::int64_t>::max() || key.size() > kMaxKey ||
      !has_room(key + r.key, r.value.size() + 20)) {
    s.out += reply(Status::refused);
    return;
  }
  put_value(r.key, std::to_string(count + 1));
  put_value(key, r.value);
  s.out += reply(Status::ok, std::to_string(count));
}

void StoreSessions::beat(Session& s, const Request& r, Clock::time_point now) {
  if (!has_room(r.key, r.value.size())) {
    s.out += reply(Status::refused);
    return;
  }
  s.beats_as = r.key;
  s.silence_limit = bounded(r.number);
  const auto [at, fresh] = pulses_.try_emplace(r.key);
  if (fresh) bytes_ += r.key.size();
  if (!at->second.last_word.empty()) return;
  bytes_ += r.value.size();
  at->second = {now, r.value};
}

void StoreSessions::answer_heartbeats(Clock::time_point now) {
  for (Session& s : sessions_) {
    if (!s.silence_limit) continue;
    std::string list;
    for (const auto& [name, pulse] : pulses_) {
      const auto age = now - pulse.last;
      if (list.size() < kMaxStoreValue / 2 && (age > *s.silence_limit || !pulse.last_word.empty()))
        put_heartbeat(list, name, std::chrono::duration_cast<std::chrono::milliseconds>(age).count(), pulse.last_word);
    }
    s.silence_limit.reset();
    s.out += reply(Status::ok, list);
  }
}

void StoreSessions::close(Iterator place, Clock::time_point now) {
  const auto pulse = pulses_.find(place->beats_as);
  if (pulse != pulses_.end() && pulse->second.last_word.empty()) pulse->second = {now, std::string(kConnectionClosed)};
  sessions_.erase(place);
}

void StoreSessions::handle_timeouts(Clock::time_point now) {
  for (Session& s : sessions_) {
    if (s.deadline > now) continue;
    if (!s.trusted) s.closing = true;
    if (s.waiting_for.empty()) continue;
    s.waiting_for.clear();
    s.out += reply(Status::absent);
  }
}

StoreSessions::Clock::time_point StoreSessions::next_deadline(Clock::time_point latest) const {
  for (const Session& s : sessions_)
    if (!s.trusted || !s.waiting_for.empty()) latest = std::min(latest, s.deadline);
  return latest;
}

std::optional<StoreSessions::Iterator> StoreSessions::stranger_to_replace(Clock::time_point now) {
  const auto oldest = std::ranges::find(sessions_, false, &Session::trusted);
  return oldest == sessions_.end() || !had_its_time(*oldest, now) ? std::nullopt : std::optional(oldest);
}

std::optional<StoreSessions::Iterator> StoreSessions::crowding_stranger(Iterator newcomer, Clock::time_point now) {
  const auto of_this_client = [&](const Session& s) { return !s.trusted && s.client == newcomer->client; };
  const auto strangers = std::ranges::count_if(sessions_, of_this_client);
  if (std::cmp_less_equal(strangers, kMaxStrangersPerAddress)) return std::nullopt;
  const auto oldest = std::ranges::find_if(sessions_, of_this_client);
  return had_its_time(*oldest, now) ? oldest : newcomer;
}

std::size_t StoreSessions::num_strangers() const {
  return static_cast<std::size_t>(std::ranges::count(sessions_, false, &Session::trusted));
}

}  // namespace ring
