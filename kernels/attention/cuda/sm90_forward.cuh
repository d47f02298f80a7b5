#pragma once
// Forward for Hopper, after FlashAttention-3 (Shah et al. 2024, sections 3.1 and 3.2). Each consumer has two GEMMs in
// flight: Q K^T of one tile and P V of the previous tile. Two steps of the softmax overlap with GEMMs:
//   * The row max is computed while the consumer's own P V runs.
//   * The exponentials are computed while GEMMs of the other consumer run. They are written straight to the registers
//     of the previous P.
// docs/kernels.md has a timeline; docs/measured/kernels.md lists what was tried.

#include "kernels/attention/cuda/sm90_forward_rows.cuh"

namespace ring::cuda::sm90 {

// Ping-pong scheduling (FlashAttention-3, section 3.1): consumers take turns issuing GEMMs, so that the GEMMs of one
// overlap the softmax of another.
template <int kConsumers>
struct OrderedSequenceBarrier {
  int consumer;
  __device__ explicit OrderedSequenceBarrier(int consumer) : consumer(consumer) {
    if (consumer == kConsumers - 1) arrive();  // the first consumer starts
  }
  __device__ void wait() const { named_barrier_sync<2 * kGroup>(1 + consumer); }
  __device__ void arrive() const { named_barrier_arrive<2 * kGroup>(consumer == kConsumers - 1 ? 1 : 2 + consumer); }
};

// merging: the epilogue merges the result with a carry or writes f32; otherwise it writes bf16. drops: applies dropout
// to P.
template <int kDim, int kConsumers, bool merging, bool drops>
struct ForwardConsumer {
  using Memory = ForwardMemory<kDim, kConsumers>;
  static constexpr int kKeys = Memory::kKeys, kParts = Memory::kParts;
  static constexpr bool kNextQueries = Memory::kQueryStages == 2;  // the next job's queries have a buffer of their own
  const ForwardParams& p;
  Memory& m;
  const int consumer, warp;
  const OrderedSequenceBarrier<kConsumers> order;
  PipelineState<Memory::kKeyStages> k_pipe;
  PipelineState<Memory::kStages> v_pipe;
  Sums<kDim> out;
  Sums<kKeys> scores;
  OperandA<kKeys> weights;
  RowSums sums;
  TileDropout<Stationary::q> dropout;
  int marks = kNoTile;  // TileCoord::marks of the next tile
  bool half = false;    // if true, P of the tile's second part is 0 and is not computed

  __device__ ForwardConsumer(const ForwardParams& p, Memory& m, int consumer)
      : p(p), m(m), consumer(consumer), warp(uniform(static_cast<int>(threadIdx.x) % kGroup / 32)), order(consumer) {}

  __device__ void run() {
    bool more = begin_job(0);
    queue_first(0);
    for (int n = 0; more; ++n) {
      const Job<kConsumers>& job = m.jobs.jobs[n % Memory::kJobs];
      first_tile(job);
      while (marks >= 0) {  // the inner loop is for tiles without masked pairs
        while (all_whole<kParts>(marks, consumer)) next_tile<false>(job, n);
        if (marks < 0) break;
        if (any_wanted<kParts>(marks, consumer))
          next_tile<true>(job, n);
        else
          pass_tile();
      }
      if constexpr (kNextQueries) {
        release(m.k_empty[k_pipe.index]);  // frees the K stage of the sentinel tile (marks < 0), which has no keys
        k_pipe.advance();
        more = begin_job(n + 1);
        order.wait();
        wgmma_fence();
        queue_last_values();
        queue_scores(n + 1);  // overlaps the epilogue of this job; the result is unused after the last job
        order.arrive();
        wgmma_wait<1>();
        values_added();
        write<Memory::kRows>(job, n, m.q[n & 1], in_block());
        release(m.q_empty[n & 1]);
      } else {
        end_job(job, n);
        more = begin_job(n + 1);
        queue_first(n + 1);  // the result is unused after the last job
      }
    }
    wgmma_wait<0>();
  }

 private:
  __device__ static void release(Barrier& empty) {
    if (lane() == 0) empty.arrive();
  }
  __device__ int in_block() const { return kGroupRows * consumer + 16 * warp; }  // the warp's first row in the block
  // Issues Q K^T of a job's first tile.
  __device__ void queue_first(int n) {
    order.wait();
    wgmma_fence();
    queue_scores(n);
    order.arrive();
  }
  // Ends a job if queries have only one buffer, which it frees first. Call after the last scores of the job.
  __device__ void end_job(const Job<kConsumers>& job, int n) {
    release(m.q_empty[0]);
    order.wait();
    wgmma_fence();
    queue_last_values();
    order.arrive();
    wgmma_wait<0>();
    values_added();
    m.v_full[v_pipe.index].wait(v_pipe.phase);  // wait for the empty stage of V from the producer
    auto& stage = consumer == 0 ? m.k[k_pipe.index] : m.v[v_pipe.index];
    write<kKeys>(job, n, stage, 16 * warp);
    release(m.k_empty[k_pipe.index]);
    release(m.v_empty[v_pipe.index]);
    k_pipe.advance();
    v_pipe.advance();
  }
  // Computes P of a job's first tile; there is no previous P V to overlap with.
  __device__ void first_tile(const Job<kConsumers>& job) {
    sums = {};
    half = false;
    clear(out);
    wgmma_wait<0>();
    take_scores<true>(job);
    const Shift shift = row_max(sums, scores, p.factor);
    read_marks();
    wait_for_dropout_keys();
    weigh_all(weights, scores, shift);
  }
  // Issues Q K^T of the next tile and P V of the previous one, then computes P of the next tile.
  template <bool masked>
  __device__ void next_tile(const Job<kConsumers>& job, int n) {
    order.wait();
    wgmma_fence();
    queue_scores(n);
    queue_values();
    order.arrive();
    wgmma_wait<1>();
    half = kParts == 2 && masked && !is_wanted(marks, 1, consumer);
    take_scores<masked>(job);
    const Shift shift = raise<masked>();
    read_marks();  // its polling loop also keeps the compiler from moving the next wait ahead of the row max
    wgmma_wait<0>();
    values_added();
    if (shift.moved) mul_row(out, shift.rescale);
    wait_for_dropout_keys();
    weigh_scores<masked>(shift);
  }
  // Updates the row max.
  template <bool masked>
  __device__ Shift raise() {
    if constexpr (masked && kParts == 2)
      if (half) return row_max(sums, column_block<kPart>(scores, 0), p.factor);
    return row_max(sums, scores, p.factor);
  }
  // Converts the scores to P.
  template <bool masked>
  __device__ void weigh_scores(const Shift& by) {
    if constexpr (masked && kParts == 2)
      if (half) {
        weigh_all(column_block<kPart>(weights, 0), column_block<kPart>(scores, 0), by);
        return clear(column_block<kPart>(weights, 1));
      }
    weigh_all(weights, scores, by);
  }
  template <int kColumns>
  __device__ void weigh_all(OperandA<kColumns>& to, const Sums<kColumns>& s, const Shift& by) {
    if constexpr (drops)
      exp2(to, sums, s, by, p.factor, Keeps{dropout, p.dropout.threshold});
    else
      exp2(to, sums, s, by, p.factor, KeepsAll{});
  }

  // Waits for the dropout keys of the tile's columns. Returns at once in kernels without dropout.
  __device__ void wait_for_dropout_keys() {
    if constexpr (!drops) return;
    m.dropout_full[v_pipe.index].wait(v_pipe.phase);
    dropout.use(m.dropout_keys[v_pipe.index]);
  }

  // Skips a tile in which this consumer has no unmasked pairs: P = 0.
  __device__ void pass_tile() {
    order.wait();
    wgmma_fence();
    queue_values();
    order.arrive();
    release(m.k_empty[k_pipe.index]);
    k_pipe.advance();
    read_marks();
    wgmma_wait<0>();
    values_added();
    clear(weights);
  }

  // Waits until the K tile of the next stage is loaded, and reads its TileCoord::marks.
  __device__ void read_marks() {
    m.k_full[k_pipe.index].wait(k_pipe.phase);
    marks = uniform(m.tiles[k_pipe.index].marks);
  }
  // Waits for the queries of job n. Returns false if there are no more jobs.
  __device__ bool begin_job(int n) {
    m.q_full[m.q_stage(n)].wait(m.q_phase(n));
    const bool exists = uniform(m.jobs.jobs[n % Memory::kJobs].head) >= 0;
    if (exists) read_marks();
    if (drops && exists) {
      const Job<kConsumers>& job = m.jobs.jobs[n % Memory::kJobs];
      dropout.load_rows(p.dropout, p.tokens, job, job.row + in_block());
    }
    return exists;
  }
  // Issues Q K^T, with Q of job n.
  __device__ void queue_scores(int n) {
    mm_ABt(scores, row_block<kGroupRows>(stage_view(m.q, m.q_stage(n)), consumer), stage_view(m.k, k_pipe.index));
    wgmma_commit();
  }
  // Waits for the V tile and issues P V.
  __device__ void queue_values() {
    m.v_full[v_pipe.index].wait(v_pipe.phase);
    mma_AB(out, weights, stage_view(m.v, v_pipe.index));
    wgmma_commit();
  }
  // Issues P V of a job's last tile. Skips the tile's second part if all its pairs are masked, as they often are.
  __device__ void queue_last_values() {
    m.v_full[v_pipe.index].wait(v_pipe.phase);
    const auto v = stage_view(m.v, v_pipe.index);
    mma_AB(out, column_block<kPart>(weights, 0), row_block<kPart>(v, 0));
    if constexpr (kParts == 2)
      if (!half) mma_AB(out, column_block<kPart>(weights, 1), row_block<kPart>(v, 1));
    wgmma_commit();
  }
  // Masks the scores and frees the K stage.
  template <bool masked>
  __device__ void take_scores(const Job<kConsumers>& job) {
    fence_operand(scores);
    if constexpr (masked) {
      TileCoord tile = m.tiles[k_pipe.index];
      tile.marks = half ? marks | 0x1000 << consumer : marks;  // the second part is unused: skip its mask
      mask_rows<Stationary::q, kParts>(scores, job.segment, tile, job.row + in_block() + lane() / 4, consumer);
      __syncwarp();  // all lanes have read the tile's columns
    }
    release(m.k_empty[k_pipe.index]);
    k_pipe.advance();
  }
  // Frees the V stage. Call once P V has completed.
  __device__ void values_added() {
    fence_operand(out);
    release(m.v_empty[v_pipe.index]);
    v_pipe.advance();
  }
  // Epilogue: writes out and lse, then frees the job. The warp stages its rows in `staged`, from row `first` on.
  template <int kStagedRows>
  __device__ void write(const Job<kConsumers>& job, int n, SmemTile<Bf16, kStagedRows, kDim>& staged, int first) {
    const WarpRows own(job, job.row + in_block(), job.segment.q_row);
    const float scale = drops ? p.dropout.scale : 1.0f;
    if constexpr (merging)
      write_merged<kDim>(p, own, out, sums, scale);
    else
      write_staged<kDim, kStagedRows>(p, own, out, sums, scale, {staged, first});
    release(m.jobs.empty[n % Memory::kJobs]);
  }
};

template <int kDim, int kConsumers, bool merging, bool drops>
__global__ __launch_bounds__(threads_of(kConsumers), 1) void sm90_forward(const __grid_constant__ ForwardParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  using Memory = ForwardMemory<kDim, kConsumers>;
  static_assert(sizeof(Memory) + kAlignment <= 227 << 10);
  auto& m = aligned<Memory>(memory);
  if (threadIdx.x == 0) m.init();
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / kGroup);
  if (group == 0) {
    setmaxnreg_dec<Memory::kProducerRegisters>();
    if (threadIdx.x < 32) ForwardProducer<kDim, kConsumers, drops>{p, m}.run();
    if (threadIdx.x == 32) m.jobs.template describe_all<Stationary::q>(p.work, p.pass, p.scheduler, p.group);
    if (threadIdx.x == 64)
      for (const TensorMap* map : {&p.q, &p.k, &p.v}) prefetch_descriptor(map->map);
  } else {
    setmaxnreg_inc<Memory::kConsumerRegisters>();
    ForwardConsumer<kDim, kConsumers, merging, drops>(p, m, group - 1).run();
  }
#else
  __trap();  // compiled for a different architecture; supports() rejects such devices
#endif
}

template <int kDim, int kConsumers, bool drops>
void run_forward(const Attention& a, const BranchPass& pass, const Tensor& keys, const ExecContext& ctx) {
  using Memory = ForwardMemory<kDim, kConsumers>;
  const int heads = static_cast<int>(a.q.dim(1)), kv_heads = static_cast<int>(a.k.dim(1)), group = heads / kv_heads;
  const int dim = static_cast<int>(a.q.dim(2));
  const SchedulePlan plan = plan_schedule(pass, a.pattern, a.queries, a.keys, a.selection, Stationary::q, heads,
                                          kv_heads, Memory::kRows, std::max(1, 4 * dim / group), ctx);
  if (plan.blocks == 0) return;
  ForwardParams p{};
  const bool fits = make_tensor_map(a.q, pass.rate, p.q) && make_tensor_map(a.k, pass.rate, p.k) &&
                    make_tensor_map(a.v, pass.rate, p.v);
  RING_CHECK(fits, "attention: the TMA does not support these operands");
  p.out = output_of(a.out, a.carry);
  p.lse = a.lse.data<float>();
  p.tokens = a.q.dim(0);
  p.dim = dim;
  p.group = group;
  p.factor = a.scale * kLog2E;
  p.pass = pass;
  p.work = plan.work;
  p.scheduler = {plan.counter, static_cast<unsigned>(plan.blocks)};
  p.dropout = dropout_params(a.dropout, keys);
  const bool merging = p.out.carry.data || !p.out.half.data;
  launch(ctx, {grid_of(grid_blocks(plan.blocks, ctx)), threads_of(kConsumers), sizeof(Memory) + kAlignment},
         merging ? sm90_forward<kDim, kConsumers, true, drops> : sm90_forward<kDim, kConsumers, false, drops>, p);
}

}  // namespace ring::cuda::sm90

// The build instantiates the kernels of each head dim in a separate file (ring_attention_instances in
// cmake/rooms.cmake).
#define RING_INSTANTIATE(...)                                                                                     \
  namespace ring::cuda::sm90 {                                                                                    \
  template void run_forward<__VA_ARGS__>(const Attention&, const BranchPass&, const Tensor&, const ExecContext&); \
  }
