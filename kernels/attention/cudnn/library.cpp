// Functions of libcudnn that attention needs, looked up at run time and exported under their own names, so that the
// frontend's headers can call them as if cuDNN were linked. They are hidden from other libraries (-fvisibility=hidden),
// which bring their own functions of these names.
#include "kernels/attention/cudnn/library.h"

#include <cudnn.h>
#include <nvrtc.h>

#include <string>

#include "core/known_defects.h"
#include "core/log.h"
#include "core/shared_library.h"

namespace ring::cudnn {
namespace {

#ifdef RING_CUDNN_LIBRARY
constexpr const char* kBuiltWith = RING_CUDNN_LIBRARY;
#else
constexpr const char* kBuiltWith = "";
#endif

const SharedLibrary& cudnn() {
  static const SharedLibrary opened = open_shared_library("libcudnn.so.9", kBuiltWith);
  return opened;
}

void* symbol(const char* name) {
  void* p = find_function(cudnn(), name);
  if (!p) fail("libcudnn.so.9 has no function ", name, ". Install a complete cuDNN 9");
  return p;
}

template <class Fn>
Fn* find(Fn*, const char* name) {
  return reinterpret_cast<Fn*>(symbol(name));
}

int usable_version() {
  if (!cudnn().handle) {
    log::info(
        "cuDNN (libcudnn.so.9) was not found, so ringmaster's own attention kernels are used. Details: ringmaster "
        "doctor");
    return 0;
  }
  const auto found = static_cast<int>(cudnnGetVersion());
  for (const KnownDefect& d : known_defects("cuDNN", from_number(found)))
    if (d.refused) {
      log::warn("cuDNN ", to_string(from_number(found)), " is not used: ", d.what, ". ", d.remedy,
                ". Until then, ringmaster's own attention kernels are used");
      return 0;
    }
  return found;
}

}  // namespace

int version() {
  static const int usable = usable_version();
  return usable;
}

std::string library_text() { return str("cuDNN ", version()); }

}  // namespace ring::cudnn

extern "C" {

using ring::cudnn::find;

size_t cudnnGetVersion() {
  static const auto call = find(&cudnnGetVersion, "cudnnGetVersion");
  return call();
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  static const auto call = find(&cudnnGetErrorString, "cudnnGetErrorString");
  return call(status);
}
void cudnnGetLastErrorString(char* message, size_t size) {
  static const auto call = find(&cudnnGetLastErrorString, "cudnnGetLastErrorString");
  call(message, size);
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  static const auto call = find(&cudnnCreate, "cudnnCreate");
  return call(handle);
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  static const auto call = find(&cudnnDestroy, "cudnnDestroy");
  return call(handle);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  static const auto call = find(&cudnnSetStream, "cudnnSetStream");
  return call(handle, stream);
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  static const auto call = find(&cudnnGetStream, "cudnnGetStream");
  return call(handle, stream);
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  static const auto call = find(&cudnnBackendCreateDescriptor, "cudnnBackendCreateDescriptor");
  return call(type, descriptor);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  static const auto call = find(&cudnnBackendDestroyDescriptor, "cudnnBackendDestroyDescriptor");
  return call(descriptor);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  static const auto call = find(&cudnnBackendFinalize, "cudnnBackendFinalize");
  return call(descriptor);
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  static const auto call = find(&cudnnBackendSetAttribute, "cudnnBackendSetAttribute");
  return call(descriptor, name, type, count, values);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t* count, void* values) {
  static const auto call = find(&cudnnBackendGetAttribute, "cudnnBackendGetAttribute");
  return call(descriptor, name, type, wanted, count, values);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  static const auto call = find(&cudnnBackendExecute, "cudnnBackendExecute");
  return call(handle, plan, pack);
}
cudnnStatus_t cudnnBackendPopulateCudaGraph(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                            cudnnBackendDescriptor_t pack, cudaGraph_t graph) {
  static const auto call = find(&cudnnBackendPopulateCudaGraph, "cudnnBackendPopulateCudaGraph");
  return call(handle, plan, pack, graph);
}
cudnnStatus_t cudnnBackendUpdateCudaGraph(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                          cudnnBackendDescriptor_t pack, cudaGraph_t graph) {
  static const auto call = find(&cudnnBackendUpdateCudaGraph, "cudnnBackendUpdateCudaGraph");
  return call(handle, plan, pack, graph);
}

// The frontend references these functions for convolutions and normalizations, which are never used here. Unoptimized
// builds keep that code. Stubs that return "not supported" avoid a dependency on NVRTC.
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t*) { return CUDNN_STATUS_NOT_SUPPORTED; }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t) { return CUDNN_STATUS_NOT_SUPPORTED; }
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t, cudnnDataType_t, cudnnTensorFormat_t, int,
                                         const int*) {
  return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnReorderFilterAndBias(cudnnHandle_t, cudnnFilterDescriptor_t, cudnnReorderType_t, const void*, void*,
                                        int, const void*, void*) {
  return CUDNN_STATUS_NOT_SUPPORTED;
}
nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }

}  // extern "C"
