#pragma once
// Streams and events: value handles over a backend's own. Work on one stream runs in order; streams are ordered by
// events, and the host blocks only in tests, logging, checkpoints and at shutdown. A CPU stream runs its work inline,
// on its thread pool, so waiting for an event there blocks the caller.

#include <memory>

#include "core/dtype.h"

namespace ring {

class Allocator;
class ThreadPool;

class EventImpl {
 public:
  virtual ~EventImpl() = default;
  virtual bool done() const = 0;
  virtual void synchronize() const = 0;  // blocks the host; rethrows the failure of the work it marks
};

class Event {
 public:
  Event() = default;  // of work that is already done
  explicit Event(std::shared_ptr<EventImpl> impl) : impl_(std::move(impl)) {}
  bool done() const { return !impl_ || impl_->done(); }
  void synchronize() const {
    if (impl_) impl_->synchronize();
  }
  EventImpl* native() const { return impl_.get(); }

 private:
  std::shared_ptr<EventImpl> impl_;
};

class StreamImpl {
 public:
  virtual ~StreamImpl() = default;
  virtual Event record() = 0;
  virtual void wait(const Event&) = 0;
  virtual void synchronize() = 0;
  virtual void* native() { return nullptr; }      // cudaStream_t
  virtual ThreadPool* pool() { return nullptr; }  // CPU only
  // Copies bytes between any two places that this device can reach; ordered on this stream.
  virtual void copy(void* dst, const void* src, std::size_t bytes) = 0;
  virtual void fill_zero(void* dst, std::size_t bytes) = 0;

  Device device;
  std::shared_ptr<Allocator> allocator;
};

class Stream {
 public:
  static Stream cpu(int threads);  // a stream with a pool and an allocator of its own
  static Stream create(Device,
                       int threads = 0);  // threads: CPU only, 0 = default_threads(). Error: backend not in this build
  Device device() const { return impl_->device; }
  Event record() const { return impl_->record(); }     // marks everything queued so far
  void wait(const Event& e) const { impl_->wait(e); }  // later work starts after the event
  void synchronize() const { impl_->synchronize(); }   // blocks the host
  const std::shared_ptr<Allocator>& allocator() const { return impl_->allocator; }
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
