#include "comm/call_check.h"

#include <algorithm>
#include <array>

#include "core/philox.h"

namespace ring {
namespace {

constexpr std::uint64_t kHeaderTag = std::uint64_t{1} << 63;

struct Header {
  std::uint64_t kind = 0, messages_key = 0, text_key = 0;  // keys: hashes of the full texts, which may be cut below
  std::array<char, 160> text{};
  std::array<char, 96> site{}, messages{};  // messages: only messages to the header's receiver
};

std::string messages_of(const std::vector<Operation::Message>& list, int peer) {
  std::string all;
  for (const Operation::Message& m : list)
    if (m.peer == peer) all += (all.empty() ? "" : ", ") + m.what;
  return all.empty() ? "nothing" : all;
}

Header header_for(const Operation& op, int peer) {
  Header h;
  const std::string messages = messages_of(op.sends, peer);
  h.kind = static_cast<std::uint64_t>(op.kind);
  h.text_key = op.kind == Operation::Kind::collective ? site_of(op.text) : 0;
  h.messages_key = site_of(messages);
  copy_text(h.text, op.text);
  copy_text(h.site, to_string(op.site));
  copy_text(h.messages, messages);
  return h;
}

// Returns true if the peer takes part in the operation. This rank and the peer always get the same result.
bool talks(const Operation& op, int peer) {
  const auto names_it = [&](const Operation::Message& m) { return m.peer == peer; };
  return op.kind != Operation::Kind::pairwise || std::any_of(op.sends.begin(), op.sends.end(), names_it) ||
         std::any_of(op.receives.begin(), op.receives.end(), names_it);
}

void compare(int rank, const Header& own, const std::string& expected, int peer, const Header& other) {
  if (other.kind != own.kind || other.text_key != own.text_key)
    fail("rank ", rank, " at ", own.site.data(), " runs '", own.text.data(), "' while rank ", peer, " at ",
         other.site.data(), " runs '", other.text.data(),
         "'; all ranks must run the same operations in the same order");
  if (other.messages_key != site_of(expected))
    fail("rank ", rank, " at ", own.site.data(), " expects ", expected, " from rank ", peer, " ('", own.text.data(),
         "'), which at ", other.site.data(), " sends it ", other.messages.data(), " ('", other.text.data(),
         "'); both lists must name the same messages in the same order");
}

}  // namespace

std::string to_string(const Site& site) {
  const std::string path = site.file_name();
  std::size_t start = path.rfind('/');
  if (start != std::string::npos && start > 0) start = path.rfind('/', start - 1);
  return str(start == std::string::npos ? path : path.substr(start + 1), ':', site.line());
}

void CallCheck::run(const Operation& op, HostLink& link, HostLink::Deadline deadline) {
  struct Peer {
    int rank;
    Header own, other;
  };
  std::vector<Peer> peers;
  for (int p = 0; p < static_cast<int>(headers_.size()); ++p)
    if (p != rank_ && talks(op, p)) peers.push_back({p, header_for(op, p), {}});
  const auto tag = [this](const Peer& p) { return kHeaderTag | headers_[static_cast<std::size_t>(p.rank)]; };
  for (Peer& p : peers) link.post_recv(p.rank, tag(p), &p.other, sizeof(Header));
  for (Peer& p : peers) link.post_send(p.rank, tag(p), &p.own, sizeof(Header));
  link.wait_all(deadline);
  for (const Peer& p : peers) {
    ++headers_[static_cast<std::size_t>(p.rank)];
    compare(options_.rank_of_run(rank_), p.own, messages_of(op.receives, p.rank), options_.rank_of_run(p.rank),
            p.other);
  }
}

}  // namespace ring
