#pragma once
// Cache of objects that a stream's queued launches use, such as a library's plans. An object is
// created when it is first used.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "core/stream.h"

namespace ring {

// LRU cache of at most `max` values. An evicted value is destroyed once the work that the stream had queued before the
// eviction is done. Values found during CUDA graph capture are never evicted, since the graph may be replayed at any
// time, and do not count towards `max`.
template <class Key, class Value>
class LaunchCache {
 public:
  LaunchCache(StreamImpl& stream, std::size_t max) : stream_(stream), max_(max) {}

  // Returns the value of the key. If it is missing, creates it with make(key), which returns a std::unique_ptr<Value>;
  // null is cached like a value. Only launches queued on the stream before the next call may use the result.
  template <class Make>
  const Value* find(const Key& key, const Make& make) {
    const bool recording = stream_.recording();
    auto at = entries_.find(key);
    if (at == entries_.end()) {
      if (!recording) make_room();  // during capture, its event would become part of the graph
      at = entries_.emplace(key, Entry{make(key)}).first;
    }
    at->second.last_use = ++uses_;
    at->second.recorded |= recording;
    return at->second.value.get();
  }
  void clear() { entries_.clear(), leaving_.clear(); }  // requires that no queued work uses the values

 private:
  struct Entry {
    std::unique_ptr<Value> value;
    std::uint64_t last_use = 0;
    bool recorded = false;
  };
  struct Leaving {
    std::unique_ptr<Value> value;
    Event done;  // recorded after the last launch that may use the value
  };

  void make_room() {
    while (!leaving_.empty() && leaving_.front().done.done()) leaving_.pop_front();
    const auto recorded = [](const auto& entry) { return entry.second.recorded; };
    const auto kept = static_cast<std::size_t>(std::ranges::count_if(entries_, recorded));
    if (entries_.size() - kept < max_) return;
    const auto age = [](const auto& entry) { return std::pair(entry.second.recorded, entry.second.last_use); };
    const auto oldest = std::ranges::min_element(entries_, {}, age);
    leaving_.push_back({std::move(oldest->second.value), stream_.record()});
    entries_.erase(oldest);
  }

  StreamImpl& stream_;
  std::size_t max_;
  std::map<Key, Entry> entries_;
  std::deque<Leaving> leaving_;
  std::uint64_t uses_ = 0;
};

}  // namespace ring
