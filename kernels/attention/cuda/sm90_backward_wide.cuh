#pragma once
// Backward for Hopper: dk and dv of heads of 256. A thread block owns 64 keys, whose two gradients take most of the
// registers of two consumers. Consumer 0 computes S, P and dv, and hands P to consumer 1 through shared memory.
// Consumer 1 computes dP, dS and dk. The GEMMs of dv and dk read P and dS from registers, in which they were computed.

#include "kernels/attention/cuda/sm90_backward_math.cuh"

namespace ring::cuda::sm90 {

// A consumer; of_values: it computes P and dv, not dS and dk. The GEMM of dv or dk overlaps S or dP of the next tile.
template <int kDim, bool merging, bool drops, bool of_values>
struct KeyConsumer {
  using Memory = BackwardMemory<Stationary::kv, kDim>;
  using KeyJob = Job<Memory::kConsumers>;
  static constexpr int kColumns = Memory::kColumns, kParts = Memory::kParts;
  static_assert(Memory::kStages == 2 && Memory::kStagesOfB == 2);
  static constexpr int consumer = 0;  // both consumers have the job's only 64 rows
  const TmaBackwardParams& p;
  Memory& m;
  const int warp, thread;  // within the warp group
  PipelineState<Memory::kStages> pipe;
  PipelineState<Memory::kStagesOfB> b_pipe;
  PipelineState<Memory::kOwnStages> own_pipe;
  PipelineState<1> weights_pipe;
  int marks = kNoTile;   // next tile's TileCoord::marks
  bool pending = false;  // the GEMM of dv or dk is in flight, and reads the previous stage
  Sums<kDim> gradient;   // dv or dk
  Sums<kColumns> s;      // S, then P; or dP, then dS
  std::conditional_t<of_values, NoTile, Sums<kColumns>> w;
  OperandA<kColumns> g;  // P or dS
  LaneStatistics<Stationary::kv, kColumns, false> statistics;
  TileDropout<Stationary::kv> dropout;

  __device__ KeyConsumer(const TmaBackwardParams& p, Memory& m)
      : p(p),
        m(m),
        warp(uniform(static_cast<int>(threadIdx.x) % kGroup / 32)),
        thread(static_cast<int>(threadIdx.x) % kGroup) {}

  __device__ void run() {
    for (int n = 0;; ++n) {
      m.own_full[own_pipe.index].wait(own_pipe.phase);
      const KeyJob& job = m.jobs[n % Memory::kJobs];
      if (uniform(job.head) < 0) return;
      clear(gradient);
      if constexpr (drops && of_values) dropout.load_rows(p.dropout, p.tokens, job, job.row + 16 * warp);
      read_marks();
      take_tiles<of_values>(*this, job, job.row + 16 * warp + lane() / 4);
      wgmma_wait<0>();
      gradient_added();
      release(m.own_empty[own_pipe.index]);
      own_pipe.advance();
      write(job);
    }
  }

  __device__ static void release(Barrier& empty) {
    __syncwarp();  // all lanes have finished reading
    if (lane() == 0) empty.arrive();
  }
  // Waits until the tile of the next stage is loaded, and reads its TileCoord::marks.
  __device__ void read_marks() {
    m.full[pipe.index].wait(pipe.phase);
    marks = uniform(m.tiles[pipe.index].marks);
  }
  template <bool masked>
  __device__ void next_tile(const KeyJob& job, int row) {
    const int stage = pipe.index;
    const auto a = stage_view(m.a, stage), b = stage_view(m.b, b_pipe.index);
    if constexpr (!of_values) wait_for_b();
    wgmma_fence();
    if constexpr (of_values)
      mm_ABt(s, m.x[own_pipe.index].view(), a);
    else
      mm_ABt(s, m.y[own_pipe.index].view(), b);
    wgmma_commit();
    wgmma_wait<1>();
    gradient_added();
    pending = true;
    if constexpr (of_values) {
      take_weights<masked>(job, row, stage);
      release(m.empty[stage]);  // the scores and statistics of the tile have been read
      wait_for_b();
    } else {
      take_gradients(stage);
    }
    wgmma_fence();
    mma_AB(gradient, g, of_values ? b : a);
    wgmma_commit();
    pipe.advance();
    b_pipe.advance();
    read_marks();
  }
  // Never called: the job has only 64 rows, and every tile of its stream has unmasked pairs in them.
  __device__ void pass_tile() {}

 private:
  __device__ void wait_for_b() { m.b_full[b_pipe.index].wait(b_pipe.phase); }
  // Frees the stage of the previous tile that dv (b) or dk (a) has read. Call once the GEMM of that tile has completed.
  __device__ void gradient_added() {
    fence_operand(gradient);
    if (!pending) return;
    pending = false;
    if constexpr (of_values)
      release(m.b_empty[b_pipe.index ^ 1]);
    else
      release(m.empty[pipe.index ^ 1]);
  }
  // Converts scores to P, hands P to the other consumer, and converts it to bf16.
  template <bool masked>
  __device__ void take_weights(const KeyJob& job, int row, int stage) {
    if constexpr (drops) dropout.use(m.dropout_keys[stage]);
    statistics.load_lse2(m.lse2[stage]);
    wgmma_wait<0>();
    fence_operand(s);
    if constexpr (masked) {
      TileCoord tile = m.tiles[stage];
      tile.marks = marks;
      mask_rows<Stationary::kv, kParts>(s, job.segment, tile, row, consumer);
    }
    weights_of(s, statistics, p.factor);
    if constexpr (drops) mark_dropped(s, dropout, p.dropout.threshold);
    m.weights.empty.wait(weights_pipe.phase ^ 1);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
      m.weights.of_lane[n][thread] = make_float4(s[4 * n], s[4 * n + 1], s[4 * n + 2], s[4 * n + 3]);
    release(m.weights.full);
    weights_pipe.advance();
    if constexpr (drops)
      as_kept_fragments(g, s);
    else
      as_fragments(g, s);
  }
  // Converts dP to dS, using P from the other consumer.
  __device__ void take_gradients(int stage) {
    statistics.load_delta(m.delta[stage]);
    wgmma_wait<0>();
    fence_operand(s);
    release(m.b_empty[b_pipe.index]);
    m.weights.full.wait(weights_pipe.phase);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const float4 x = m.weights.of_lane[n][thread];
      w[4 * n] = x.x, w[4 * n + 1] = x.y, w[4 * n + 2] = x.z, w[4 * n + 3] = x.w;
    }
    release(m.weights.empty);
    weights_pipe.advance();
    if constexpr (drops)
      kept_score_gradients(s, w, statistics);
    else
      score_gradients(s, w, statistics);
    as_fragments(g, s);
  }
  // Epilogue. Stages its rows in the stage of the sentinel tile (marks < 0), which holds no data.
  __device__ void write(const KeyJob& job) {
    const WarpRows rows(job, job.row + 16 * warp, job.segment.k_row);
    wait_for_b();
    const StagedRows<kDim, kColumns> staged(of_values ? m.a[pipe.index] : m.b[b_pipe.index], 16 * warp);
    const float factor = !of_values ? p.scale : drops ? p.dropout.scale : 1.0f;
    write_gradient<merging>(gradient, factor, of_values ? p.dy : p.dx, of_values ? p.partial_dy : p.partial_dx, job,
                            rows, p.dim, staged);
    fence_proxy_async();
    release(m.empty[pipe.index]);
    release(m.b_empty[b_pipe.index]);
    pipe.advance();
    b_pipe.advance();
  }
};

}  // namespace ring::cuda::sm90
