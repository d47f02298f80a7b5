#include "comm/nccl/mailbox.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/check.h"
#include "job/store.h"

namespace ring::nccl {
namespace {

constexpr std::size_t kNotes = 1024;    // maximum notes in transit to one peer
constexpr std::size_t kSegments = 256;  // maximum segments per rank

// Polls fast at first, because ranks usually arrive at about the same time.
template <class Done>
void wait_until(const Done& done, const std::function<void()>& check) {
  for (int tries = 0; !done(); ++tries) {
    if (tries < 2000) {
      std::this_thread::yield();
      continue;
    }
    check();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace

struct Mailbox::Ring {
  std::atomic<std::uint64_t> posted, taken;
  RecvDescriptor notes[kNotes];
};
// Zero-filled at creation. In memory, one Ring for each reader follows.
struct Mailbox::SharedPage {
  std::atomic<std::uint64_t> segments;
  IpcHandle cards[kSegments];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared between processes");

Mailbox::Mailbox(int rank, int size)
    : rank_(rank),
      size_(size),
      name_(str("/ringmaster-", ::getpid(), "-", random_cookie().substr(0, 16))),
      bytes_(sizeof(SharedPage) + static_cast<std::size_t>(size) * sizeof(Ring)),
      boxes_(static_cast<std::size_t>(size)),
      early_(static_cast<std::size_t>(size)) {
  const int file = ::shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file < 0) fail("cannot create ", name_, " in /dev/shm: ", std::strerror(errno));
  int error = EINTR;  // without posix_fallocate(), a full /dev/shm would kill the writer (SIGBUS)
  while (error == EINTR) error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes_));
  ::close(file);
  if (error != 0) {
    unlink();
    fail("cannot reserve ", bytes_, " bytes for ", name_, " in /dev/shm: ", std::strerror(error));
  }
  try {
    open(rank, name_);
  } catch (...) {
    unlink();
    throw;
  }
}

Mailbox::~Mailbox() {
  unlink();
  for (SharedPage* box : boxes_)
    if (box) ::munmap(box, bytes_);
}

void Mailbox::unlink() { ::shm_unlink(name_.c_str()); }

void Mailbox::open(int peer, const std::string& name) {
  const int file = ::shm_open(name.c_str(), O_RDWR, 0600);
  if (file < 0) fail("cannot open ", name, " in /dev/shm: ", std::strerror(errno));
  void* const at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  ::close(file);
  if (at == MAP_FAILED) fail("cannot map ", name, " in /dev/shm: ", std::strerror(error));
  boxes_[static_cast<std::size_t>(peer)] = static_cast<SharedPage*>(at);
}

Mailbox::Ring& Mailbox::ring(int owner, int reader) const {
  auto* const rings = reinterpret_cast<Ring*>(boxes_[static_cast<std::size_t>(owner)] + 1);
  return rings[reader];
}

void Mailbox::publish_segment(std::size_t segment, const IpcHandle& card) {
  SharedPage& box = *boxes_[static_cast<std::size_t>(rank_)];
  RING_CHECK(segment < kSegments, "messages from other ranks need ", segment + 1, " segments of memory, but at most ",
             kSegments, " are allowed");
  box.cards[segment] = card;
  box.segments.store(segment + 1, std::memory_order_release);
}

IpcHandle Mailbox::peer_segment(int peer, std::size_t segment) const {
  const SharedPage& box = *boxes_[static_cast<std::size_t>(peer)];
  RING_CHECK(segment < box.segments.load(std::memory_order_acquire), "segment ", segment, " of rank ", peer,
             " does not exist");
  return box.cards[segment];
}

void Mailbox::post_descriptor(int peer, const RecvDescriptor& note, const std::function<void()>& check) {
  Ring& to = ring(rank_, peer);
  const std::uint64_t n = to.posted.load(std::memory_order_relaxed);
  const auto room = [&] {
    if (n - to.taken.load(std::memory_order_acquire) < kNotes) return true;
    for (int p = 0; p < size_; ++p)  // makes space for other ranks, which may be waiting, too
      while (const std::optional<RecvDescriptor> come = p == rank_ ? std::nullopt : read(p))
        early_[static_cast<std::size_t>(p)].push_back(*come);
    return false;
  };
  wait_until(room, check);
  to.notes[n % kNotes] = note;
  to.posted.store(n + 1, std::memory_order_release);
}

RecvDescriptor Mailbox::take_descriptor(int peer, const std::function<void()>& check) {
  auto& early = early_[static_cast<std::size_t>(peer)];
  std::optional<RecvDescriptor> note;
  if (!early.empty()) {
    note = early.front();
    early.pop_front();
    return *note;
  }
  wait_until([&] { return (note = read(peer)).has_value(); }, check);
  return *note;
}

std::optional<RecvDescriptor> Mailbox::read(int peer) {
  Ring& from = ring(peer, rank_);
  const std::uint64_t n = from.taken.load(std::memory_order_relaxed);
  if (from.posted.load(std::memory_order_acquire) == n) return {};
  const RecvDescriptor note = from.notes[n % kNotes];
  from.taken.store(n + 1, std::memory_order_release);
  return note;
}

}  // namespace ring::nccl
