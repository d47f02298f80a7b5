#include "comm/host_collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/reduce.h"
#include "core/awake_clock.h"
#include "core/philox.h"

namespace ring {
namespace {

constexpr std::int64_t kOneHopBytes = 16 << 10;  // up to this size, each rank sends all data to every rank
constexpr std::int64_t kSegmentBytes = 4 << 20;  // larger data is split into segments, which bounds scratch memory
enum class Channel : std::uint64_t { collective, messages };

// Returns a tag that matches only the intended message: its number in the order, and a digest of the operation.
std::uint64_t make_tag(Channel channel, std::uint64_t number, std::uint64_t digest) {
  return static_cast<std::uint64_t>(channel) << 60 | (number & 0xFFFFFFFFFull) << 24 | (digest & 0xFFFFFF);
}

}  // namespace

void HostCollectives::run(const Operation& op, const Event& after, const std::function<void(HostCollectives&)>& body) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw PeerLost(str(op.where(), ": not started, because the communicator failed before: ", *failure_));
  }
  ++operation_;
  try {
    after.synchronize();  // allowed host wait: transport
    op.record.mark_started();
    deadline_ = AwakeClock::now() + options_.timeout;
    digest_ = site_of(op.text);
    if (options_.verify) check_.run(op, *link_, deadline_);
    body(*this);
    op.record.mark_ended(true);
  } catch (const PeerLost& e) {
    throw PeerLost(give_up(op, name_lost_rank(e)));
  } catch (const std::exception& e) {
    throw Error(give_up(op, e));
  }
}

PeerLost HostCollectives::name_lost_rank(const PeerLost& error) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return error;  // set by abort()
  }
  const std::string lost = options_.who_is_lost ? options_.who_is_lost() : "";
  return lost.empty() ? error : PeerLost(str(lost, " (seen here: ", error.what(), ")"));
}

std::string HostCollectives::give_up(const Operation& op, const std::exception& e) {
  op.record.mark_ended(false);
  std::string reason =
      str(op.where(), " (operation ", operation_, " of rank ", options_.rank_of_run(rank), "): ", e.what());
  abort(reason);
  return reason;
}

void HostCollectives::abort(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = reason;
  }
  link_->abort(reason);
}

std::uint64_t HostCollectives::next_round() { return make_tag(Channel::collective, round_++, digest_); }

std::byte* HostCollectives::scratch(std::int64_t bytes) {
  if (scratch_.size() < static_cast<std::size_t>(bytes)) scratch_.resize(static_cast<std::size_t>(bytes));
  return scratch_.data();
}

void HostCollectives::all_reduce(DType dtype, Reduce op, std::byte* data, std::int64_t n) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t segment = n * element <= kOneHopBytes ? n : kSegmentBytes / element;
  for (std::int64_t begin = 0; begin < n; begin += segment) {
    const std::int64_t count = std::min(segment, n - begin);
    if (count * element <= kOneHopBytes)
      reduce_one_hop(dtype, op, data + begin * element, count);
    else
      reduce_two_hops(dtype, op, data + begin * element, count);
  }
}

// Reduces n elements over all ranks into `out`. own: this rank's elements. others: the other ranks' elements,
// contiguous and in rank order.
void HostCollectives::reduce_part(DType dtype, Reduce op, std::byte* out, const std::byte* own, const std::byte* others,
                                  std::int64_t n) {
  const std::int64_t bytes = n * static_cast<std::int64_t>(size_of(dtype));
  std::vector<const std::byte*> sources(static_cast<std::size_t>(size), own);
  each_peer([&](int p) { sources[static_cast<std::size_t>(p)] = others + slot(p) * bytes; });
  reduce_in_order(dtype, op, sources, out, n);
}

void HostCollectives::reduce_one_hop(DType dtype, Reduce op, std::byte* data, std::int64_t n) {
  const std::int64_t bytes = n * static_cast<std::int64_t>(size_of(dtype));
  std::byte* others = scratch((size - 1) * bytes);
  const std::uint64_t tag = next_round();
  each_peer([&](int p) { link_->post_recv(p, tag, others + slot(p) * bytes, static_cast<std::size_t>(bytes)); });
  each_peer([&](int p) { link_->post_send(p, tag, data, static_cast<std::size_t>(bytes)); });
  link_->wait_all(deadline_);
  reduce_part(dtype, op, data, data, others, n);
}

// Rank p reduces part p and sends the result to the other ranks.
void HostCollectives::reduce_two_hops(DType dtype, Reduce op, std::byte* data, std::int64_t n) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const auto begin = [&](int p) { return n * p / size * element; };
  const auto bytes = [&](int p) { return static_cast<std::size_t>(begin(p + 1) - begin(p)); };
  const auto own = static_cast<std::int64_t>(bytes(rank));
  std::byte* others = scratch((size - 1) * own);
  std::uint64_t tag = next_round();
  each_peer([&](int p) { link_->post_recv(p, tag, others + slot(p) * own, bytes(rank)); });
  each_peer([&](int p) { link_->post_send(p, tag, data + begin(p), bytes(p)); });
  link_->wait_all(deadline_);
  reduce_part(dtype, op, data + begin(rank), data + begin(rank), others, own / element);
  tag = next_round();
  each_peer([&](int p) { link_->post_recv(p, tag, data + begin(p), bytes(p)); });
  each_peer([&](int p) { link_->post_send(p, tag, data + begin(rank), bytes(rank)); });
  link_->wait_all(deadline_);
}

void HostCollectives::all_gather(std::byte* out, const std::byte* in, std::int64_t bytes) {
  std::byte* own = out + rank * bytes;
  if (own != in && bytes > 0) std::memmove(own, in, static_cast<std::size_t>(bytes));
  const std::uint64_t tag = next_round();
  each_peer([&](int p) { link_->post_recv(p, tag, out + p * bytes, static_cast<std::size_t>(bytes)); });
  each_peer([&](int p) { link_->post_send(p, tag, own, static_cast<std::size_t>(bytes)); });
  link_->wait_all(deadline_);
}

void HostCollectives::reduce_scatter(DType dtype, Reduce op, std::byte* out, const std::byte* in, std::int64_t n) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t segment = std::max<std::int64_t>(kSegmentBytes / element / size, 1);
  for (std::int64_t begin = 0; begin < n; begin += segment) {
    const std::int64_t count = std::min(segment, n - begin), bytes = count * element;
    const auto part = [&](int p) { return in + (p * n + begin) * element; };
    std::byte* others = scratch((size - 1) * bytes);
    const std::uint64_t tag = next_round();
    each_peer([&](int p) { link_->post_recv(p, tag, others + slot(p) * bytes, static_cast<std::size_t>(bytes)); });
    each_peer([&](int p) { link_->post_send(p, tag, part(p), static_cast<std::size_t>(bytes)); });
    link_->wait_all(deadline_);
    reduce_part(dtype, op, out + begin * element, part(rank), others, count);
  }
}

void HostCollectives::broadcast(std::byte* data, std::int64_t bytes, int root) {
  const std::uint64_t tag = next_round();
  if (rank == root)
    each_peer([&](int p) { link_->post_send(p, tag, data, static_cast<std::size_t>(bytes)); });
  else
    link_->post_recv(root, tag, data, static_cast<std::size_t>(bytes));
  link_->wait_all(deadline_);
}

void HostCollectives::all_to_all(std::byte* out, const std::byte* in, std::int64_t part_bytes) {
  const auto bytes = static_cast<std::size_t>(part_bytes);
  const std::uint64_t tag = next_round();
  each_peer([&](int p) { link_->post_recv(p, tag, out + p * part_bytes, bytes); });
  each_peer([&](int p) { link_->post_send(p, tag, in + p * part_bytes, bytes); });
  std::copy_n(in + rank * part_bytes, bytes, out + rank * part_bytes);
  link_->wait_all(deadline_);
}

// Splits pieces and packs them into rounds of at most kSegmentBytes.
void HostCollectives::reduce_pieces(const std::vector<OwnedPiece>& pieces, Reduce op) {
  std::vector<Segment> round;
  std::int64_t left = kSegmentBytes;
  for (const OwnedPiece& p : pieces) {
    const DType dtype = p.tensor.dtype();
    const auto element = static_cast<std::int64_t>(size_of(dtype));
    for (std::int64_t begin = 0; begin < p.tensor.numel();) {
      const std::int64_t n = std::min(p.tensor.numel() - begin, left / element);
      if (n > 0) round.push_back({dtype, p.tensor.raw() + begin * element, n, p.root});
      begin += n;
      left -= n * element;
      if (left >= element) continue;
      reduce_segments(round, op);
      round.clear();
      left = kSegmentBytes;
    }
  }
  reduce_segments(round, op);
}

void HostCollectives::reduce_segments(const std::vector<Segment>& segments, Reduce op) {
  const auto bytes = [](const Segment& s) { return s.n * static_cast<std::int64_t>(size_of(s.dtype)); };
  // Bytes of the other ranks' parts of a segment, rounded up to 16.
  const auto room = [&](const Segment& s) { return ((size - 1) * bytes(s) + 15) & ~std::int64_t{15}; };
  std::int64_t own = 0;
  for (const Segment& s : segments) own += s.root == rank ? room(s) : 0;
  std::byte* next = scratch(own);
  for (const Segment& s : segments) {
    const std::uint64_t tag = next_round();
    const auto n = static_cast<std::size_t>(bytes(s));
    if (s.root != rank) {
      link_->post_send(s.root, tag, s.data, n);
      continue;
    }
    each_peer([&](int p) { link_->post_recv(p, tag, next + slot(p) * bytes(s), n); });
    next += room(s);
  }
  link_->wait_all(deadline_);
  next = scratch_.data();
  for (const Segment& s : segments) {
    if (s.root != rank) continue;
    reduce_part(s.dtype, op, s.data, s.data, next, s.n);
    next += room(s);
  }
}

void HostCollectives::broadcast_pieces(const std::vector<OwnedPiece>& pieces) {
  for (const OwnedPiece& p : pieces) {
    const std::uint64_t tag = next_round();
    if (p.root == rank)
      each_peer([&](int to) { link_->post_send(to, tag, p.tensor.raw(), p.tensor.bytes()); });
    else
      link_->post_recv(p.root, tag, p.tensor.raw(), p.tensor.bytes());
  }
  link_->wait_all(deadline_);
}

void HostCollectives::exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives) {
  const auto tag = [](std::uint64_t number, std::size_t bytes) { return make_tag(Channel::messages, number, bytes); };
  std::vector<const Tensor*> own;
  for (const Transfer& t : receives) {
    if (t.peer == rank) {
      own.push_back(&t.tensor);
      continue;
    }
    const std::uint64_t number = peers_[static_cast<std::size_t>(t.peer)].received++;
    link_->post_recv(t.peer, tag(number, t.tensor.bytes()), t.tensor.raw(), t.tensor.bytes());
  }
  auto copy = own.begin();
  for (const Transfer& t : sends) {
    if (t.peer == rank) {
      std::memmove((*copy++)->raw(), t.tensor.raw(), t.tensor.bytes());
      continue;
    }
    const std::uint64_t number = peers_[static_cast<std::size_t>(t.peer)].sent++;
    link_->post_send(t.peer, tag(number, t.tensor.bytes()), t.tensor.raw(), t.tensor.bytes());
  }
  link_->wait_all(deadline_);
}

}  // namespace ring
