#include "kernels/attention/cuda/tile_schedule.cuh"

#include <algorithm>
#include <list>

#include "core/cuda/handles.h"
#include "kernels/cuda/device/vec.cuh"

namespace ring::cuda {
namespace {

// Bytes of the L2 cache (60 MB on an H200) that the rows streamed by running thread blocks may fill.
constexpr std::int64_t kSectionBytes = std::int64_t{24} << 20;
constexpr std::int64_t kSectionBlocks = 512;  // twice as many as needed to occupy every SM

// Throws Error if a launch would have more than 2^31 - 1 blocks. Returns `blocks`.
std::int64_t checked(std::int64_t blocks) {
  RING_CHECK(blocks < std::int64_t{1} << 31, "attention: ", blocks, " blocks of work are too many for one launch");
  return blocks;
}

struct Costed {
  TileItem item;
  // group: index of a group of segment pairs. The rows that are streamed for one group and head share the L2 cache.
  std::int64_t group, cost;
};

// Returns all row blocks, group after group; within a group by descending cost (Graham 1969).
template <Stationary owner>
std::vector<TileItem> list_items(const BranchPass& pass, const std::vector<SegmentPair>& pieces, int rows,
                                 std::int64_t group_columns, BlockOrder order) {
  std::vector<Costed> all;
  std::int64_t group = 0, filled = 0;
  for (const SegmentPair& p : pieces) {
    const HeadSegment s(pass, p, 0);
    const std::int64_t columns = owner == Stationary::q ? s.k_end - s.k_first : s.q_end - s.q_first;
    const int positions = owner == Stationary::q ? p.q_end - p.q_first : p.k_end - p.k_first;
    const int samples = static_cast<int>(divide_up(positions, pass.rate));  // upper bound over all heads
    if (filled > 0 && filled + columns > group_columns) ++group, filled = 0;
    filled += columns;
    const std::size_t begin = all.size();
    for (int block = 0; block * rows < samples; ++block) {
      const int first = s.first<owner>() + block * rows;
      const TileBounds r = s.bounds<owner>(first, first + std::min(rows, samples - block * rows));
      const int gap = std::max(0, std::min(r.gap_end, r.end) - std::max(r.gap, r.first));
      all.push_back({{p, block}, group, r.end - r.first - gap});
    }
    if (order == BlockOrder::ascending)  // raises costs, so that sorting by cost keeps the ascending order
      for (std::size_t i = all.size(); i > begin + 1; --i) all[i - 2].cost = std::max(all[i - 2].cost, all[i - 1].cost);
  }
  std::stable_sort(all.begin(), all.end(), [](const Costed& a, const Costed& b) {
    return a.group != b.group ? a.group < b.group : a.cost > b.cost;
  });
  std::vector<TileItem> items;
  for (const Costed& c : all) items.push_back(c.item);
  return items;
}

using Key = std::vector<std::int32_t>;

void add_key(Key& key, const std::vector<Span>& spans) {
  key.push_back(static_cast<std::int32_t>(spans.size()));
  for (const Span& s : spans) key.insert(key.end(), {s.first, s.count, s.position, s.document});
}

struct Plan {
  Key key;
  Tensor memory;  // device memory of the work items or, with block lists, of the segment pairs
  std::int64_t count = 0, columns = 0, others = 0;  // others: see TileSchedule
  SelectedShape selected{};                         // used only with block lists
  bool pinned = false;
};

// Plans of a stream, most recently used first.
class SchedulePlans {
 public:
  explicit SchedulePlans(StreamImpl&) {}

  template <class Make>
  std::shared_ptr<const Plan> find(const Key& key, const ExecContext& ctx, const Make& make) {
    auto at = std::find_if(plans_.begin(), plans_.end(), [&](const auto& p) { return p->key == key; });
    if (at == plans_.end()) {
      plans_.push_front(std::make_shared<Plan>(make(spare())));
      plans_.front()->key = key;
    } else {
      plans_.splice(plans_.begin(), plans_, at);
    }
    cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
    RING_CUDA_CHECK(cudaStreamIsCapturing(static_cast<cudaStream_t>(ctx.stream.native()), &recording));
    plans_.front()->pinned |= recording != cudaStreamCaptureStatusNone;
    return plans_.front();
  }

 private:
  static constexpr std::size_t kMost = 256;
  // Returns memory for a new plan. If there are kMost plans, drops the least recently used one that is not pinned and
  // returns its memory; otherwise returns an undefined tensor. Reuse is safe, because the stream orders new work after
  // earlier work.
  Tensor spare() {
    if (plans_.size() < kMost) return {};
    for (auto p = plans_.end(); p != plans_.begin();)
      if (!(*--p)->pinned) {
        const Tensor memory = (*p)->memory;
        plans_.erase(p);
        return memory;
      }
    return {};
  }
  std::list<std::shared_ptr<Plan>> plans_;
};

constexpr std::size_t kHead = 64;  // bytes before the items, for the counter

// Copies values to the device. Sizes are rounded up so that the memory can be reused for later uploads.
template <class T>
Tensor upload(const std::vector<T>& values, Tensor memory, const ExecContext& ctx) {
  const auto* items = reinterpret_cast<const unsigned char*>(values.data());
  std::vector<unsigned char> bytes(kHead);
  bytes.insert(bytes.end(), items, items + values.size() * sizeof(T));
  std::size_t room = 1024;
  while (room < bytes.size()) room *= 2;
  if (!memory.defined() || memory.bytes() < room)
    memory = ctx.empty({static_cast<std::int64_t>(room)}, DType::u8, Lifetime::run);
  ctx.stream.impl().upload(memory.raw(), bytes.data(), bytes.size());
  return memory;
}

// Sets rows to the carry, or to 0 if there is none.
template <class T>
__global__ void fill_rows(HeadsOf<T> t, HeadsOf<const float> carry, std::int64_t first, std::int64_t count, int heads,
                          int dim) {
  for (std::int64_t n = blockIdx.x; n < count; n += gridDim.x)
    for (int i = static_cast<int>(threadIdx.x); i < heads * dim; i += kBlock)
      t.at(first + n, i / dim)[i % dim] = from_float<T>(carry.data ? carry.at(first + n, i / dim)[i % dim] : 0.0f);
}

__global__ void no_keys(float* lse, std::int64_t tokens, std::int64_t first, std::int64_t count, int heads) {
  for (std::int64_t n = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; n < count;
       n += std::int64_t{gridDim.x} * kBlock)
    for (int h = 0; h < heads; ++h) lse[h * tokens + first + n] = -INFINITY;
}

void fill(const Tensor& t, const Tensor& carry, std::int64_t first, std::int64_t count, const ExecContext& ctx) {
  if (carry.defined() && carry.raw() == t.raw()) return;
  const Launch shape{grid_of(std::min(count, kMaxGridY))};
  const int heads = static_cast<int>(t.dim(1)), dim = static_cast<int>(t.dim(2));
  visit_float("attention", t.dtype(), [&]<class T>() {
    launch(ctx, shape, fill_rows<T>, heads_of<T>(t), heads_of<const float>(carry), first, count, heads, dim);
  });
}

void fill_lse(const Tensor& lse, std::int64_t first, std::int64_t count, const ExecContext& ctx) {
  launch(ctx, {grid_of(std::min(divide_up(count, kBlock), kMaxGridY))}, no_keys, lse.data<float>(), lse.dim(1), first,
         count, lse.dim(0));
}

// Makes the plan's work items from its block lists. Repeats them `times` times: once per segment pair if segment
// pairs share lists, else once.
void take_lists(SchedulePlan& plan, std::int64_t times) {
  TileSchedule& work = plan.work;
  work.order = plan.lists.item_data();
  work.entries = plan.lists.entry_data();
  work.listed = plan.lists.items;
  work.slots = plan.lists.slots;
  plan.blocks = checked(times * work.listed * work.group * work.halves);
}

// Returns the number of queries whose segment pairs the fused backward processes at the same time, except in the last
// section of heads. The fewer queries, the fewer bytes pass through the L2 cache before a tile is read again. But with
// fewer than eight segment pairs, blocks of keys would wait for their turn to add to dq. In the last section, all pairs
// that fit into the cache are processed at the same time, so that the longest jobs can come first.
std::int64_t near_columns(const std::vector<SegmentPair>& pieces, const BranchPass& pass) {
  std::int64_t longest = 0;
  for (const SegmentPair& p : pieces) longest = std::max<std::int64_t>(longest, p.q_end - p.q_first);
  return std::max<std::int64_t>(8192, 8 * divide_up(longest, pass.rate));
}

// Returns the key of a plan: everything that the work items depend on.
Key schedule_key(const BranchPass& pass, const Pattern& pattern, const std::vector<Span>& queries,
                 const std::vector<Span>& keys, const BlockSelection& selection, Stationary owner, int rows,
                 std::int64_t group_columns, BlockOrder order) {
  Key key = {pass.segment,
             pass.rate,
             pass.finer,
             pass.window,
             pass.pool,
             pass.causal,
             pass.listed,
             pattern.sinks,
             pattern.from_row,
             pattern.blocks ? pattern.blocks->block() : 0,
             pattern.selects(),
             static_cast<std::int32_t>(owner),
             static_cast<std::int32_t>(order),
             rows,
             static_cast<std::int32_t>(group_columns)};
  add_key(key, queries);
  if (keys == queries)
    key.push_back(-1);
  else
    add_key(key, keys);
  key.insert(key.end(), selection.rows.begin(), selection.rows.end());
  return key;
}

}  // namespace

Output output_of(const Tensor& t, const Tensor& carry) {
  Output o{};
  if (t.dtype() == DType::f32)
    o.whole = heads_of<float>(t);
  else
    o.half = heads_of<__nv_bfloat16>(t);
  o.carry = heads_of<const float>(carry);
  return o;
}

SchedulePlan plan_schedule(const BranchPass& pass, const Pattern& pattern, const std::vector<Span>& queries,
                           const std::vector<Span>& keys, const BlockSelection& selection, Stationary owner,
                           std::int64_t heads, std::int64_t kv_heads, int rows, std::int64_t stream_bytes,
                           const ExecContext& ctx, BlockOrder order) {
  const std::int64_t group_columns = kSectionBytes / stream_bytes;
  const Key key = schedule_key(pass, pattern, queries, keys, selection, owner, rows, group_columns, order);
  const std::shared_ptr<const Plan> plan =
      ctx.stream.impl().resource<SchedulePlans>().find(key, ctx, [&](Tensor memory) {
        Plan made;
        made.selected.owner = owner;
        std::vector<SegmentPair> pieces = segment_pairs_of(pass, pattern, queries, keys, selection.rows);
        std::erase_if(pieces, [&](const SegmentPair& p) {
          return owner == Stationary::q ? p.q_first == p.q_end : p.k_first == p.k_end;
        });
        if (pass.listed) {
          for (const SegmentPair& p : pieces) {
            made.columns = std::max<std::int64_t>({made.columns, p.q_end, p.k_end});
            made.selected.add(p);
          }
          made.count = static_cast<std::int64_t>(pieces.size());
          made.memory = upload(pieces, std::move(memory), ctx);
          return made;
        }
        for (const SegmentPair& p : pieces)
          made.columns += divide_up(owner == Stationary::q ? p.k_end - p.k_first : p.q_end - p.q_first, pass.rate);
        made.columns = std::min(made.columns, group_columns);
        const auto list = owner == Stationary::q ? list_items<Stationary::q> : list_items<Stationary::kv>;
        std::vector<TileItem> items = list(pass, pieces, rows, group_columns, order);
        made.count = static_cast<std::int64_t>(items.size());
        const std::int64_t near = near_columns(pieces, pass);
        if (order == BlockOrder::ascending && near < group_columns) {
          const std::vector<TileItem> others = list(pass, pieces, rows, near, order);
          items.insert(items.end(), others.begin(), others.end());
          made.others = made.count;
        }
        made.memory = upload(items, std::move(memory), ctx);
        return made;
      });
  SchedulePlan to;
  to.keep = plan;
  to.work.heads = static_cast<int>(heads);
  if (plan->count == 0) return to;
  auto* memory = reinterpret_cast<unsigned char*>(plan->memory.raw());
  to.counter = reinterpret_cast<unsigned int*>(memory);
  if (pass.listed) {
    to.work.pieces = reinterpret_cast<const SegmentPair*>(memory + kHead);
    const bool own = selection.kept.defined();
    SelectedShape shape = plan->selected;
    shape.block = pattern.blocks->block(), shape.kv_heads = kv_heads;
    if (own) shape.kept = selection.kept.dim(2);
    to.lists = own ? selected_lists(selection, to.work.pieces, shape, ctx)
                   : lists_for(pattern, owner, kv_heads, plan->columns, stream_bytes * (heads / kv_heads), ctx);
    to.pieces = own ? 1 : plan->count;
    to.work.group = static_cast<int>(heads / kv_heads);
    to.work.halves = kListRows / rows;
    take_lists(to, own ? 1 : plan->count);
    return to;
  }
  to.work.items = reinterpret_cast<const TileItem*>(memory + kHead);
  to.work.count = static_cast<int>(plan->count);
  to.work.others = static_cast<int>(plan->others);
  const std::int64_t fits = group_columns / std::max<std::int64_t>(plan->columns, 1);
  to.work.section =
      static_cast<int>(std::clamp<std::int64_t>(std::max(fits, divide_up(kSectionBlocks, plan->count)), 1, heads));
  to.blocks = checked(plan->count * heads);
  return to;
}

SplitParts::SplitParts(const SchedulePlan& plan, const AttentionBackward& a, const ExecContext& ctx) {
  if (plan.lists.slots == 0) return;
  for (Tensor* t : {&dk, &dv}) *t = ctx.empty({plan.pieces, plan.lists.slots, kListRows, a.k.dim(2)});
}

void SplitParts::add_up(const SchedulePlan& plan, const AttentionBackward& a, const ExecContext& ctx) const {
  if (!dk.defined()) return;
  add_splits(plan.lists, plan.work.pieces, {dk, a.dk, a.carry_dk}, ctx);
  add_splits(plan.lists, plan.work.pieces, {dv, a.dv, a.carry_dv}, ctx);
}

void fill_outside(const Attention& a, const ExecContext& ctx) {
  for_rows_outside(a.queries, a.q.dim(0), [&](std::int64_t first, std::int64_t count) {
    fill(a.out, a.carry, first, count, ctx);
    if (!a.carry.defined()) fill_lse(a.lse, first, count, ctx);
  });
}

void fill_outside(const AttentionBackward& a, const ExecContext& ctx) {
  for_rows_outside(a.queries, a.q.dim(0),
                   [&](std::int64_t first, std::int64_t count) { fill(a.dq, a.carry_dq, first, count, ctx); });
  for_rows_outside(a.keys, a.k.dim(0), [&](std::int64_t first, std::int64_t count) {
    fill(a.dk, a.carry_dk, first, count, ctx);
    fill(a.dv, a.carry_dv, first, count, ctx);
  });
}

void fill_no_keys(const Tensor& lse, const ExecContext& ctx) { fill_lse(lse, 0, lse.dim(1), ctx); }

}  // namespace ring::cuda
