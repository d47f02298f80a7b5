#pragma once
// Streams and events: value handles over the backend's objects. Work on one stream runs in order, and events order
// streams. The host blocks only in tests, logging, checkpoints and at shutdown. A CPU stream runs its work inline on
// its thread pool, so waiting for an event there blocks the caller.

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <typeindex>
#include <typeinfo>
#include <unordered_map>

#include "core/check.h"
#include "core/dtype.h"

namespace ring {

class Allocator;
class ThreadPool;

class EventImpl {
 public:
  virtual ~EventImpl() = default;
  virtual bool done() const = 0;
  virtual void synchronize() const = 0;             // blocks the host; rethrows a failure of the work before the event
  virtual void* native() const { return nullptr; }  // cudaEvent_t; null if only the host can wait for it
  // Returns the time on the host's clock. Throws Error if the event was recorded without time, or on a device.
  virtual double host_seconds() const { fail("this event has no host time"); }
  // Returns the seconds between two events of one backend that were recorded with time. Throws Error if they were not,
  // or if they are not done.
  virtual double seconds_after(const EventImpl& earlier) const { return host_seconds() - earlier.host_seconds(); }
};

class Event {
 public:
  Event() = default;  // an event that is already done
  explicit Event(std::shared_ptr<EventImpl> impl) : impl_(std::move(impl)) {}
  bool defined() const { return impl_ != nullptr; }
  bool done() const { return !impl_ || impl_->done(); }
  void synchronize() const {
    if (impl_) impl_->synchronize();
  }
  double seconds_after(const Event& earlier) const;
  void* native() const { return impl_ ? impl_->native() : nullptr; }

 private:
  std::shared_ptr<EventImpl> impl_;
};

// Recorded work that can be queued again as a whole (a CUDA graph). It uses the memory with which it was recorded.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void launch() = 0;  // queues the work on the stream that recorded it
};

class StreamImpl {
 public:
  virtual ~StreamImpl() = default;
  virtual Event record() = 0;
  virtual Event record_time() = 0;  // like record(), with the time for seconds_after()
  // Records the work that `work` queues on this stream, without running it. Returns null without calling `work` if the
  // backend cannot record. `work` must not wait for the device.
  virtual std::unique_ptr<RecordedWork> record_work(const std::function<void()>& /*work*/) { return nullptr; }
  virtual bool recording() const { return false; }  // true while record_work() calls `work`
  virtual bool computes() const { return true; }    // false for fake streams (core/fake.h), which run no work
  virtual void wait(const Event&) = 0;
  virtual void synchronize() = 0;
  virtual std::string device_name() const { return std::string(to_string(device.backend)); }  // model name
  virtual void* native() { return nullptr; }                                                  // cudaStream_t
  virtual ThreadPool* pool() { return nullptr; }                                              // set only on CPUs
  virtual int threads() const { return 0; }  // number of compute threads; CPU only
  // Copies bytes between any two addresses that this device can access, ordered on this stream.
  virtual void copy(void* dst, const void* src, std::size_t bytes) = 0;
  // Copies rows of `bytes` each. A pitch is the distance in bytes between the starts of two rows.
  virtual void copy_rows(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t bytes,
                         std::size_t rows) {
    for (std::size_t i = 0; i < rows; ++i)
      copy(static_cast<std::byte*>(dst) + i * dst_pitch, static_cast<const std::byte*>(src) + i * src_pitch, bytes);
  }
  virtual void fill_zero(void* dst, std::size_t bytes) = 0;
  // Copies host bytes to the device. The host bytes may be changed as soon as it returns. Does not wait for the device,
  // unless the staging memory (kStagingBytes) is full of pending copies.
  virtual void upload(void* dst, const void* host, std::size_t bytes) { copy(dst, host, bytes); }
  // Returns host memory that the device can write to asynchronously (page-locked for CUDA).
  virtual std::shared_ptr<void> host_buffer(std::size_t bytes) {
    return {std::malloc(bytes), std::free};  // NOLINT: untyped bytes, which the shared_ptr frees
  }

  // Returns the stream's object of type T, which is created on first use: a library's handles, workspaces or plans.
  template <class T>
  T& resource() {
    std::shared_ptr<void>& slot = resources_[typeid(T)];
    if (!slot) slot = std::make_shared<T>(*this);
    return *static_cast<T*>(slot.get());
  }

  Device device;
  std::shared_ptr<Allocator> allocator;       // the stream's own allocator
  std::shared_ptr<Allocator> step_allocator;  // set by StepMemory, uses `allocator`; may be null

 protected:
  // Destroys the stream's resources. Derived classes call it in their destructors, because resources and the allocator
  // may use the stream while they are freed.
  void drop_resources() { resources_.clear(); }

 private:
  std::unordered_map<std::type_index, std::shared_ptr<void>> resources_;
};
inline constexpr std::size_t kStagingBytes = std::size_t{64} << 20;

// Returns how often this process has waited for a device so far, which a training step must not do.
std::uint64_t host_wait_count();
void count_host_wait();

class Stream {
 public:
  static Stream cpu(int threads);  // a stream with its own thread pool and allocator
  // threads: CPU only; 0 means default_threads(). Throws Error if the backend is not in this build.
  static Stream create(Device, int threads = 0);
  Device device() const { return impl_->device; }
  Event record() const { return impl_->record(); }  // returns the event at the end of all work queued so far
  Event record_time() const { return impl_->record_time(); }
  void wait(const Event& e) const { impl_->wait(e); }  // work queued later starts after the event
  void synchronize() const { impl_->synchronize(); }   // blocks the host
  const std::shared_ptr<Allocator>& allocator() const {
    return impl_->step_allocator ? impl_->step_allocator : impl_->allocator;
  }
  ThreadPool& pool() const;  // throws Error on a device stream
  void* native() const { return impl_->native(); }
  StreamImpl& impl() const { return *impl_; }

  explicit Stream(std::shared_ptr<StreamImpl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<StreamImpl> impl_;
};

// Registered at load time by core/cuda if it is part of the build.
using StreamFactory = Stream (*)(Device, int threads);
bool register_stream_factory(Backend, StreamFactory);
bool backend_available(Backend);  // true if the backend is in this build and has a device

}  // namespace ring
