#include "kernels/attention/cuda/work.cuh"

#include <algorithm>

namespace ring::cuda {
namespace {

// Share of an L2 cache (60 MB on an H200) that the rows streamed by the running blocks may fill.
constexpr std::int64_t kSectionBytes = std::int64_t{24} << 20;
constexpr std::int64_t kSectionBlocks = 512;  // enough for every multiprocessor, twice

bool uniform(const std::vector<std::int32_t>& offsets) {
  if (offsets.size() < 2) return false;
  for (std::size_t b = 2; b < offsets.size(); ++b)
    if (offsets[b] - offsets[b - 1] != offsets[1] - offsets[0]) return false;
  return offsets[1] > offsets[0];
}

std::vector<RowBlock> list_blocks(const std::vector<std::int32_t>& offsets, Owner owner, int rows, bool causal) {
  std::vector<RowBlock> list;
  for (std::size_t b = 0; b + 1 < offsets.size(); ++b)
    for (std::int32_t row = 0, length = offsets[b + 1] - offsets[b]; row < length; row += rows)
      list.push_back({offsets[b], length, row});
  const auto cost = [&](const RowBlock& b) {
    if (!causal) return b.length;
    return owner == Owner::queries ? std::min(b.row + rows, b.length) : b.length - b.row;
  };
  std::stable_sort(list.begin(), list.end(), [&](const RowBlock& a, const RowBlock& b) { return cost(a) > cost(b); });
  return list;
}

// A launch has at most 2^31 - 1 blocks.
std::int64_t checked(std::int64_t blocks) {
  RING_CHECK(blocks < std::int64_t{1} << 31, "attention: ", blocks, " blocks of work are too many for one launch");
  return blocks;
}

void check_view(std::string_view op, std::string_view name, const Tensor& t, const Tensor& like, std::int64_t heads) {
  RING_CHECK(t.defined() && t.shape() == (Shape{like.dim(0), heads, like.dim(2)}) && t.dtype() == like.dtype() &&
                 (t.dim(2) <= 1 || t.stride(2) == 1),
             op, ": ", name, " is ", describe(t), " with strides ", t.strides(), ", expected ", like.dtype(), "[",
             like.dim(0), ",", heads, ",", like.dim(2), "] with unit last stride");
}

void check_geometry(std::string_view op, const Tensor& q, const Tensor& k) {
  RING_CHECK(q.defined() && q.shape().size() == 3 && k.defined() && k.shape().size() == 3, op, ": q is ", describe(q),
             ", k is ", describe(k), ", expected [tokens, heads, head dim]");
  RING_CHECK(q.dim(2) > 0 && q.dim(2) % 8 == 0 && q.dim(2) <= 256, op, ": head dim ", q.dim(2),
             " is not a multiple of 8 up to 256");
  RING_CHECK(k.dim(1) > 0 && q.dim(1) % k.dim(1) == 0, op, ": ", q.dim(1), " query heads over ", k.dim(1), " KV heads");
}

void check_sequences(std::string_view op, const std::vector<std::int32_t>& offsets, const Tensor& lse,
                     const Tensor& q) {
  RING_CHECK(!offsets.empty() && offsets.front() >= 0 && offsets.back() <= q.dim(0) &&
                 std::is_sorted(offsets.begin(), offsets.end()),
             op, ": offsets must rise within [0, ", q.dim(0), "]");
  RING_CHECK(
      lse.defined() && lse.dtype() == DType::f32 && lse.shape() == (Shape{q.dim(1), q.dim(0)}) && lse.contiguous(), op,
      ": lse is ", describe(lse), " for ", q.dim(1), " heads and ", q.dim(0), " tokens");
}

template <class T>
__global__ void zero_rows(HeadsOf<T> t, std::int64_t first, std::int64_t count, int heads, int dim) {
  for (std::int64_t n = blockIdx.x; n < count; n += gridDim.x)
    for (int i = static_cast<int>(threadIdx.x); i < heads * dim; i += kBlock)
      t.at(first + n, i / dim)[i % dim] = T(0.0f);
}

__global__ void no_keys(float* lse, std::int64_t tokens, std::int64_t first, std::int64_t count, int heads) {
  for (std::int64_t n = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; n < count;
       n += std::int64_t{gridDim.x} * kBlock)
    for (int h = 0; h < heads; ++h) lse[h * tokens + first + n] = -INFINITY;
}

// fn(first, count) for the tokens of no sequence.
template <class Fn>
void for_rows_outside(const std::vector<std::int32_t>& offsets, std::int64_t tokens, const Fn& fn) {
  if (offsets.front() > 0) fn(std::int64_t{0}, std::int64_t{offsets.front()});
  if (offsets.back() < tokens) fn(std::int64_t{offsets.back()}, tokens - offsets.back());
}

void zero(const Tensor& t, std::int64_t first, std::int64_t count, const Context& ctx) {
  const Launch shape{grid_of(std::min(count, kMaxGridY))};
  const int heads = static_cast<int>(t.dim(1)), dim = static_cast<int>(t.dim(2));
  if (t.dtype() == DType::bf16)
    launch(ctx, shape, zero_rows<__nv_bfloat16>, heads_of<__nv_bfloat16>(t), first, count, heads, dim);
  else
    launch(ctx, shape, zero_rows<float>, heads_of<float>(t), first, count, heads, dim);
}

}  // namespace

BlockPlan plan_blocks(const std::vector<std::int32_t>& offsets, Owner owner, int heads, int rows, bool causal,
                      std::int64_t stream_bytes, const Context& ctx) {
  BlockPlan plan{};
  plan.work.heads = heads;
  if (uniform(offsets)) {
    Work& w = plan.work;
    w.pairs = static_cast<int>(checked(static_cast<std::int64_t>(offsets.size() - 1) * heads));
    w.start = offsets[0];
    w.length = offsets[1] - offsets[0];
    w.rows = rows;
    w.row_blocks = static_cast<int>(divide_up(w.length, rows));
    const std::int64_t fits = kSectionBytes / (stream_bytes * w.length), busy = divide_up(kSectionBlocks, w.row_blocks);
    w.section = static_cast<int>(std::clamp<std::int64_t>(std::max(fits, busy), 1, std::max(w.pairs, 1)));
    w.last_first = causal && owner == Owner::queries;
    plan.blocks = checked(std::int64_t{w.pairs} * w.row_blocks);
    return plan;
  }
  const std::vector<RowBlock> list = list_blocks(offsets, owner, rows, causal);
  const std::size_t bytes = list.size() * sizeof(RowBlock);
  plan.blocks = checked(static_cast<std::int64_t>(list.size()) * heads);
  if (plan.blocks == 0) return plan;
  plan.list = ctx.empty({static_cast<std::int64_t>(bytes)}, DType::u8);
  ctx.stream.impl().upload(plan.list.raw(), list.data(), bytes);
  plan.work.list = reinterpret_cast<const RowBlock*>(plan.list.raw());
  return plan;
}

void check(const Attention& a) {
  constexpr std::string_view op = "attention";
  check_geometry(op, a.q, a.k);
  check_view(op, "q", a.q, a.q, a.q.dim(1));
  check_view(op, "k", a.k, a.q, a.k.dim(1));
  check_view(op, "v", a.v, a.q, a.k.dim(1));
  check_view(op, "out", a.out, a.q, a.q.dim(1));
  check_sequences(op, a.offsets, a.lse, a.q);
}

void check(const AttentionBackward& a) {
  constexpr std::string_view op = "attention_backward";
  check_geometry(op, a.q, a.k);
  for (const auto& [name, t] : {std::pair{"q", &a.q}, {"out", &a.out}, {"dout", &a.dout}, {"dq", &a.dq}})
    check_view(op, name, *t, a.q, a.q.dim(1));
  for (const auto& [name, t] : {std::pair{"k", &a.k}, {"v", &a.v}, {"dk", &a.dk}, {"dv", &a.dv}})
    check_view(op, name, *t, a.q, a.k.dim(1));
  check_sequences(op, a.offsets, a.lse, a.q);
}

void fill_outside(const Attention& a, const Context& ctx) {
  for_rows_outside(a.offsets, a.q.dim(0), [&](std::int64_t first, std::int64_t count) {
    zero(a.out, first, count, ctx);
    launch(ctx, {grid_of(std::min(divide_up(count, kBlock), kMaxGridY))}, no_keys, a.lse.data<float>(), a.q.dim(0),
           first, count, a.q.dim(1));
  });
}

void fill_outside(const AttentionBackward& a, const Context& ctx) {
  for_rows_outside(a.offsets, a.q.dim(0), [&](std::int64_t first, std::int64_t count) {
    for (const Tensor* t : {&a.dq, &a.dk, &a.dv}) zero(*t, first, count, ctx);
  });
}

}  // namespace ring::cuda
