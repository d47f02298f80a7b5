#include "comm/host_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/reduce.h"
#include "core/philox.h"

namespace ring {
namespace {

constexpr std::int64_t kOneHopBytes = 16 << 10;  // below: everybody sends everything, latency counts
constexpr std::int64_t kSegmentBytes = 4 << 20;  // above: cut, which bounds the scratch memory
enum class Channel : std::uint64_t { collective, point_to_point, header };

// What an operation is, the same on all of its ranks.
struct Operation {
  std::string text;  // "all_reduce sum of f32[1000]"
  bool collective = true;
};

// Belongs to the communication thread, apart from the failure and the link's abort().
class Exchange {
 public:
  Exchange(int rank, int size, std::unique_ptr<Link> link, const CommOptions& options)
      : rank(rank), size(size), link_(std::move(link)), options_(options), peers_(static_cast<std::size_t>(size)) {}

  void run(const Operation& op, const Event& after, const std::function<void(Exchange&)>& body);
  void abort(const std::string& reason);

  void all_reduce(DType, Reduce, std::byte* data, std::int64_t n);
  void all_gather(std::byte* out, const std::byte* in, std::int64_t bytes);
  void reduce_scatter(DType, Reduce, std::byte* out, const std::byte* in, std::int64_t n);
  void broadcast(std::byte* data, std::int64_t bytes, int root);
  void send_recv(const std::byte* out, std::int64_t out_bytes, int to, std::byte* in, std::int64_t in_bytes, int from);

  const int rank, size;

 private:
  void reduce_one_hop(DType, Reduce, std::byte* data, std::int64_t n);
  void reduce_two_hops(DType, Reduce, std::byte* data, std::int64_t n);
  void reduce_part(DType, Reduce, std::byte* out, const std::byte* own, std::int64_t n);
  void verify(const Operation&);
  std::string give_up(const Operation&, const std::exception&);
  std::uint64_t next_round();
  std::byte* scratch(std::int64_t bytes);
  template <class F>
  void each_peer(F f) const {
    for (int p = 0; p < size; ++p)
      if (p != rank) f(p);
  }
  // The place of peer p among the others, for one scratch slot each.
  std::int64_t slot(int p) const { return p < rank ? p : p - 1; }

  struct Peer {
    std::uint64_t sent = 0, received = 0;  // point-to-point messages
  };

  std::unique_ptr<Link> link_;
  CommOptions options_;
  std::vector<Peer> peers_;
  std::vector<std::byte> scratch_;
  Link::Deadline deadline_;
  std::uint64_t operation_ = 0, round_ = 0, digest_ = 0;
  std::mutex mutex_;
  std::optional<std::string> failure_;
};

// A message meets only the one that was meant: number in the order, and a digest of the operation.
std::uint64_t make_tag(Channel channel, std::uint64_t number, std::uint64_t digest) {
  return static_cast<std::uint64_t>(channel) << 60 | (number & 0xFFFFFFFFFull) << 24 | (digest & 0xFFFFFF);
}

void Exchange::run(const Operation& op, const Event& after, const std::function<void(Exchange&)>& body) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw PeerLost(str(op.text, ": not started, since the communicator failed before: ", *failure_));
  }
  ++operation_;
  try {
    after.synchronize();  // host waits: transport
    deadline_ = std::chrono::steady_clock::now() + options_.timeout;
    digest_ = site_of(op.text);
    if (op.collective && options_.verify) verify(op);
    body(*this);
  } catch (const PeerLost& e) {
    throw PeerLost(give_up(op, e));
  } catch (const std::exception& e) {
    throw Error(give_up(op, e));
  }
}

std::string Exchange::give_up(const Operation& op, const std::exception& e) {
  std::string reason = str(op.text, " (operation ", operation_, " of rank ", rank, " of ", size, "): ", e.what());
  abort(reason);
  return reason;
}

void Exchange::abort(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = reason;
  }
  link_->abort(reason);
}

std::uint64_t Exchange::next_round() { return make_tag(Channel::collective, round_++, digest_); }

std::byte* Exchange::scratch(std::int64_t bytes) {
  if (scratch_.size() < static_cast<std::size_t>(bytes)) scratch_.resize(static_cast<std::size_t>(bytes));
  return scratch_.data();
}

// Every rank tells every other what it is about to do.
void Exchange::verify(const Operation& op) {
  using Header = std::array<char, 96>;
  std::vector<Header> headers(static_cast<std::size_t>(size), Header{});
  Header& own = headers[static_cast<std::size_t>(rank)];
  std::memcpy(own.data(), op.text.data(), std::min(op.text.size(), own.size() - 1));
  const std::uint64_t tag = make_tag(Channel::header, operation_, 0);
  each_peer([&](int p) { link_->post_recv(p, tag, headers[static_cast<std::size_t>(p)].data(), sizeof(Header)); });
  each_peer([&](int p) { link_->post_send(p, tag, own.data(), sizeof(Header)); });
  link_->wait_all(deadline_);
  each_peer([&](int p) {
    const Header& other = headers[static_cast<std::size_t>(p)];
    if (other != own)
      fail("rank ", rank, " runs '", own.data(), "' while rank ", p, " runs '", other.data(),
           "'; all ranks must run the same operations in the same order");
  });
}

void Exchange::all_reduce(DType dtype, Reduce op, std::byte* data, std::int64_t n) {
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

// out = the reduction over ranks of n elements, given this rank's own and, in scratch, the others'.
void Exchange::reduce_part(DType dtype, Reduce op, std::byte* out, const std::byte* own, std::int64_t n) {
  const std::int64_t bytes = n * static_cast<std::int64_t>(size_of(dtype));
  std::vector<const std::byte*> sources(static_cast<std::size_t>(size), own);
  each_peer([&](int p) { sources[static_cast<std::size_t>(p)] = scratch_.data() + slot(p) * bytes; });
  reduce_in_order(dtype, op, sources, out, n);
}

void Exchange::reduce_one_hop(DType dtype, Reduce op, std::byte* data, std::int64_t n) {
  const std::int64_t bytes = n * static_cast<std::int64_t>(size_of(dtype));
  std::byte* others = scratch((size - 1) * bytes);
  const std::uint64_t tag = next_round();
  each_peer([&](int p) { link_->post_recv(p, tag, others + slot(p) * bytes, static_cast<std::size_t>(bytes)); });
  each_peer([&](int p) { link_->post_send(p, tag, data, static_cast<std::size_t>(bytes)); });
  link_->wait_all(deadline_);
  reduce_part(dtype, op, data, data, n);
}

// Rank p reduces part p and sends it to the others.
void Exchange::reduce_two_hops(DType dtype, Reduce op, std::byte* data, std::int64_t n) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const auto begin = [&](int p) { return n * p / size * element; };
  const auto bytes = [&](int p) { return static_cast<std::size_t>(begin(p + 1) - begin(p)); };
  const auto own = static_cast<std::int64_t>(bytes(rank));
  std::byte* others = scratch((size - 1) * own);
  std::uint64_t tag = next_round();
  each_peer([&](int p) { link_->post_recv(p, tag, others + slot(p) * own, bytes(rank)); });
  each_peer([&](int p) { link_->post_send(p, tag, data + begin(p), bytes(p)); });
  link_->wait_all(deadline_);
  reduce_part(dtype, op, data + begin(rank), data + begin(rank), own / element);
  tag = next_round();
  each_peer([&](int p) { link_->post_recv(p, tag, data + begin(p), bytes(p)); });
  each_peer([&](int p) { link_->post_send(p, tag, data + begin(rank), bytes(rank)); });
  link_->wait_all(deadline_);
}

void Exchange::all_gather(std::byte* out, const std::byte* in, std::int64_t bytes) {
  std::byte* own = out + rank * bytes;
  if (own != in) std::memmove(own, in, static_cast<std::size_t>(bytes));
  const std::uint64_t tag = next_round();
  each_peer([&](int p) { link_->post_recv(p, tag, out + p * bytes, static_cast<std::size_t>(bytes)); });
  each_peer([&](int p) { link_->post_send(p, tag, own, static_cast<std::size_t>(bytes)); });
  link_->wait_all(deadline_);
}

void Exchange::reduce_scatter(DType dtype, Reduce op, std::byte* out, const std::byte* in, std::int64_t n) {
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
    reduce_part(dtype, op, out + begin * element, part(rank), count);
  }
}

void Exchange::broadcast(std::byte* data, std::int64_t bytes, int root) {
  const std::uint64_t tag = next_round();
  if (rank == root)
    each_peer([&](int p) { link_->post_send(p, tag, data, static_cast<std::size_t>(bytes)); });
  else
    link_->post_recv(root, tag, data, static_cast<std::size_t>(bytes));
  link_->wait_all(deadline_);
}

void Exchange::send_recv(const std::byte* out, std::int64_t out_bytes, int to, std::byte* in, std::int64_t in_bytes,
                         int from) {
  const auto tag = [](std::uint64_t number, std::int64_t bytes) {
    return make_tag(Channel::point_to_point, number, static_cast<std::uint64_t>(bytes));
  };
  if (in) {
    const std::uint64_t number = peers_[static_cast<std::size_t>(from)].received++;
    link_->post_recv(from, tag(number, in_bytes), in, static_cast<std::size_t>(in_bytes));
  }
  if (out) {
    const std::uint64_t number = peers_[static_cast<std::size_t>(to)].sent++;
    link_->post_send(to, tag(number, out_bytes), out, static_cast<std::size_t>(out_bytes));
  }
  link_->wait_all(deadline_);
}

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(std::string_view backend, int rank, int size, std::unique_ptr<Link> link,
                   std::shared_ptr<CommQueue> queue, const CommOptions& options)
      : Communicator(rank, size),
        backend_(backend),
        queue_(std::move(queue)),
        exchange_(std::make_shared<Exchange>(rank, size, std::move(link), options)) {}
  ~HostCommunicator() override { exchange_->abort("the communicator was destroyed"); }

  std::string_view backend() const override { return backend_; }
  void abort(const std::string& reason) override { exchange_->abort(reason); }

 private:
  Work start(Operation op, std::vector<Tensor> held, const Event& after, std::function<void(Exchange&)> body) {
    for (const Tensor& t : held)
      RING_CHECK(!t.defined() || t.device().backend == Backend::cpu, op.text, ": the ", backend_,
                 " communicator moves host memory, got ", describe(t));
    Event done = queue_->push([exchange = exchange_, held, op = std::move(op), after, body = std::move(body)] {
      exchange->run(op, after, body);
    });
    return {std::move(done), std::move(held)};
  }

  Work do_all_reduce(const Tensor& t, Reduce op, const Event& after) override {
    return start({str("all_reduce ", to_string(op), " of ", describe(t))}, {t}, after,
                 [t, op](Exchange& x) { x.all_reduce(t.dtype(), op, t.raw(), t.numel()); });
  }
  Work do_all_gather(const Tensor& out, const Tensor& in, const Event& after) override {
    return start({str("all_gather of ", describe(in))}, {out, in}, after,
                 [out, in](Exchange& x) { x.all_gather(out.raw(), in.raw(), static_cast<std::int64_t>(in.bytes())); });
  }
  Work do_reduce_scatter(const Tensor& out, const Tensor& in, Reduce op, const Event& after) override {
    return start({str("reduce_scatter ", to_string(op), " of ", describe(in))}, {out, in}, after,
                 [out, in, op](Exchange& x) { x.reduce_scatter(in.dtype(), op, out.raw(), in.raw(), out.numel()); });
  }
  Work do_broadcast(const Tensor& t, int root, const Event& after) override {
    return start({str("broadcast of ", describe(t), " from rank ", root)}, {t}, after,
                 [t, root](Exchange& x) { x.broadcast(t.raw(), static_cast<std::int64_t>(t.bytes()), root); });
  }
  Work do_barrier(const Event& after) override {
    return start({"barrier"}, {}, after, [](Exchange& x) {
      std::int32_t here = 1;
      x.all_reduce(DType::i32, Reduce::sum, reinterpret_cast<std::byte*>(&here), 1);
      RING_CHECK(here == x.size, "barrier: ", here, " ranks of ", x.size, " arrived");
    });
  }
  Work do_send_recv(const Tensor& out, int to, const Tensor& in, int from, const Event& after) override;

  std::string backend_;
  std::shared_ptr<CommQueue> queue_;
  std::shared_ptr<Exchange> exchange_;
};

Work HostCommunicator::do_send_recv(const Tensor& out, int to, const Tensor& in, int from, const Event& after) {
  const bool sends = out.defined(), receives = in.defined();
  std::string text = sends ? str("send of ", describe(out), " to rank ", to) : "";
  if (receives) text += str(sends ? " and " : "", "receive of ", describe(in), " from rank ", from);
  return start({text, false}, {out, in}, after, [=](Exchange& x) {
    const auto in_bytes = receives ? static_cast<std::int64_t>(in.bytes()) : 0;
    const auto out_bytes = sends ? static_cast<std::int64_t>(out.bytes()) : 0;
    if (to == x.rank && from == x.rank) return void(std::memmove(in.raw(), out.raw(), out.bytes()));
    x.send_recv(sends ? out.raw() : nullptr, out_bytes, to, receives ? in.raw() : nullptr, in_bytes, from);
  });
}

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(std::string_view backend, int rank, int size,
                                                     std::unique_ptr<Link> link, std::shared_ptr<CommQueue> queue,
                                                     const CommOptions& options) {
  return std::make_unique<HostCommunicator>(backend, rank, size, std::move(link), std::move(queue), options);
}

}  // namespace ring
