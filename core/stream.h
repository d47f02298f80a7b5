#pragma once
// Streams and events: value handles over a backend's own. Work on one stream runs in order; streams are ordered by
// events, and the host blocks only in tests, logging, checkpoints and at shutdown. A CPU stream runs its work inline,
// on its thread pool, so waiting for an event there blocks the caller.

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
  virtual void synchronize() const = 0;             // blocks the host; rethrows the failure of the work it marks
  virtual void* native() const { return nullptr; }  // cudaEvent_t; null: only the host can wait for it
  // On the host's clock. Error: the event was not recorded with its time, or is a device's.
  virtual double host_seconds() const { fail("this event does not know its time"); }
  // Between two events of one backend that were recorded with their time. Error: they were not, or are not done.
  virtual double seconds_after(const EventImpl& earlier) const { return host_seconds() - earlier.host_seconds(); }
};

class Event {
 public:
  Event() = default;  // of work that is already done
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

// Work that was recorded once and can be queued again as a whole. It uses the memory that it was recorded with.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void launch() = 0;  // on the stream that recorded it
};

class StreamImpl {
 public:
  virtual ~StreamImpl() = default;
  virtual Event record() = 0;
  virtual Event record_time() = 0;  // an event that also knows when
  // Records what `work` queues on this stream, without running it. Null, and `work` not called: the backend cannot.
  // `work` must not wait for the device.
  virtual std::unique_ptr<RecordedWork> record_work(const std::function<void()>& /*work*/) { return nullptr; }
  virtual bool recording() const { return false; }  // called by `work`: what is queued does not run now
  virtual bool computes() const { return true; }    // false: nothing runs (core/fake.h)
  virtual void wait(const Event&) = 0;
  virtual void synchronize() = 0;
  virtual std::string device_name() const { return std::string(to_string(device.backend)); }  // which model it is
  virtual void* native() { return nullptr; }                                                  // cudaStream_t
  virtual ThreadPool* pool() { return nullptr; }                                              // CPU only
  virtual int threads() const { return 0; }                                                   // that compute; CPU only
  // Copies bytes between any two places that this device can reach; ordered on this stream.
  virtual void copy(void* dst, const void* src, std::size_t bytes) = 0;
  // Rows of `bytes` each; the pitches are the distances between their starts.
  virtual void copy_rows(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t bytes,
                         std::size_t rows) {
    for (std::size_t i = 0; i < rows; ++i)
      copy(static_cast<std::byte*>(dst) + i * dst_pitch, static_cast<const std::byte*>(src) + i * src_pitch, bytes);
  }
  virtual void fill_zero(void* dst, std::size_t bytes) = 0;
  // Copies host bytes to the device; they may change as soon as it returns. Does not wait for the device, except where
  // the staging memory (kStagingBytes) is full of copies that were not made yet.
  virtual void upload(void* dst, const void* host, std::size_t bytes) { copy(dst, host, bytes); }
  // Host memory that the device can write to while the host goes on (page-locked for CUDA).
  virtual std::shared_ptr<void> host_buffer(std::size_t bytes) {
    return {std::malloc(bytes), std::free};  // NOLINT: of any type, freed by its owner
  }

  // What a library keeps per stream (handles, workspaces, plans): one object of each type, made at its first use.
  template <class T>
  T& resource() {
    std::shared_ptr<void>& slot = resources_[typeid(T)];
    if (!slot) slot = std::make_shared<T>(*this);
    return *static_cast<T*>(slot.get());
  }

  Device device;
  std::shared_ptr<Allocator> allocator;       // the stream's own
  std::shared_ptr<Allocator> step_allocator;  // in front of it while steps are planned (StepMemory); null: none

 protected:
  // For destructors: resources may use the stream, or its allocator may, while they are freed.
  void drop_resources() { resources_.clear(); }

 private:
  std::unordered_map<std::type_index, std::shared_ptr<void>> resources_;
};
inline constexpr std::size_t kStagingBytes = std::size_t{64} << 20;

// How often this process has blocked for a device so far: what a training step must not do.
std::uint64_t host_waits();
void count_host_wait();

class Stream {
 public:
  static Stream cpu(int threads);  // a stream with a pool and an allocator of its own
  static Stream create(Device,
                       int threads = 0);  // threads: CPU only, 0 = default_threads(). Error: backend not in this build
  Device device() const { return impl_->device; }
  Event record() const { return impl_->record(); }  // marks everything queued so far
  Event record_time() const { return impl_->record_time(); }
  void wait(const Event& e) const { impl_->wait(e); }  // later work starts after the event
  void synchronize() const { impl_->synchronize(); }   // blocks the host
  const std::shared_ptr<Allocator>& allocator() const {
    return impl_->step_allocator ? impl_->step_allocator : impl_->allocator;
  }
  ThreadPool& pool() const;  // Error on a device stream
  void* native() const { return impl_->native(); }
  StreamImpl& impl() const { return *impl_; }

  explicit Stream(std::shared_ptr<StreamImpl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<StreamImpl> impl_;
};

// Filled at load time by core/cuda when it is part of the build.
using StreamFactory = Stream (*)(Device, int threads);
bool register_stream_factory(Backend, StreamFactory);
bool backend_available(Backend);  // built in, and for cuda: a device is there

}  // namespace ring
