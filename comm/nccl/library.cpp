#include "comm/nccl/library.h"

#ifdef RING_WITH_NCCL

#include <cstdlib>

#include "core/check.h"
#include "core/shared_library.h"

namespace ring::nccl {
namespace {

#ifdef RING_NCCL_LIBRARY
constexpr const char* kBuiltWith = RING_NCCL_LIBRARY;
#else
constexpr const char* kBuiltWith = "";
#endif

SharedLibrary open_library() {
  constexpr const char* kName = "libnccl.so.2";
  const SharedLibrary opened = open_shared_library(kName, kBuiltWith);
  if (!opened.handle)
    fail("several GPUs need ", kName, ", which cannot be loaded (", opened.problem,
         "). Install libnccl2 or add its folder to LD_LIBRARY_PATH, or start only one process");
  return opened;
}

template <class F>
void find(const SharedLibrary& library, const char* name, F& function) {
  function = reinterpret_cast<F>(find_function(library, name));
  if (!function) fail("NCCL: the library has no ", name, "; 2.18 or newer is needed");
}

Library load() {
  // Turns NVLink multicast off, unless the environment sets it.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  // Turns off the registration of buffers in CUDA graphs, unless the environment sets it. Recorded operations then
  // behave like others: no rank waits for another during recording, and results are bit-identical.
  setenv("NCCL_GRAPH_REGISTER", "0", 0);
  const SharedLibrary h = open_library();
  Library l{};
  find(h, "ncclGetVersion", l.version);
  find(h, "ncclGetUniqueId", l.unique_id);
  find(h, "ncclGetErrorString", l.error_string);
  find(h, "ncclGetLastError", l.last_error);
  find(h, "ncclCommInitRankConfig", l.init);
  find(h, "ncclCommGetAsyncError", l.async_error);
  find(h, "ncclCommFinalize", l.finalize);
  find(h, "ncclCommDestroy", l.destroy);
  find(h, "ncclCommAbort", l.abort);
  find(h, "ncclGroupStart", l.group_start);
  find(h, "ncclGroupEnd", l.group_end);
  find(h, "ncclAllReduce", l.all_reduce);
  find(h, "ncclAllGather", l.all_gather);
  find(h, "ncclReduceScatter", l.reduce_scatter);
  find(h, "ncclReduce", l.reduce);
  find(h, "ncclBroadcast", l.broadcast);
  find(h, "ncclSend", l.send);
  find(h, "ncclRecv", l.recv);
  int version = 0;
  if (l.version(&version) != ncclSuccess || version < NCCL_VERSION(2, 18, 0) || version / 10000 != NCCL_MAJOR)
    fail("NCCL ", version, " was loaded; this build needs ", NCCL_MAJOR, ".18 or a newer ", NCCL_MAJOR, ".x");
  return l;
}

}  // namespace

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

std::string describe(ncclResult_t result, ncclComm_t comm) {
  const char* more = library().last_error(comm);
  const std::string text = library().error_string(result);
  return more && *more ? str(text, " (", more, ")") : text;
}

}  // namespace ring::nccl

#endif
