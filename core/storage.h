#pragma once
// Reference-counted bytes and their allocators.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/dtype.h"
#include "core/scope.h"

namespace ring {

// Memory use of one phase of a step: a scope of the forward, or the whole backward.
struct PhaseMemory {
  ScopeId phase;
  std::size_t held = 0;  // bytes still in use that were allocated in this phase
  std::size_t peak = 0;  // largest total in_use during the phase, since reset_peak()
};

struct MemoryStats {
  std::size_t in_use = 0;             // bytes requested by live storages
  std::size_t peak = 0;               // largest in_use since reset_peak()
  std::size_t reserved = 0;           // bytes obtained from the system, in use or cached
  std::vector<PhaseMemory> phases{};  // empty if the allocator does not track phases
  // Returns the share of the reserved bytes that the peak did not need.
  double fragmentation() const {
    return reserved > peak ? 1.0 - static_cast<double>(peak) / static_cast<double>(reserved) : 0.0;
  }
};

std::string bytes_text(std::size_t);  // e.g. "1.50 GiB", "20.0 MiB", "512 bytes"

// Thrown by allocators, with the facts. Callers that know the purpose
// of the memory rethrow the error with more facts, or with advice.
struct OutOfMemory : Error {
  explicit OutOfMemory(const std::string& what_failed, const std::string& what_to_do = "")
      : Error(what_to_do.empty() ? what_failed : what_failed + ". " + what_to_do),
        facts(what_failed),
        advice(what_to_do) {}
  std::string facts, advice;
};

// Lifetime of memory. Allocations that repeat in every step can be planned (core/step_arena.h), others cannot.
enum class Lifetime : std::uint8_t {
  step,  // allocated and freed in the same way by every step: activations, their gradients, scratch
  run,   // outlives its step, or is allocated once: parameters, caches, buffers for measurements
};

class Allocator {
 public:
  virtual ~Allocator() = default;
  // Returns 64-byte aligned memory. Throws OutOfMemory, which names the bytes requested and in use.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void* allocate_for_run(std::size_t bytes) { return allocate(bytes); }  // allocates for Lifetime::run
  virtual void free(void* p, std::size_t bytes) = 0;
  virtual MemoryStats stats() const = 0;
  virtual void reset_peak() = 0;
  virtual void trim() {}  // returns unused memory to the system; may wait for the device
};

class Storage {
 public:
  Storage(std::size_t bytes, Device device, std::shared_ptr<Allocator> allocator, Lifetime lifetime = Lifetime::step)
      : data_(bytes ? take(*allocator, bytes, lifetime) : nullptr),
        bytes_(bytes),
        device_(device),
        allocator_(std::move(allocator)) {}
  // Wraps memory owned elsewhere (a mapped file, a caller's buffer), which is freed by dropping `owner`.
  Storage(void* data, std::size_t bytes, Device device, std::shared_ptr<void> owner)
      : data_(data), bytes_(bytes), device_(device), owner_(std::move(owner)) {}
  ~Storage() {
    if (allocator_ && data_) allocator_->free(data_, bytes_);
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  static void* take(Allocator& allocator, std::size_t bytes, Lifetime lifetime) {
    return lifetime == Lifetime::run ? allocator.allocate_for_run(bytes) : allocator.allocate(bytes);
  }

  void* data_;
  std::size_t bytes_;
  Device device_;
  std::shared_ptr<Allocator> allocator_;
  std::shared_ptr<void> owner_;
};

}  // namespace ring
