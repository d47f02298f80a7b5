#pragma once
// Fused Hopper backward (sm90_fused.cuh): computes dq of a tile from the dS that both key consumers left in shared
// memory.

#include "kernels/attention/cuda/sm90_fused_producer.cuh"

namespace ring::cuda::sm90 {

// Copies dq to shared memory. Called by a warp group.
__device__ inline void store_sums(QuerySumTile& tile, const Sums<kSumColumns>& dq) {
  const int first = static_cast<int>(threadIdx.x) % kGroup / 32 * 16 + lane() / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + 8 * half;
    float* to = tile.row(row) + lane() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kSumColumns / 8; ++n)
      *reinterpret_cast<float2*>(to + 8 * swizzled_piece(n, row)) =
          make_float2(dq[4 * n + 2 * half], dq[4 * n + 2 * half + 1]);
  }
}

// Without a third consumer, the two key consumers compute dq of the previous tile, 64 columns each, once both have
// handed over its dS.
template <int kDim>
struct QueryColumns {
  using Memory = FusedMemory<kDim>;
  Memory& m;
  const int consumer;
  PipelineState<Memory::kGradStages> pipe;
  PipelineState<Memory::kSumEach> dq_pipe;
  bool stored = false;  // dq in shared memory that is not yet handed over

  __device__ void wait() { m.ds_full[pipe.index].wait(pipe.phase); }
  // Issues dq. The rows of both operands are keys.
  __device__ void queue(Sums<kSumColumns>& dq, SmemView<Bf16, Memory::kRows, kDim, Swizzle::b128> x) {
    const auto ds = m.ds[pipe.index].view();
    const auto keys = panel(x, consumer);
    wgmma_fence();
    mm_AtB(dq, ds, keys);
    wgmma_commit();
  }
  // Frees the dS stage and copies dq to shared memory. Call once the GEMM has completed.
  __device__ void store(Sums<kSumColumns>& dq) {
    fence_operand(dq);
    release(m.ds_empty[pipe.index]);
    m.dq_empty[dq_stage()].wait(dq_pipe.phase ^ 1);
    store_sums(m.dq[dq_stage()], dq);
    pipe.advance();
    stored = true;
  }
  __device__ void give() {
    if (stored) fence_proxy_async();
    hand_over();
  }
  // Hands dq over to the thread that adds it. Requires a proxy fence since the last store().
  __device__ void hand_over() {
    if (!stored) return;
    release(m.dq_full[dq_stage()]);
    dq_pipe.advance();
    stored = false;
  }
  // Wakes the thread that adds dq one last time, so that it finds that there are no more tiles.
  __device__ void end() {
    m.dq_empty[dq_stage()].wait(dq_pipe.phase ^ 1);
    release(m.dq_full[dq_stage()]);
  }

 private:
  __device__ int dq_stage() const { return consumer + Memory::kSumThreads * dq_pipe.index; }
};

// The third consumer, if registers suffice for one: its rows are queries.
template <int kDim>
struct QueryConsumer {
  using Memory = FusedMemory<kDim>;
  Memory& m;
  PipelineState<Memory::kStages> pipe;
  PipelineState<Memory::kOwnStages> own_pipe;
  PipelineState<Memory::kGradStages> ds_pipe;
  PipelineState<Memory::kSumStages> dq_pipe;
  Sums<kDim> dq;

  __device__ void run() {
    for (int n = 0;; ++n, own_pipe.advance()) {
      m.own_full[own_pipe.index].wait(own_pipe.phase);
      if (uniform(m.jobs[n % Memory::kJobs].head) < 0) break;
      while (next_tile()) {
      }
      release(m.own_empty[own_pipe.index]);
    }
    for (int i = 0; i < Memory::kSumStages; ++i) hand_over(false);
  }

 private:
  // Computes dq of the next tile. Returns false if the job has no more tiles.
  __device__ bool next_tile() {
    m.full[pipe.index].wait(pipe.phase);
    const int marks = uniform(m.tiles[pipe.index].marks);
    release(m.empty[pipe.index]);
    pipe.advance();
    if (marks < 0) return false;
    m.ds_full[ds_pipe.index].wait(ds_pipe.phase);
    wgmma_fence();
    if (is_wanted(marks, 0, 0)) add(0, 0);
    if (is_wanted(marks, 0, 1)) add(1, is_wanted(marks, 0, 0));
    wgmma_commit();
    wgmma_wait<0>();
    fence_operand(dq);
    release(m.ds_empty[ds_pipe.index]);
    ds_pipe.advance();
    hand_over(true);
    return true;
  }
  // Issues the GEMM that adds one consumer's 64 keys to dq. The rows of both operands are keys.
  __device__ void add(int consumer, int keep) {
    mm_AtB(dq, row_block<kGroupRows>(m.ds[ds_pipe.index].view(), consumer),
           row_block<kGroupRows>(m.x[own_pipe.index].view(), consumer), keep);
  }
  __device__ void hand_over(bool exists) {
    m.dq_empty[dq_pipe.index].wait(dq_pipe.phase ^ 1);
    if (exists) store_sums(m.dq[dq_pipe.index], dq);
    fence_proxy_async();
    release(m.dq_full[dq_pipe.index]);
    dq_pipe.advance();
  }
};

}  // namespace ring::cuda::sm90
