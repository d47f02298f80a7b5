#include "tests/bench/kernel_trace.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace ring::test {
namespace {

constexpr std::size_t kLargest = std::size_t{32} << 20;  // larger blocks are workspaces of libraries, not results

std::uint64_t hash_of(const std::byte* p, std::size_t bytes) {  // FNV-1a, one word at a time
  std::uint64_t h = 14695981039346656037ull;
  for (std::size_t i = 0; i < bytes; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p + i, std::min<std::size_t>(8, bytes - i));
    h = (h ^ word) * 1099511628211ull;
    h ^= h >> 29;  // also mixes high bits into low bits
  }
  return h;
}

}  // namespace

// Fills allocated blocks with NaN, and keeps track of live blocks.
class KernelTrace::Blocks final : public Allocator {
 public:
  Blocks(std::shared_ptr<Allocator> inner, StreamImpl& stream) : inner_(std::move(inner)), stream_(stream) {
    poison_ = stream_.host_buffer(kLargest);
    std::memset(poison_.get(), 0xff, kLargest);
  }
  void* allocate(std::size_t bytes) override {
    void* p = inner_->allocate(bytes);
    const TracedBlock block{.name = {}, .number = taken_++, .bytes = bytes, .born = calls_};
    if (bytes > kLargest || !filling_) return p;
    stream_.copy(p, poison_.get(), bytes);
    numbers_[p] = block.number;
    live_[block.number] = {p, block};
    return p;
  }
  void free(void* p, std::size_t bytes) override {
    if (const auto at = numbers_.find(p); at != numbers_.end()) {
      live_.erase(at->second);
      numbers_.erase(at);
    }
    inner_->free(p, bytes);
  }
  MemoryStats stats() const override { return inner_->stats(); }
  void reset_peak() override { inner_->reset_peak(); }
  void trim() override { inner_->trim(); }

  void watch(const std::string& name, const Tensor& t) {
    if (t.defined() && t.bytes() && t.bytes() <= kLargest) watched_.push_back({t.raw(), {name, 0, t.bytes(), 0, 0}});
  }
  void stop() { filling_ = false; }

  // Returns the checksums of all live blocks, in the order of allocation.
  std::vector<TracedBlock> checksums() {
    std::vector<Live> all = watched_;
    for (const auto& [number, live] : live_) all.push_back(live);
    std::size_t bytes = 0;
    for (const Live& l : all) bytes += l.block.bytes;
    if (bytes > host_bytes_) {
      host_ = stream_.host_buffer(2 * bytes);
      host_bytes_ = 2 * bytes;
    }
    auto* to = static_cast<std::byte*>(host_.get());
    for (const Live& l : all) {
      stream_.copy(to, l.p, l.block.bytes);
      to += l.block.bytes;
    }
    stream_.synchronize();
    const auto* from = static_cast<const std::byte*>(host_.get());
    std::vector<TracedBlock> blocks;
    for (Live& l : all) {
      l.block.hash = hash_of(from, l.block.bytes);
      from += l.block.bytes;
      blocks.push_back(l.block);
    }
    ++calls_;
    return blocks;
  }

 private:
  struct Live {
    void* p;
    TracedBlock block;
  };
  std::shared_ptr<Allocator> inner_;
  StreamImpl& stream_;
  std::shared_ptr<void> poison_, host_;
  std::size_t host_bytes_ = 0, taken_ = 0, calls_ = 0;
  bool filling_ = true;
  std::map<std::size_t, Live> live_;  // by number
  std::map<void*, std::size_t> numbers_;
  std::vector<Live> watched_;
};

class KernelTrace::Watch final : public KernelObserver {
 public:
  explicit Watch(std::shared_ptr<Blocks> blocks) : blocks_(std::move(blocks)) {}
  void call(const KernelCall& c, const ExecContext&, const std::function<void()>& run) override {
    run();
    std::string text;
    for (const std::string& part : parts_) text += part + "/";
    calls.push_back({str(text, c.slot, ' ', c.candidate, ' ', c.cost.shape), blocks_->checksums()});
  }
  void enter_scope(const ScopeId& id, const ExecContext&) override { parts_.push_back(str(id)); }
  void enter_step(std::string_view op, const ExecContext&) override { parts_.emplace_back(op); }
  void leave(const ExecContext&) override { parts_.pop_back(); }

  std::vector<TracedCall> calls;

 private:
  std::shared_ptr<Blocks> blocks_;
  std::vector<std::string> parts_;
};

KernelTrace::KernelTrace(Trainer& trainer) : trainer_(trainer), before_(trainer.exec().stream.allocator()) {
  StreamImpl& stream = trainer.exec().stream.impl();
  blocks_ = std::make_shared<Blocks>(before_, stream);
  const Parameters& params = trainer.model().parameters();
  blocks_->watch("weights", params.values);
  if (params.weights.raw() != params.values.raw()) blocks_->watch("copies of weights", params.weights);
  blocks_->watch("gradients", params.gradients);
  watch_ = std::make_shared<Watch>(blocks_);
  stream.step_allocator = blocks_;
  trainer.observe(watch_);
}

KernelTrace::~KernelTrace() {
  trainer_.observe(nullptr);
  blocks_->stop();
  trainer_.exec().stream.impl().step_allocator = before_;
}

const std::vector<TracedCall>& KernelTrace::calls() const { return watch_->calls; }

std::string TracedBlock::text() const {
  return name.empty() ? str("block ", number, " (", bytes, " bytes, taken before call ", born + 1, ")") : name;
}

std::string first_difference(const std::vector<TracedCall>& a, const std::vector<TracedCall>& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i].text == b[i].text && a[i].blocks == b[i].blocks) continue;
    std::string what = str("call ", i + 1, " of ", a.size(), ", ", a[i].text);
    if (a[i].text != b[i].text) return str(what, ", is ", b[i].text, " in the other run");
    if (a[i].blocks.size() != b[i].blocks.size())
      return str(what, ": ", a[i].blocks.size(), " and ", b[i].blocks.size(), " blocks of memory");
    const char* before = ": other bits in ";
    for (std::size_t j = 0; j < a[i].blocks.size(); ++j) {
      if (a[i].blocks[j] == b[i].blocks[j]) continue;
      what += before + a[i].blocks[j].text();
      before = ", ";
    }
    return what;
  }
  return a.size() == b.size() ? "" : str(a.size(), " and ", b.size(), " calls");
}

}  // namespace ring::test
