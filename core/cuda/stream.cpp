// Implements streams and events for CUDA devices, and registers them at load time.
#include "core/cuda/stream.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/async_allocator.h"
#include "core/cuda/check.h"
#include "core/cuda/launches.h"
#include "core/cuda/page_locks.h"
#include "core/cuda/pinned_staging.h"
#include "core/cuda/small_copy.h"
#include "core/devices.h"
#include "core/host_node_queue.h"
#include "core/unavailable.h"

namespace ring::cuda {
namespace {

class CudaEvent final : public EventImpl {
 public:
  CudaEvent(cudaStream_t stream, unsigned flags) : stream_(stream), launches_(launch_count()) {
    RING_CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags));
    const cudaError_t error = cudaEventRecord(event_, stream);
    if (error != cudaSuccess) cudaEventDestroy(event_);
    RING_CUDA_CHECK(error);
  }
  ~CudaEvent() override {
    use_stream_device();
    cudaEventDestroy(event_);
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool done() const override {
    use_stream_device();
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    RING_CUDA_CHECK(state);
    log_launches_ended(stream_, launches_);
    return true;
  }
  void synchronize() const override {
    if (done()) return;
    count_host_wait();
    RING_CUDA_CHECK(cudaEventSynchronize(event_));
    log_launches_ended(stream_, launches_);
  }
  double seconds_after(const EventImpl& earlier) const override {
    RING_CHECK(earlier.native(), "cannot measure the time between events of different backends");
    float ms = 0;
    RING_CUDA_CHECK(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(earlier.native()), event_));
    return static_cast<double>(ms) * 1e-3;
  }
  void* native() const override { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
  cudaStream_t stream_;
  std::uint64_t launches_;  // number of launches before the event
};

class CudaGraph {
 public:
  explicit CudaGraph(cudaGraph_t graph) {
    const cudaError_t error = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    RING_CUDA_CHECK(error);
  }
  ~CudaGraph() { cudaGraphExecDestroy(graph_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void launch(const StreamHandle& stream) const {
    log_library_call(stream.get(), "a CUDA graph (set train.cuda_graph: off to see its kernels)");
    RING_CUDA_CHECK(cudaGraphLaunch(graph_, stream.get()));
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

// A recording with host work between its CUDA graphs. At each queue_host_node() a graph ends and the next one begins.
class CudaGraphs final : public RecordedWork {
 public:
  explicit CudaGraphs(std::shared_ptr<StreamHandle> stream) : stream_(std::move(stream)) {}
  void launch() override {
    const OnDevice on(stream_->device());
    for (const Part& part : parts_) {
      if (part.graph) part.graph->launch(*stream_);
      if (part.then) part.then();
    }
  }
  void begin_part() {
    // Thread-local mode: only this thread is restricted during capture, and other threads continue to call CUDA.
    RING_CUDA_CHECK(cudaStreamBeginCapture(stream_->get(), cudaStreamCaptureModeThreadLocal));
  }
  void end_part(std::function<void()> then) {
    cudaGraph_t graph = nullptr;
    RING_CUDA_CHECK(cudaStreamEndCapture(stream_->get(), &graph));
    std::size_t nodes = 0;
    RING_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    if (nodes == 0) cudaGraphDestroy(graph);
    parts_.push_back({nodes ? std::make_unique<CudaGraph>(graph) : nullptr, std::move(then)});
  }
  void give_up() {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream_->get(), &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
  }

 private:
  struct Part {
    std::unique_ptr<CudaGraph> graph;  // null if no work was recorded
    std::function<void()> then;        // runs after the graph; may be null
  };
  std::shared_ptr<StreamHandle> stream_;
  std::vector<Part> parts_;
};

// Returns a GPU's model. Asks the driver once, because that takes milliseconds.
std::string model_of(int index) {
  static std::mutex mutex;
  static std::map<int, std::string> models;
  const std::lock_guard held(mutex);
  std::string& model = models[index];
  if (model.empty()) {
    cudaDeviceProp properties;
    RING_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
    model = properties.name;
  }
  return model;
}

class CudaStream final : public StreamImpl {
 public:
  explicit CudaStream(int index, bool high_priority = false)
      : handle_(std::make_shared<StreamHandle>(index, high_priority)) {
    device = {Backend::cuda, index};
    allocator = std::make_shared<AsyncAllocator>(handle_);
    name_ = model_of(index);
  }
  ~CudaStream() override { drop_resources(); }
  Event record() override { return record(cudaEventDisableTiming); }
  Event record_time() override { return record(cudaEventDefault); }
  std::unique_ptr<RecordedWork> record_work(const std::function<void()>& work) override {
    const OnDevice on(device.index);
    CudaGraphs graphs(handle_);
    auto& in_launches = resource<HostNodeQueue>().in_launches;
    in_launches = [&](std::function<void()> anew) {
      graphs.end_part(std::move(anew));
      graphs.begin_part();
    };
    try {
      graphs.begin_part();
      work();
      graphs.end_part(nullptr);
    } catch (...) {
      in_launches = nullptr;
      graphs.give_up();
      throw;
    }
    in_launches = nullptr;
    return std::make_unique<CudaGraphs>(std::move(graphs));
  }
  bool recording() const override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    RING_CUDA_CHECK(cudaStreamIsCapturing(handle_->get(), &status));
    return status != cudaStreamCaptureStatusNone;
  }
  void wait(const Event& e) override {
    if (void* event = e.native())
      RING_CUDA_CHECK(cudaStreamWaitEvent(handle_->get(), static_cast<cudaEvent_t>(event), 0));
    else
      e.synchronize();  // an event of a different backend, which a CUDA stream cannot wait for
  }
  void synchronize() override {
    count_host_wait();
    RING_CUDA_CHECK(cudaStreamSynchronize(handle_->get()));
  }
  std::string device_name() const override { return name_; }
  void* native() override { return handle_->get(); }
  // If src is pageable host memory, returns after it was read. If dst is pageable host memory, returns after it was
  // written. upload() does not wait.
  void copy(void* dst, const void* src, std::size_t bytes) override {
    const OnDevice on(device.index);  // the memory may not be accessible from other devices
    for_locked_parts(device.index, dst, src, bytes, [&](std::size_t at, std::size_t part) {
      auto* to = static_cast<std::byte*>(dst) + at;
      const auto* from = static_cast<const std::byte*>(src) + at;
      if (!try_small_copy(to, from, part, handle_->get()))
        RING_CUDA_CHECK(cudaMemcpyAsync(to, from, part, cudaMemcpyDefault, handle_->get()));
    });
  }
  void copy_rows(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t bytes,
                 std::size_t rows) override {
    if (rows == 0) return;
    const OnDevice on(device.index);
    const auto in_one_slab = [&](const void* p, std::size_t pitch) {
      const std::size_t span = (rows - 1) * pitch + bytes;
      return page_locker(device.index).wait_until_locked(p, span) == span;
    };
    if (!in_one_slab(dst, dst_pitch) || !in_one_slab(src, src_pitch))
      return StreamImpl::copy_rows(dst, dst_pitch, src, src_pitch, bytes, rows);
    RING_CUDA_CHECK(cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, bytes, rows, cudaMemcpyDefault, handle_->get()));
  }
  void fill_zero(void* dst, std::size_t bytes) override {
    const OnDevice on(device.index);
    RING_CUDA_CHECK(cudaMemsetAsync(dst, 0, bytes, handle_->get()));
  }

  void upload(void* dst, const void* host, std::size_t bytes) override {
    const OnDevice on(device.index);
    for (std::size_t done = 0; done < bytes; done += kStagingBytes / 2) {
      const std::size_t part = std::min(bytes - done, kStagingBytes / 2);
      void* staged = staging_.take(part);
      std::memcpy(staged, static_cast<const std::byte*>(host) + done, part);
      copy(static_cast<std::byte*>(dst) + done, staged, part);
      staging_.release_after(record());
    }
  }
  std::shared_ptr<void> host_buffer(std::size_t bytes) override { return allocate_pinned(bytes); }

 private:
  Event record(unsigned flags) {
    const OnDevice on(device.index);
    return Event(std::make_shared<CudaEvent>(handle_->get(), flags));
  }

  std::shared_ptr<StreamHandle> handle_;
  PinnedStaging staging_;
  std::string name_;
};

int count_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // clears the error: no driver, or one that is too old for this runtime
  return 0;
}

Stream create(Device device, int) {
  const int count = count_devices();
  if (count == 0)
    fail_without(Resource::gpu, "device 'cuda': this machine has no GPU, or no driver for CUDA ", CUDART_VERSION / 1000,
                 "; `ringmaster doctor` shows which is missing");
  if (device.index < 0 || device.index >= count)
    fail("device '", device, "': this machine has ", count, " GPU", count == 1 ? "" : "s", ", numbered from 0");
  return Stream(std::make_shared<CudaStream>(device.index));
}

const bool added[] = {
    register_stream_factory(Backend::cuda, create),
    register_device_counter(Backend::cuda, count_devices),
};

}  // namespace

Stream high_priority_stream(int device) { return Stream(std::make_shared<CudaStream>(device, true)); }

}  // namespace ring::cuda
