// Reports the driver, libraries, devices and links for CUDA on this machine. Libraries are searched as the program
// itself loads them, so the report holds for a run that is started the same way.
#include "core/devices.h"
#include "core/gpu_sensors.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <array>

#include "core/check.h"
#include "core/cuda/check.h"
#include "core/cuda/handles.h"
#include "core/device_memory.h"
#include "core/numa.h"
#include "core/shared_library.h"

namespace ring::cuda {
namespace {

// Returns a library's function; null if the library or the function does not exist. Libraries stay loaded.
template <class Fn>
Fn* function_of(const std::string& library, const char* function, const std::string& fallback = "") {
  return reinterpret_cast<Fn*>(find_function(open_shared_library(library, fallback), function));
}

std::string place_of(const void* function) {
  Dl_info info{};
  return dladdr(function, &info) && info.dli_fname ? info.dli_fname : "";
}

LibraryFacts driver_release() {
  LibraryFacts facts{.name = "NVIDIA driver", .use = "GPUs", .needed = true};
  facts.detail = "install NVIDIA's driver for this GPU";
  const auto init = function_of<int()>("libnvidia-ml.so.1", "nvmlInit_v2");
  const auto version = function_of<int(char*, unsigned)>("libnvidia-ml.so.1", "nvmlSystemGetDriverVersion");
  std::array<char, 96> text{};
  if (!init || !version || init() != 0 || version(text.data(), text.size()) != 0) return facts;
  facts.found = true;
  facts.detail = text.data();
  char* at = text.data();
  facts.version.major = static_cast<int>(std::strtol(at, &at, 10));
  if (*at == '.') facts.version.minor = static_cast<int>(std::strtol(at + 1, &at, 10));
  if (*at == '.') facts.version.patch = static_cast<int>(std::strtol(at + 1, &at, 10));
  return facts;
}

LibraryFacts cuda_of_driver() {
  LibraryFacts facts{.name = "CUDA of the driver", .use = "GPUs", .needed = true};
  int number = 0;
  facts.found = cudaDriverGetVersion(&number) == cudaSuccess && number > 0;
  facts.version = from_cuda_number(number);
  return facts;
}

LibraryFacts cuda_runtime() {
  LibraryFacts facts{.name = "CUDA runtime", .use = "GPUs", .needed = true};
  int number = 0;
  facts.found = cudaRuntimeGetVersion(&number) == cudaSuccess;
  facts.version = from_cuda_number(number);
  facts.detail = "built into this program";
  return facts;
}

template <class Fn>  // `version` calls the function and returns its number
LibraryFacts library(LibraryFacts facts, Fn* function, int (*version)(Fn*), const std::string& remedy) {
  facts.found = function != nullptr;
  facts.detail = function ? place_of(reinterpret_cast<const void*>(function)) : remedy;
  if (function) facts.version = from_number(version(function));
  return facts;
}

#ifdef RING_CUDNN_LIBRARY
constexpr const char* kBuiltWithCudnn = RING_CUDNN_LIBRARY;
#else
constexpr const char* kBuiltWithCudnn = "";
#endif

std::vector<LibraryFacts> libraries() {
  using Number = std::size_t();
  using Fill = int(int*);
  const auto by_number = [](Number* call) { return static_cast<int>(call()); };
  const auto by_fill = [](Fill* call) {
    int number = 0;
    call(&number);
    return number;
  };
  const std::string major = str(CUDART_VERSION / 1000), pip = str("-cu", major), cublas = "libcublasLt.so." + major;
  return {driver_release(),
          cuda_of_driver(),
          cuda_runtime(),
          library<Number>({.name = "cuBLAS", .use = "matrix products", .needed = true},
                          function_of<Number>(cublas, "cublasLtGetVersion", str(RING_CUDA_LIBRARIES, '/', cublas)),
                          by_number, str("install cuBLAS for CUDA ", major, ", or add its folder to LD_LIBRARY_PATH")),
          library<Number>({.name = "cuDNN", .use = "attention"},
                          function_of<Number>("libcudnn.so.9", "cudnnGetVersion", kBuiltWithCudnn), by_number,
                          str("Ringmaster's own kernels are used; for more speed, install nvidia-cudnn", pip)),
          library<Fill>({.name = "NCCL", .use = "several GPUs"}, function_of<Fill>("libnccl.so.2", "ncclGetVersion"),
                        by_fill, str("needed only for several GPUs: install nvidia-nccl", pip))};
}

std::string error_text(cudaError_t error) {
  cudaGetLastError();
  return str(cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

DeviceFacts inspect_device(int index) {
  DeviceFacts facts;
  facts.device = {Backend::cuda, index};
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
    facts.problem = error_text(error);
    return facts;
  }
  facts.name = properties.name;
  facts.memory_total = properties.totalGlobalMem;
  std::array<char, 32> bus{};
  if (cudaDeviceGetPCIBusId(bus.data(), bus.size(), index) == cudaSuccess)
    facts.memory_node = memory_node_of(bus.data());
  facts.capability = 10 * properties.major + properties.minor;
  std::size_t available = 0, total = 0;
  cudaError_t error = cudaSetDevice(index);
  // Creates a context, which fails on a broken device.
  if (error == cudaSuccess) error = cudaMemGetInfo(&available, &total);
  if (error != cudaSuccess) facts.problem = error_text(error);
  facts.memory_free = available;
  return facts;
}

// Returns the link between two GPUs. NVLink is recognized by native atomics: no other link between GPUs of one host
// supports them (CUDA C++ Programming Guide, peer access).
Link link_of(int from, int to) {
  if (from == to) return Link::self;
  int access = 0, atomics = 0;
  if (cudaDeviceCanAccessPeer(&access, from, to) != cudaSuccess || !access) return Link::none;
  cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, from, to);
  return atomics ? Link::fast : Link::bus;
}

BackendFacts inspect() {
  BackendFacts facts;
  facts.libraries = libraries();
  int count = 0, before = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice || count == 0) {
    cudaGetLastError();
    const bool driver = facts.libraries.front().found;
    if (driver && error == cudaErrorInsufficientDriver)
      facts.problem =
          str("the driver is too old for CUDA ", CUDART_VERSION / 1000, ", which this program was built with");
    return facts;
  }
  if (error != cudaSuccess) {
    facts.problem = error_text(error);
    return facts;
  }
  cudaGetDevice(&before);
  for (int i = 0; i < count; ++i) facts.devices.push_back(inspect_device(i));
  for (int i = 0; i < count; ++i) {
    facts.links.emplace_back();
    for (int j = 0; j < count; ++j) facts.links.back().push_back(link_of(i, j));
  }
  cudaSetDevice(before);
  cudaGetLastError();
  return facts;
}

// First returns unused memory of the default pool, e.g. of a stream that no longer exists, to the driver.
std::optional<DeviceMemory> memory_of(int device) try {
  const OnDevice on(device);
  cudaMemPool_t pool = nullptr;
  RING_CUDA_CHECK(cudaDeviceGetDefaultMemPool(&pool, device));
  RING_CUDA_CHECK(cudaDeviceSynchronize());  // allowed host wait: start
  RING_CUDA_CHECK(cudaMemPoolTrimTo(pool, 0));
  std::size_t available = 0, total = 0;
  RING_CUDA_CHECK(cudaMemGetInfo(&available, &total));
  return DeviceMemory{total, available};
} catch (const Error&) {
  return std::nullopt;
}

std::string model_of(int device) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) == cudaSuccess) return properties.name;
  cudaGetLastError();
  return "";
}

std::string bus_of(int device) {
  std::array<char, 32> bus{};
  if (cudaDeviceGetPCIBusId(bus.data(), bus.size(), device) == cudaSuccess) return bus.data();
  cudaGetLastError();
  return "";
}

const bool added = register_device_bus(Backend::cuda, bus_of) && register_backend_inspector(Backend::cuda, inspect) &&
                   register_device_memory(Backend::cuda, memory_of) && register_device_model(Backend::cuda, model_of);

}  // namespace
}  // namespace ring::cuda
