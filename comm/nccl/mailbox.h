#pragma once
// Notes between the processes of one host in shared memory. They say where a rank expects its next message, and which
// memory of its GPU other ranks may write to.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ring::nccl {

// A handle of GPU memory for other processes, and for other threads of the same process.
struct IpcHandle {
  std::uint64_t process = 0;
  std::byte* memory = nullptr;
  int device = 0;
  unsigned char handle[64] = {};  // a cudaIpcMemHandle_t
};

// An address in the memory of a rank that other ranks may write to.
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
  // Creates this rank's mailbox. open() maps the mailbox of another rank by its name. Throws Error if the processes of
  // the host share no /dev/shm.
  Mailbox(int rank, int size);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;
  const std::string& name() const { return name_; }
  void open(int peer, const std::string& name);
  void unlink();  // call it once all ranks have opened the mailbox: removes its file

  // Publishes a segment of this rank's memory. Call it before notes that refer to the segment. Throws Error if there
  // are too many.
  void publish_segment(std::size_t segment, const IpcHandle&);
  IpcHandle peer_segment(int peer, std::size_t segment) const;

  // Notes between two ranks arrive in order. post_descriptor() waits for space and take_descriptor() for a note; both
  // call `check` meanwhile, which throws when it is time to give up.
  void post_descriptor(int peer, const RecvDescriptor&, const std::function<void()>& check);
  RecvDescriptor take_descriptor(int peer, const std::function<void()>& check);

 private:
  struct SharedPage;
  struct Ring;
  Ring& ring(int owner, int reader) const;
  std::optional<RecvDescriptor> read(int peer);

  int rank_, size_;
  std::string name_;
  std::size_t bytes_;
  std::vector<SharedPage*> boxes_;  // mailboxes by rank
  // Notes by rank that post_descriptor() read while it waited for space.
  std::vector<std::deque<RecvDescriptor>> early_;
};

}  // namespace ring::nccl
