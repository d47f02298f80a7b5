#include "comm/nccl/peer_copies.h"

#ifdef RING_WITH_NCCL

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/awake_clock.h"
#include "core/cuda/check.h"
#include "core/cuda/handles.h"
#include "core/cuda/stream.h"
#include "core/log.h"
#include "core/philox.h"
#include "core/signals.h"
#include "job/liveness.h"

namespace ring::nccl {
namespace {

using std::chrono::milliseconds;
using Clock = AwakeClock;

// Added to a message count, gives a flag value that releases all waits. Flag values are compared with wrap-around.
constexpr std::uint32_t kFar = std::uint32_t{1} << 30;
const char* const kFine = "fine";

struct Driver {
  decltype(&cuStreamWriteValue32) write = nullptr;
  decltype(&cuStreamWaitValue32) wait = nullptr;
};

template <class F>
void find(const char* name, F& function) {
  void* f = nullptr;
  cudaDriverEntryPointQueryResult result{};
  RING_CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess) fail("the driver has no ", name);
  function = reinterpret_cast<F>(f);
}

const Driver& driver() {
  static const Driver found = [] {
    Driver d;
    find("cuStreamWriteValue32", d.write);
    find("cuStreamWaitValue32", d.wait);
    return d;
  }();
  return found;
}

void check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS)
    fail(call, ": error ", static_cast<int>(result), " (", cudaGetErrorString(static_cast<cudaError_t>(result)), ")");
}

cudaStream_t native(const Stream& s) { return static_cast<cudaStream_t>(s.native()); }

// Queues a write of the flag after all earlier work of the stream. Other devices see that work before the flag.
void raise(cudaStream_t s, std::uint32_t* flag, std::uint32_t value) {
  const auto at = reinterpret_cast<CUdeviceptr>(flag);
  check(driver().write(s, at, value, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue32");
}
void raise(const Stream& s, std::uint32_t* flag, std::uint32_t value) { raise(native(s), flag, value); }

void await(const Stream& s, std::uint32_t* flag, std::uint32_t value) {
  const auto at = reinterpret_cast<CUdeviceptr>(flag);
  check(driver().wait(native(s), at, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
}

// Identifies this process: only memory of other processes must be opened by its handle.
std::uint64_t this_process() {
  static const std::uint64_t id = site_of(random_cookie());
  return id;
}

IpcHandle card_of(std::byte* memory, int device) {
  IpcHandle card{this_process(), memory, device, {}};
  static_assert(sizeof card.handle == sizeof(cudaIpcMemHandle_t));
  RING_CUDA_CHECK(cudaIpcGetMemHandle(reinterpret_cast<cudaIpcMemHandle_t*>(card.handle), memory));
  return card;
}

std::string to_bytes(const IpcHandle& card, const std::string& box) {
  return std::string(reinterpret_cast<const char*>(&card), sizeof card) + box;
}

// Returns a stream with a priority that no other stream has, so that it shares no device queue with the streams that it
// must release.
cudaStream_t stream_beside_others() {
  int lowest = 0, highest = 0;
  RING_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t s = nullptr;
  RING_CUDA_CHECK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, (lowest + highest) / 2));
  return s;
}

void enable_access(int device) {
  const cudaError_t error = cudaDeviceEnablePeerAccess(device, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  else
    RING_CUDA_CHECK(error);
}

// Objects that are closed, but whose memory a peer may still write to.
struct Retired {
  std::mutex mutex;
  std::vector<std::shared_ptr<PeerCopies>> all;
};
Retired& retired() {
  static auto* const r = new Retired;  // never freed: CUDA may be unloaded before static destructors run
  return *r;
}

}  // namespace

PeerCopies::Lane::Lane(int device) : stream(cuda::high_priority_stream(device)) {}

PeerCopies::PeerCopies(const NcclGroup& group, std::shared_ptr<Store> store, const CommOptions& options)
    : rank_(group.rank),
      size_(group.size),
      device_(group.device.index),
      key_(group.name + "/copies"),
      store_(std::move(store)),
      options_(options),
      flags_(static_cast<std::size_t>(group.size)),
      segments_(static_cast<std::size_t>(group.size)) {}

std::shared_ptr<PeerCopies> PeerCopies::make(const NcclGroup& group, std::shared_ptr<Store> store,
                                             const CommOptions& options) {
  std::shared_ptr<PeerCopies> copies(new PeerCopies(group, std::move(store), options));
  const auto refuse = [&](const std::string& why) {
    log::debug("messages between the GPUs of ", group.name, " go through NCCL, not copy engines: ", why);
    return nullptr;
  };
  const auto hosts = copies->gather("host", host_identity());
  free_retired();
  for (const std::string& host : hosts)
    if (host != hosts.front()) return refuse(str("ranks are on ", hosts.front(), " and ", host));

  const cuda::OnDevice on(group.device.index);
  std::string card = to_bytes({}, "");
  std::string state = copies->attempt([&] { card = copies->prepare(); });
  const auto cards = copies->gather("card", card);
  if (state == kFine) state = copies->attempt([&] { copies->connect(cards); });
  const auto states = copies->gather("state", state);
  for (std::size_t r = 0; r < states.size(); ++r)
    if (states[r] != kFine) {
      copies->close(true);
      return refuse(str("rank ", options.rank_of_run(static_cast<int>(r)), ": ", states[r]));
    }
  copies->mailbox_->unlink();
  return copies;
}

std::string PeerCopies::attempt(const std::function<void()>& what) const {
  try {
    what();
    return kFine;
  } catch (const Error& e) {
    return e.what();
  }
}

std::vector<std::string> PeerCopies::gather(const std::string& what, const std::string& value) {
  store_->set(str(key_, '/', what, '/', rank_), value);
  std::vector<std::string> all;
  for (int r = 0; r < size_; ++r) all.push_back(store_->get(str(key_, '/', what, '/', r), options_.connect_timeout));
  return all;
}

std::string PeerCopies::prepare() {
  mailbox_ = std::make_unique<Mailbox>(rank_, size_);
  peer_memory_ = std::make_shared<PeerMemoryPool>(Device{Backend::cuda, device_},
                                                  [this](const PeerMemoryPool::Segment& segment, std::size_t number) {
                                                    mailbox_->publish_segment(number, card_of(segment.data, device_));
                                                  });
  void* memory = nullptr;
  const std::size_t bytes = 2 * sizeof(std::uint32_t) * static_cast<std::size_t>(size_);
  RING_CUDA_CHECK(cudaMalloc(&memory, bytes));  // no pool, because pool memory has no IPC handle
  flags_[static_cast<std::size_t>(rank_)] = static_cast<std::byte*>(memory);
  for (int r = 0; r < size_; ++r) {
    out_.emplace_back(device_);
    in_.emplace_back(device_);
  }
  ready_ = cuda::high_priority_stream(device_);
  releasing_ = stream_beside_others();
  const Stream& s = out_.front().stream;
  RING_CUDA_CHECK(cudaMemsetAsync(memory, 0, bytes, native(s)));
  // Tests the driver's operations now, while NCCL can still be used instead.
  raise(s, flag_address(rank_, filled, rank_), 1);
  await(s, flag_address(rank_, filled, rank_), 1);
  s.synchronize();  // allowed host wait: start
  return to_bytes(card_of(flags_[static_cast<std::size_t>(rank_)], device_), mailbox_->name());
}

void PeerCopies::connect(const std::vector<std::string>& cards) {
  for (std::size_t r = 0; r < cards.size(); ++r) {
    IpcHandle card;
    RING_CHECK(cards[r].size() >= sizeof card, "rank ", r, " published ", cards[r].size(), " bytes, not ", sizeof card);
    std::memcpy(&card, cards[r].data(), sizeof card);
    if (static_cast<int>(r) == rank_ || !card.memory) continue;  // that rank reports its own error
    flags_[r] = map_memory(card);
    mailbox_->open(static_cast<int>(r), cards[r].substr(sizeof card));
  }
}

std::byte* PeerCopies::map_memory(const IpcHandle& card) {
  if (card.process == this_process()) {
    enable_access(card.device);
    return card.memory;
  }
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, card.handle, sizeof handle);
  void* at = nullptr;
  RING_CUDA_CHECK(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess));
  mapped_.push_back(at);
  return static_cast<std::byte*>(at);
}

std::byte* PeerCopies::map_memory(int peer, const RemoteAddress& at) {
  auto& known = segments_[static_cast<std::size_t>(peer)];
  while (known.size() <= at.segment) known.push_back(map_memory(mailbox_->peer_segment(peer, known.size())));
  return known[at.segment] + at.offset;
}

std::uint32_t* PeerCopies::flag_address(int owner, Flag kind, int peer) const {
  return reinterpret_cast<std::uint32_t*>(flags_[static_cast<std::size_t>(owner)]) + kind * size_ + peer;
}

PeerCopies::Messages PeerCopies::group_by_peer(const std::vector<Transfer>& list) const {
  Messages out(static_cast<std::size_t>(size_));
  for (const Transfer& t : list)
    if (t.tensor.bytes() > 0) out[static_cast<std::size_t>(t.peer)].push_back(t.tensor);
  return out;
}

std::function<void()> PeerCopies::deadline() const {
  return [this, end = Clock::now() + options_.timeout] {
    if (aborted_) throw PeerLost("told to give up");
    if (Clock::now() > end) throw PeerLost("a rank did not reach it in time: a rank is stopped or stuck");
  };
}

PeerCopies::Messages PeerCopies::post_receives(const Messages& receives, std::vector<Tensor>& keep_alive) {
  Messages landed(receives.size());
  const auto check = deadline();
  for (std::size_t p = 0; p < receives.size(); ++p) {
    Lane& lane = in_[p];
    const int peer = static_cast<int>(p);
    if (peer == rank_ || receives[p].empty()) continue;
    for (const Tensor& t : receives[p]) {
      std::optional<RemoteAddress> at = peer_memory_->find(t.raw());
      landed[p].push_back(at ? t : peer_memory_->tensor(t.shape(), t.dtype(), lane.stream));
      if (!at) {
        keep_alive.push_back(landed[p].back());
        at = peer_memory_->find(keep_alive.back().raw());
      }
      mailbox_->post_descriptor(peer, {*at, t.bytes()}, check);
    }
    lane.messages += static_cast<std::uint32_t>(receives[p].size());
    raise(*ready_, flag_address(peer, ready, rank_), lane.messages);
  }
  return landed;
}

void PeerCopies::wait_until_free(const std::vector<Transfer>& receives, const std::vector<Event>& after) {
  const auto says_when = [&](const Transfer& t) { return t.free.defined() && peer_memory_->find(t.tensor.raw()); };
  if (std::ranges::all_of(receives, says_when))
    for (const Transfer& t : receives) ready_->wait(t.free);
  else
    for (const Event& e : after) ready_->wait(e);
  ready_->wait(copied_);
}

void PeerCopies::send(int peer, const Tensor& t) {
  Lane& lane = out_[static_cast<std::size_t>(peer)];
  const RecvDescriptor note = mailbox_->take_descriptor(peer, deadline());
  RING_CHECK(note.bytes == t.bytes(), "rank ", options_.rank_of_run(rank_), " sends ", t.bytes(), " bytes, but rank ",
             options_.rank_of_run(peer), " expects ", note.bytes);
  std::byte* const to = map_memory(peer, note.at);
  const std::uint32_t n = ++lane.messages;
  await(lane.stream, flag_address(rank_, ready, peer), n);
  lane.stream.impl().copy(to, t.raw(), t.bytes());
  raise(lane.stream, flag_address(peer, filled, rank_), n);
}

// Queues first the work that releases peers, then sends, and waits for peers last. Streams that share a device queue
// then delay each other but never deadlock, because every rank has already queued the work that another rank waits for.
Event PeerCopies::exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                           const std::vector<Event>& after, std::vector<Tensor>& keep_alive) {
  const Messages out = group_by_peer(sends), in = group_by_peer(receives);
  const auto me = static_cast<std::size_t>(rank_);
  std::vector<const Stream*> used;
  bool copied = false;
  const auto begin = [&](const Messages& messages, std::deque<Lane>& lanes, bool own) {
    for (std::size_t p = 0; p < messages.size(); ++p) {
      if (messages[p].empty() || (p == me && !own)) continue;
      used.push_back(&lanes[p].stream);
      for (const Event& e : after) used.back()->wait(e);
      used.back()->wait(copied_);
    }
  };
  begin(out, out_, false);
  begin(in, in_, true);
  wait_until_free(receives, after);
  const Messages landed = post_receives(in, keep_alive);
  for (std::size_t p = 0; p < out.size(); ++p)
    for (const Tensor& t : out[p])
      if (p != me) send(static_cast<int>(p), t);
  for (std::size_t p = 0; p < in.size(); ++p) {
    const Stream& stream = in_[p].stream;
    if (p != me && !in[p].empty()) await(stream, flag_address(rank_, filled, static_cast<int>(p)), in_[p].messages);
    for (std::size_t k = 0; k < in[p].size(); ++k) {
      const Tensor& from = p == me ? out[p][k] : landed[p][k];
      if (from.raw() == in[p][k].raw()) continue;
      stream.impl().copy(in[p][k].raw(), from.raw(), from.bytes());
      copied = true;
    }
  }
  if (used.empty()) return after.empty() ? Event{} : after.front();
  for (const Stream* s : used)
    if (s != used.back()) used.back()->wait(s->record());
  Event end = used.back()->record();
  if (copied) copied_ = end;
  return end;
}

void PeerCopies::abort() {
  if (aborted_.exchange(true)) return;
  const BlockSignals block;
  // Detached: calls on a failed device may never return.
  std::thread([self = shared_from_this()] { self->raise_all_flags(); }).detach();
}

// Raises the flags repeatedly, because a peer that continues overwrites them with its own counts, and a call that has
// begun queues more waits.
void PeerCopies::raise_all_flags() {
  try {
    const cuda::OnDevice on(device_);
    do {
      for (int p = 0; p < size_; ++p) {
        const auto at = static_cast<std::size_t>(p);
        raise(releasing_, flag_address(rank_, ready, p), out_[at].messages + kFar);
        raise(releasing_, flag_address(rank_, filled, p), in_[at].messages + kFar);
      }
      std::this_thread::sleep_for(milliseconds(10));
    } while (!closed_ || !is_idle());
  } catch (const std::exception&) {  // the device failed or the process is ending: nothing waits any more
  }
}

bool PeerCopies::is_idle() const {
  const auto done = [](const Lane& lane) { return cudaStreamQuery(native(lane.stream)) == cudaSuccess; };
  return std::all_of(out_.begin(), out_.end(), done) && std::all_of(in_.begin(), in_.end(), done) &&
         (!ready_ || cudaStreamQuery(native(*ready_)) == cudaSuccess);
}

void PeerCopies::free_retired() {
  const std::lock_guard lock(retired().mutex);
  std::erase_if(retired().all, [](const std::shared_ptr<PeerCopies>& c) {
    if (c.use_count() > 1) return false;  // raise_all_flags() still runs
    try {
      const cuda::OnDevice on(c->device_);
      if (!c->is_idle()) return false;
      c->unmap_memory();
      cudaFree(c->flags_[static_cast<std::size_t>(c->rank_)]);  // the result is ignored, as in PeerMemoryPool
      if (c->peer_memory_) c->peer_memory_->reclaim();
    } catch (const std::exception& e) {
      log::debug("memory for copies between GPUs is kept until the process ends: ", e.what());
      return false;
    }
    return true;
  });
}

void PeerCopies::unmap_memory() {
  for (void* at : mapped_) cudaIpcCloseMemHandle(at);
  mapped_.clear();
}

void PeerCopies::close(bool healthy) {
  const auto deadline = Clock::now() + kCloseTime;
  try {
    const cuda::OnDevice on(device_);
    while (healthy && !is_idle()) {  // allowed host wait: shutdown
      healthy = Clock::now() < deadline;
      std::this_thread::sleep_for(milliseconds(1));
    }
    if (healthy)
      unmap_memory();
    else if (releasing_)
      abort();
    store_->set(str(key_, "/closed/", rank_), healthy ? kFine : "broken");
    for (int r = 0; healthy && r < size_; ++r) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      healthy = store_->get(str(key_, "/closed/", r), std::max(left, milliseconds(1))) == kFine;
    }
    if (healthy && !aborted_.exchange(true)) RING_CUDA_CHECK(cudaFree(flags_[static_cast<std::size_t>(rank_)]));
  } catch (const std::exception& e) {
    healthy = false;
    log::debug("memory for copies between GPUs is kept until the process ends: ", e.what());
  }
  if (!healthy && peer_memory_) peer_memory_->abandon();
  closed_ = true;
  if (healthy) return;
  const std::lock_guard lock(retired().mutex);
  retired().all.push_back(shared_from_this());
}

}  // namespace ring::nccl

#endif
