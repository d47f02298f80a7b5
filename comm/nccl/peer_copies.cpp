#include "comm/nccl/peer_copies.h"

#ifdef RING_WITH_NCCL

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

#include "comm/liveness.h"
#include "comm/signals.h"
#include "core/cuda/check.h"
#include "core/cuda/handles.h"
#include "core/cuda/stream.h"
#include "core/log.h"
#include "core/philox.h"

namespace ring::nccl {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kSlots = 8;                     // some are filled while others are emptied
constexpr std::uint32_t kFar = std::uint32_t{1} << 30;  // pieces ahead; flags are compared with wrap-around
constexpr std::size_t kAlign = 256;
constexpr milliseconds kCloseTime{5'000};
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

// After everything that the stream holds, which other devices see first.
void raise(const Stream& s, std::uint32_t* flag, std::uint32_t value) {
  const auto at = reinterpret_cast<CUdeviceptr>(flag);
  check(driver().write(native(s), at, value, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue32");
}

void await(const Stream& s, std::uint32_t* flag, std::uint32_t value) {
  const auto at = reinterpret_cast<CUdeviceptr>(flag);
  check(driver().wait(native(s), at, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
}

// By a copy engine also within a device, where a kernel would be quicker but take multiprocessors.
void copy(const Stream& s, std::byte* to, const std::byte* from, std::size_t bytes) {
#if CUDART_VERSION >= 13000
  void* const destination = to;
  const void* const source = from;
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  std::size_t first = 0;
  RING_CUDA_CHECK(cudaMemcpyBatchAsync(&destination, &source, &bytes, 1, &attributes, &first, 1, native(s)));
#else
  RING_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, native(s)));
#endif
}

// Another process's memory is opened by its handle; this one's is there already.
std::uint64_t this_process() {
  static const std::uint64_t id = site_of(random_cookie());
  return id;
}

struct Card {
  std::uint64_t process = 0;
  std::byte* memory = nullptr;
  int device = 0;
  cudaIpcMemHandle_t handle{};
};

std::string to_bytes(const Card& card) { return {reinterpret_cast<const char*>(&card), sizeof card}; }

void enable_access(int device) {
  const cudaError_t error = cudaDeviceEnablePeerAccess(device, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  else
    RING_CUDA_CHECK(error);
}

std::size_t round_up(std::size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

}  // namespace

PeerCopies::Lane::Lane(int device) : stream(cuda::high_priority_stream(device)) {}

PeerCopies::PeerCopies(const NcclGroup& group, std::shared_ptr<Store> store, const CommOptions& options)
    : rank_(group.rank),
      size_(group.size),
      device_(group.device.index),
      key_(group.name + "/copies"),
      store_(std::move(store)),
      options_(options),
      flag_bytes_(round_up(2 * sizeof(std::uint32_t) * static_cast<std::size_t>(group.size))),
      slot_bytes_(round_up(std::max<std::size_t>(options.inbox_bytes / kSlots, 1))),
      memory_(static_cast<std::size_t>(group.size)),
      mapped_(static_cast<std::size_t>(group.size)) {}

std::shared_ptr<PeerCopies> PeerCopies::make(const NcclGroup& group, std::shared_ptr<Store> store,
                                             const CommOptions& options) {
  std::shared_ptr<PeerCopies> copies(new PeerCopies(group, std::move(store), options));
  const auto refuse = [&](const std::string& why) {
    log::debug("messages between the GPUs of ", group.name, " go through NCCL, not copy engines: ", why);
    return nullptr;
  };
  const auto hosts = copies->gather("host", str(host_identity(), ", slots of ", copies->slot_bytes_, " bytes"));
  for (const std::string& host : hosts)
    if (host != hosts.front()) return refuse(str("ranks are on ", hosts.front(), " and on ", host));

  const cuda::OnDevice on(group.device.index);
  std::string card = to_bytes({});
  std::string state = copies->attempt([&] { card = copies->prepare(); });
  const auto cards = copies->gather("card", card);
  if (state == kFine) state = copies->attempt([&] { copies->connect(cards); });
  const auto states = copies->gather("state", state);
  for (std::size_t r = 0; r < states.size(); ++r)
    if (states[r] != kFine) {
      copies->close(true);
      return refuse(str("rank ", options.rank_of_run(static_cast<int>(r)), ": ", states[r]));
    }
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
  const std::size_t slots = static_cast<std::size_t>(size_ - 1) * kSlots * slot_bytes_;
  void* memory = nullptr;
  RING_CUDA_CHECK(cudaMalloc(&memory, flag_bytes_ + slots));  // not of a pool, whose memory has no such handle
  memory_[static_cast<std::size_t>(rank_)] = static_cast<std::byte*>(memory);
  for (int r = 0; r < size_; ++r) {
    out_.emplace_back(device_);
    in_.emplace_back(device_);
  }
  releasing_ = std::make_unique<Lane>(device_);
  const Stream& s = releasing_->stream;
  RING_CUDA_CHECK(cudaMemsetAsync(memory, 0, flag_bytes_, native(s)));
  // What the driver cannot do shows here, while there is another way.
  raise(s, flag(rank_, filled, rank_), 1);
  await(s, flag(rank_, filled, rank_), 1);
  copy(s, static_cast<std::byte*>(memory) + flag_bytes_, static_cast<std::byte*>(memory), kAlign);
  s.synchronize();  // host waits: start

  Card card{this_process(), memory_[static_cast<std::size_t>(rank_)], device_, {}};
  RING_CUDA_CHECK(cudaIpcGetMemHandle(&card.handle, memory));
  return to_bytes(card);
}

void PeerCopies::connect(const std::vector<std::string>& cards) {
  for (std::size_t r = 0; r < cards.size(); ++r) {
    Card card;
    RING_CHECK(cards[r].size() == sizeof card, "rank ", r, " left ", cards[r].size(), " bytes, not ", sizeof card);
    std::memcpy(&card, cards[r].data(), sizeof card);
    if (static_cast<int>(r) == rank_ || !card.memory) continue;  // it says itself what is wrong
    if (card.process == this_process()) {
      enable_access(card.device);
      memory_[r] = card.memory;
      continue;
    }
    void* opened = nullptr;
    RING_CUDA_CHECK(cudaIpcOpenMemHandle(&opened, card.handle, cudaIpcMemLazyEnablePeerAccess));
    memory_[r] = static_cast<std::byte*>(opened);
    mapped_[r] = true;
  }
}

std::uint32_t* PeerCopies::flag(int owner, Flag kind, int peer) const {
  return reinterpret_cast<std::uint32_t*>(memory_[static_cast<std::size_t>(owner)]) + kind * size_ + peer;
}

std::byte* PeerCopies::slot(int owner, int from, std::uint32_t piece) const {
  const auto place = static_cast<std::size_t>(from < owner ? from : from - 1);  // an owner has none for itself
  return memory_[static_cast<std::size_t>(owner)] + flag_bytes_ + (place * kSlots + piece % kSlots) * slot_bytes_;
}

void PeerCopies::send(int peer, const Piece& piece) {
  Lane& lane = out_[static_cast<std::size_t>(peer)];
  const std::uint32_t n = ++lane.pieces;
  await(lane.stream, flag(rank_, freed, peer), n - kSlots);
  copy(lane.stream, slot(peer, rank_, n), piece.at, piece.bytes);
  raise(lane.stream, flag(peer, filled, rank_), n);
}

void PeerCopies::receive(int peer, const Piece& piece) {
  Lane& lane = in_[static_cast<std::size_t>(peer)];
  const std::uint32_t n = ++lane.pieces;
  await(lane.stream, flag(rank_, filled, peer), n);
  copy(lane.stream, piece.at, slot(rank_, peer, n), piece.bytes);
  raise(lane.stream, flag(peer, freed, rank_), n);
}

std::vector<std::vector<PeerCopies::Piece>> PeerCopies::cut(const std::vector<Transfer>& list) const {
  std::vector<std::vector<Piece>> out(static_cast<std::size_t>(size_));
  for (const auto& [t, peer] : list) {
    const std::size_t step = peer == rank_ ? t.bytes() : slot_bytes_;
    for (std::size_t at = 0; at < t.bytes(); at += step)
      out[static_cast<std::size_t>(peer)].push_back({t.raw() + at, std::min(step, t.bytes() - at)});
  }
  return out;
}

// Queued in rounds, and in each all that is sent before what is received: a piece waits only for pieces that every rank
// has queued before, so streams that share a queue of the device delay each other but never wait in a circle.
Event PeerCopies::exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                           const std::vector<Event>& after) {
  const auto out = cut(sends), in = cut(receives);
  std::vector<const Stream*> used;
  std::size_t rounds = 0;
  const auto begin = [&](const std::vector<std::vector<Piece>>& pieces, std::deque<Lane>& lanes, bool own) {
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      if (pieces[p].empty() || (static_cast<int>(p) == rank_ && !own)) continue;
      used.push_back(&lanes[p].stream);
      for (const Event& e : after) used.back()->wait(e);
      rounds = std::max(rounds, pieces[p].size());
    }
  };
  begin(out, out_, false);
  begin(in, in_, true);
  const auto me = static_cast<std::size_t>(rank_);
  for (std::size_t k = 0; k < rounds; ++k) {
    for (std::size_t p = 0; p < out.size(); ++p)
      if (p != me && k < out[p].size()) send(static_cast<int>(p), out[p][k]);
    for (std::size_t p = 0; p < in.size(); ++p)
      if (p != me && k < in[p].size()) receive(static_cast<int>(p), in[p][k]);
    if (k < in[me].size()) copy(in_[me].stream, in[me][k].at, out[me][k].at, in[me][k].bytes);
  }
  if (used.empty()) return after.empty() ? Event{} : after.front();
  for (const Stream* s : used)
    if (s != used.back()) used.back()->wait(s->record());
  return used.back()->record();
}

void PeerCopies::abort() {
  if (aborted_.exchange(true)) return;
  const BlockSignals block;
  std::thread([self = shared_from_this()] { self->release(); }).detach();
}

// Again and again: a peer that goes on writes what it has counted over it.
void PeerCopies::release() {
  const auto start = Clock::now();
  try {
    RING_CUDA_CHECK(cudaSetDevice(device_));
    do {
      for (int p = 0; p < size_; ++p) {
        const auto at = static_cast<std::size_t>(p);
        raise(releasing_->stream, flag(rank_, freed, p), out_[at].pieces + kFar);
        raise(releasing_->stream, flag(rank_, filled, p), in_[at].pieces + kFar);
      }
      std::this_thread::sleep_for(milliseconds(10));
    } while (!idle() || Clock::now() - start < milliseconds(200));
  } catch (const std::exception&) {  // the device failed, or the process is at its end: nothing waits any more
  }
}

bool PeerCopies::idle() const {
  const auto done = [](const Lane& lane) { return cudaStreamQuery(native(lane.stream)) == cudaSuccess; };
  return std::all_of(out_.begin(), out_.end(), done) && std::all_of(in_.begin(), in_.end(), done);
}

void PeerCopies::unmap() {
  for (std::size_t r = 0; r < memory_.size(); ++r)
    if (mapped_[r]) cudaIpcCloseMemHandle(memory_[r]);
}

void PeerCopies::close(bool healthy) {
  const auto deadline = Clock::now() + kCloseTime;
  try {
    const cuda::OnDevice on(device_);
    while (healthy && !idle()) {  // host waits: shutdown
      healthy = Clock::now() < deadline;
      std::this_thread::sleep_for(milliseconds(1));
    }
    if (healthy)
      unmap();
    else if (releasing_)
      abort();
    store_->set(str(key_, "/closed/", rank_), healthy ? kFine : "broken");
    for (int r = 0; healthy && r < size_; ++r) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      healthy = store_->get(str(key_, "/closed/", r), std::max(left, milliseconds(1))) == kFine;
    }
    if (healthy && !aborted_.exchange(true)) RING_CUDA_CHECK(cudaFree(memory_[static_cast<std::size_t>(rank_)]));
  } catch (const std::exception& e) {
    log::debug("memory of copies between GPUs is left to the end of the process: ", e.what());
  }
}

}  // namespace ring::nccl

#endif
