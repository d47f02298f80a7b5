#pragma once
// Notes between the processes of one host, in memory that they share: where a rank expects its next message, and the
// memory of its GPU that others may write to.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ring::nccl {

// Memory of a GPU, for other processes and for other threads of the same one.
struct IpcHandle {
  std::uint64_t process = 0;
  std::byte* memory = nullptr;
  int device = 0;
  unsigned char handle[64] = {};  // a cudaIpcMemHandle_t
};

// In the memory that a rank lets others write to.
struct RemoteAddress {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
};

struct RecvDescriptor {
  RemoteAddress at;
  std::uint64_t bytes = 0;
};

class Mailbox {
 public:
  // Makes this rank's mailbox; open() maps that of another one by its name. Error: the host has no /dev/shm that they
  // share.
  Mailbox(int rank, int size);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;
  const std::string& name() const { return name_; }
  void open(int peer, const std::string& name);
  void unlink();  // once all have opened it: nothing is left behind

  // A segment of this rank's memory, before notes that name it; Error: too many.
  void announce(std::size_t segment, const IpcHandle&);
  IpcHandle segment(int peer, std::size_t segment) const;

  // Notes from and to a peer arrive in order. Both wait where they have to, and call `check` meanwhile, which throws
  // when it is time to give up.
  void post(int peer, const RecvDescriptor&, const std::function<void()>& check);
  RecvDescriptor take(int peer, const std::function<void()>& check);

 private:
  struct SharedPage;
  struct Ring;
  Ring& ring(int owner, int reader) const;
  std::optional<RecvDescriptor> read(int peer);

  int rank_, size_;
  std::string name_;
  std::size_t bytes_;
  std::vector<SharedPage*> boxes_;                 // by rank
  std::vector<std::deque<RecvDescriptor>> early_;  // by rank: read while there was no room for notes of ours
};

}  // namespace ring::nccl
