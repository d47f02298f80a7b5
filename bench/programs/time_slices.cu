// Tests whether a GPU runs a kernel correctly while several processes share it by time slicing. Plain CUDA for sm_90a:
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a time_slices.cu -o time_slices
//   ./time_slices SECONDS MICROSECONDS INGREDIENTS...
// Each word of INGREDIENTS starts a process that repeats one kernel, about MICROSECONDS long, and checks every result.
// The kernel's blocks take jobs from a counter in global memory, load tiles into shared memory, sum them up, and add
// the sums to global memory. Each letter of a word selects an instruction for one of these steps:
//   t  load by TMA instead of plain loads      w  sum by wgmma instead of plain additions      m  use setmaxnreg
//   r  add by cp.reduce.async.bulk instead of atomicAdd
//   o  add in a fixed order: each block spins on a counter in global memory that a different block sets
// Exits with 1 if a process sees a CUDA error or a wrong sum, or is killed.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

constexpr int kStages = 4, kTile = 64 * 64, kTileBytes = 2 * kTile, kOutputs = 44, kThreads = 384;
constexpr unsigned kWgmma = 1, kRegisters = 2, kTma = 4, kReduce = 8, kOrder = 16;
struct Shared {
  __nv_bfloat16 tiles[kStages][kTile];
  float sums[2][kTile];
  std::uint64_t full[kStages], empty[kStages], sums_full, sums_empty;
  int job[3];
};
struct Work {
  __nv_bfloat16* in;
  float* out;
  unsigned *turns, *next, what;
  int jobs, tiles;
};
#define PTX(text, ...) asm volatile(text ::__VA_ARGS__ : "memory")
__device__ unsigned addr(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
__device__ void init(std::uint64_t* b, int n) { PTX("mbarrier.init.shared::cta.b64 [%0], %1;", "r"(addr(b)), "r"(n)); }
__device__ void arrive(std::uint64_t* b) { PTX("mbarrier.arrive.shared::cta.b64 _, [%0];", "r"(addr(b))); }
__device__ void wait(std::uint64_t* b, int parity) {
  PTX("{\n.reg .pred p;\na:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, %2;\n@!p bra a;\n}\n", "r"(addr(b)),
      "r"(parity), "r"(10000000));
}
__device__ void load_tile(void* to, const void* from, std::uint64_t* full) {
  PTX("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", "r"(addr(full)), "r"(kTileBytes));
  PTX("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];", "r"(addr(to)),
      "l"(__cvta_generic_to_global(from)), "r"(kTileBytes), "r"(addr(full)));
}
__device__ void add_bulk(float* to, const float* from) {
  PTX("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;", "l"(__cvta_generic_to_global(to)),
      "r"(addr(from)), "r"(2 * kTile * 4));
  PTX("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;");
}
__device__ std::uint64_t descriptor(unsigned at) {  // K-major, 128-byte swizzle; all elements are equal
  return (at & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
#define SUMS(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
__device__ void product(float (&c)[32], unsigned tile) {
  PTX("wgmma.fence.sync.aligned;");
  for (int k = 0; k < 4; ++k)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %32, 1, 1, 1, 0, 0;"
        : SUMS(0), SUMS(4), SUMS(8), SUMS(12), SUMS(16), SUMS(20), SUMS(24), SUMS(28)
        : "l"(descriptor(tile + 32 * k)));
  PTX("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;");
}
__device__ void load_tiles(const Work& w, Shared& s, int lane) {
  for (int n = 0, t = 0;; ++n) {
    int job = lane == 0 ? static_cast<int>(atomicInc(w.next, w.jobs + gridDim.x - 1)) : 0;
    job = __shfl_sync(0xffffffffu, job, 0);
    for (int i = 0; i < w.tiles; ++i, ++t) {
      const int stage = t % kStages;
      wait(&s.empty[stage], t / kStages % 2 ^ 1);
      if (lane == 0 && i == 0) s.job[n % 3] = job;
      const __nv_bfloat16* from = w.in + (job + i) % 512 * kTile;
      if (!(w.what & kTma)) {
        for (int k = lane; k < kTile / 8; k += 32)
          reinterpret_cast<uint4*>(s.tiles[stage])[k] = reinterpret_cast<const uint4*>(from)[k];
        PTX("fence.proxy.async.shared::cta;");
        arrive(&s.full[stage]);
      } else if (lane == 0) {
        load_tile(s.tiles[stage], from, &s.full[stage]);
      }
    }
    if (job >= w.jobs) return;
  }
}
__device__ void store_sums(const Work& w, Shared& s) {
  for (int n = 0;; ++n) {
    wait(&s.sums_full, n % 2);
    const int job = s.job[n % 3], turn = job / kOutputs;
    if (job >= w.jobs) return;
    float* to = w.out + job % kOutputs * 2 * kTile;
    unsigned *flag = w.turns + job % kOutputs, found = 0;
    if (w.what & kOrder) {
      do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(flag) : "memory");
      while (found != static_cast<unsigned>(turn));
      PTX("fence.proxy.async.global;");
    }
    if (w.what & kReduce)
      add_bulk(to, s.sums[0]);
    else
      for (int i = 0; i < 2 * kTile; i += 64) atomicAdd(to + i, (&s.sums[0][0])[i]);  // one in 64: a thread is slow
    PTX("fence.proxy.async.global;\nst.release.gpu.global.u32 [%0], %1;", "l"(flag), "r"(turn + 1));
    arrive(&s.sums_empty);
  }
}
// Sums every tile into 32 values of each thread; an element counts 64 times.
template <bool kProducts>
__device__ void sum_up(const Work& w, Shared& s, float* sums) {
  const int lane = threadIdx.x % 32;
  for (int n = 0, t = 0;; ++n) {
    float c[32] = {};
    for (int i = 0; i < w.tiles; ++i, ++t) {
      wait(&s.full[t % kStages], t / kStages % 2);
      __syncwarp();
      if (kProducts)
        product(c, addr(s.tiles[t % kStages]));
      else
        for (int k = 0; k < 32; ++k) c[k] += 64 * __bfloat162float(s.tiles[t % kStages][k * 128 + threadIdx.x % 128]);
      __syncwarp();
      if (lane == 0) arrive(&s.empty[t % kStages]);
    }
    wait(&s.sums_empty, n % 2 ^ 1);
    for (int k = 0; k < 32; ++k) sums[k * 128 + threadIdx.x % 128] = c[k];
    PTX("fence.proxy.async.shared::cta;");
    const bool last = s.job[n % 3] >= w.jobs;
    arrive(&s.sums_full);
    if (last) return;
  }
}
template <unsigned kWhat>  // kWgmma or kRegisters
__global__ __launch_bounds__(kThreads, 1) void loop(Work w) {
  extern __shared__ unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-addr(memory) & 1023));
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) init(&s.full[i], w.what & kTma ? 1 : 32), init(&s.empty[i], 8);
    init(&s.sums_full, 256), init(&s.sums_empty, 1);
    PTX("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;");
  }
  __syncthreads();
  const int group = threadIdx.x / 128;
  if (group == 0) {
    if (kWhat & kRegisters) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x < 32) load_tiles(w, s, threadIdx.x);
    if (threadIdx.x == 32) store_sums(w, s);
  } else {
    if (kWhat & kRegisters) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    sum_up<(kWhat & kWgmma) != 0>(w, s, s.sums[group - 1]);
  }
}
__global__ void compare(Work w, float expected) {
  const int step = w.what & kReduce ? 1 : 64, all = gridDim.x * blockDim.x * step;
  for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * step; i < kOutputs * 2 * kTile; i += all)
    if (w.out[i] != expected) atomicAdd(w.turns + 768, 1u);
}
#define TRY(call) \
  if (cudaError_t e = (call)) dprintf(1, "%-6s launch %ld: %s in %s\n", word, n, cudaGetErrorString(e), #call), _exit(1)
[[noreturn]] void run(const char* word, double seconds, double microseconds) {
  long n = 0;
  Work w{};
  for (int i = 0; i < 5; ++i) w.what |= std::strchr(word, "wmtro"[i]) ? 1u << i : 0;
  // A job takes about 5 us. Sums are whole numbers below 2^24, exact in any order.
  w.tiles = 24, w.jobs = kOutputs * 3 * static_cast<int>(1 + microseconds / 5);
  void (*kernels[])(Work) = {loop<0>, loop<1>, loop<2>, loop<3>}, (*kernel)(Work) = kernels[w.what & 3];
  const int shared = sizeof(Shared) + 1024;
  int blocks = 0, wrong = 0;
  std::vector<__nv_bfloat16> ones(512 * kTile, __float2bfloat16(1));
  TRY(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0));
  TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  TRY(cudaMalloc(&w.in, 512 * kTileBytes));
  TRY(cudaMalloc(&w.out, kOutputs * 2 * kTile * 4));
  TRY(cudaMalloc(&w.turns, 4096));
  TRY(cudaMemset(w.next = w.turns + 512, 0, 2048));
  TRY(cudaMemcpy(w.in, ones.data(), 512 * kTileBytes, cudaMemcpyHostToDevice));
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::duration<double> passed{};
  for (; passed.count() < seconds && !wrong; passed = std::chrono::steady_clock::now() - begin) {
    for (int i = 0; i < 10; ++i, ++n) {
      TRY(cudaMemsetAsync(w.out, 0, kOutputs * 2 * kTile * 4));
      TRY(cudaMemsetAsync(w.turns, 0, 2048));
      kernel<<<blocks, kThreads, shared>>>(w);
      compare<<<32, 256>>>(w, 64.0f * w.tiles * (w.jobs / kOutputs));
      TRY(cudaGetLastError());
    }
    TRY(cudaMemcpy(&wrong, w.turns + 768, 4, cudaMemcpyDeviceToHost));
  }
  dprintf(1, "%-6s %ld launches of %.0f us, %d sums are wrong\n", word, n, 1e6 * passed.count() / n, wrong);
  _exit(wrong != 0);
}
int main(int argc, char** argv) {
  for (int i = 3; i < argc; ++i) {
    if (fork()) continue;
    alarm(static_cast<unsigned>(atof(argv[1])) + 60);  // ends the process if its kernel never ends
    run(argv[i], atof(argv[1]), atof(argv[2]));
  }
  int bad = argc < 4, status;
  while (wait(&status) > 0) bad |= status != 0;
  return bad;
}
