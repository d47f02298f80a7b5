#include "kernels/attention/cuda/dropout.cuh"

namespace ring::cuda {
namespace {

struct Address {
  RandomSite site;
  const StepState* state;  // if not null, its step replaces site.step
  std::int64_t first_row, first_head;
  const std::int32_t* rows;  // null if rows are numbered in order
};

__global__ void __launch_bounds__(kBlock)
    draw_keys(Address a, std::int64_t tokens, std::int64_t all, std::uint32_t* keys) {
  const std::int64_t i = thread_x();
  if (i >= all) return;
  const std::int64_t head = i / tokens, n = i - head * tokens;
  if (a.state) a.site.step = a.state->step;
  keys[i] = dropout_row_key(a.site, a.first_row + (a.rows ? a.rows[n] : n), a.first_head + head);
}

}  // namespace

Tensor dropout_keys(const AttentionDropout& d, const Tensor& lse, const ExecContext& ctx) {
  if (d.rate == 0) return {};
  const Tensor keys = ctx.empty(lse.shape(), DType::i32);
  const std::int64_t all = keys.numel();
  if (all == 0) return keys;
  const Address address{d.site, device_state("attention", d.state), d.first_row, d.first_head,
                        device_data<std::int32_t>(d.rows)};
  launch(ctx, {grid_of(divide_up(all, kBlock))}, draw_keys, address, lse.dim(1), all,
         reinterpret_cast<std::uint32_t*>(keys.raw()));
  return keys;
}

DropoutParams dropout_params(const AttentionDropout& d, const Tensor& keys) {
  if (!keys.defined()) return {};
  return {reinterpret_cast<const std::uint32_t*>(keys.raw()), dropout_threshold(d.rate), 1 / (1 - d.rate)};
}

}  // namespace ring::cuda
