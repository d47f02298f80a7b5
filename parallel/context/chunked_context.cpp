#include "parallel/context/chunked_context.h"

#include <map>

#include "autograd/selected/block_means.h"
#include "parallel/context/accumulators.h"
#include "parallel/context/chunk_selection.h"
#include "parallel/context/head_exchange.h"
#include "parallel/context/heads.h"
#include "parallel/context/rows.h"
#include "parallel/context/state_chain.h"

namespace ring {
namespace {

[[noreturn]] void fail_without_rows(const char* what) {
  fail("train.sequence_chunk: ", what, " needs rows of the whole sequence, which is computed in chunks. Set ",
       "train.sequence_chunk: 0");
}

void check_call(const Pattern& pattern, const AttentionWatch& watch) {
  if (!pattern.pools.empty()) fail_without_rows("attention that pools keys");
  if (watch && !pattern.selects()) fail_without_rows("a statistic of attention");
}

// Returns the shards in which chunks take the place of ranks.
const std::shared_ptr<const ContextShards>& chunks_of(const std::shared_ptr<const ContextShards>& shards) {
  return shards->chunks ? shards->chunks : shards;
}

}  // namespace

// The attention of one layer over all rows of a chunk, for some of the KV heads.
class ChunkedContext::Heads {
 public:
  Heads(ChunkedContext& all, std::int64_t layer, KvHeads heads)
      : all_(all), store_(all.store_), layer_(layer), heads_(heads) {}

  // Returns the pattern of these heads. The same object is returned until `of_all` has different pairs.
  const Pattern& pattern(const Pattern& of_all) {
    if (!of_all_ || !same_pairs(*of_all_, of_all)) of_all_ = of_all, pattern_ = of_heads(of_all, heads_);
    return pattern_;
  }

  // Returns the selection for these heads, as ContextExchange::forward() does. all: the part of the selection that this
  // process makes.
  BlockSelection forward(Attention args, const SelectionPart& all, const ContextShards& chunks,
                         const AttentionWatch& watch, const ExecContext& ctx) {
    const int chunk = chunks.rank;
    means_.select(args, all, chunks, ctx);
    const Plans& plans = all_.plans(args.pattern, args.k.dim(1), args.dropout.rate > 0);
    if (plans.split) {
      args.carry = no_result(args, ctx);
      long_branches_.attend(*plans.split, args, chunk, all_.keep_ != Keep::for_forward, args.carry, ctx);
      args.pattern = plans.split->within_chunks;
    }
    const ChunkPlan& plan = plans.chunks[static_cast<std::size_t>(chunk)];
    const std::vector<ChunkStore::Parts> parts = chosen_parts(plan, args, chunks, ctx);
    ForwardAccumulator accumulator(args, plan.calls(), ctx);
    for (std::size_t i = 0; i < plan.earlier.size(); ++i) {
      const KvPair keys = earlier_keys(plan, i, parts, args.k, ctx);
      accumulator.accumulate(plan.earlier[i].need.calls, keys.k, keys.v);
    }
    accumulator.accumulate(plan.own, args.k, args.v);
    if (watch) show(args, counted_from(all.heads, heads_), plan, parts, watch, ctx);
    for (std::size_t m = 0; m < plan.messages.size() && all_.keep_ != Keep::nothing; ++m)
      store_.put(key_of(chunk, m), pack(plan.messages[m], args.k, args.v, args.k.dtype(), ctx));
    return args.selection;
  }

  void backward(AttentionBackward args, const ContextShards& chunks, const ExecContext& ctx) {
    const int chunk = chunks.rank;
    const Plans& plans = all_.plans(args.pattern, args.k.dim(1), args.dropout.rate > 0);
    const ChunkPlan& plan = plans.chunks[static_cast<std::size_t>(chunk)];
    KvPair own = gradients_of_later_chunks(plan, chunk, args.k, ctx);
    if (plans.split) {
      own = no_gradients(args.k, ctx);
      args.carry_dq = ctx.zeros(args.q.shape());
      long_branches_.attend_backward(*plans.split, args, chunk, args.carry_dq, own, ctx);
      args.pattern = plans.split->within_chunks;
    }
    const std::vector<ChunkStore::Parts> parts = chosen_parts(plan, args, chunks, ctx);
    BackwardAccumulator accumulator(args, plan.calls(), ctx);
    for (std::size_t i = 0; i < plan.earlier.size(); ++i) {
      const EarlierKeys& e = plan.earlier[i];
      const KvPair keys = earlier_keys(plan, i, parts, args.k, ctx);
      store_.prefetch_gradients(key_of(e), parts[i]);
      KvPair gradients;
      accumulator.accumulate(e.need.calls, keys.k, keys.v, gradients);
      store_.add_gradients(key_of(e), pack_gradients(e.need, gradients, DType::f32, ctx), parts[i]);
    }
    accumulator.accumulate(plan.own, args.k, args.v, own);
    if (!own.k.defined()) own = no_gradients(args.k, ctx);
    copy_rounded(args.dk, own.k, ctx);
    copy_rounded(args.dv, own.v, ctx);
  }

  void clear() { long_branches_.clear(), means_.clear(); }

 private:
  // Returns the result of attention over an empty set of keys, in f32, into which other results are merged. Sets
  // args.lse to -inf.
  static Tensor no_result(Attention args, const ExecContext& ctx) {
    if (args.out.dtype() != DType::f32) args.out = ctx.empty(args.out.shape());
    run_call(args, {}, ctx);
    return args.out;
  }

  ChunkStore::Key key_of(int chunk, std::size_t message) const { return {layer_, heads_.first, chunk, message}; }
  ChunkStore::Key key_of(const EarlierKeys& e) const { return key_of(e.chunk, e.message); }

  // Returns the parts of each earlier chunk's message that this chunk's queries selected. The host waits for the
  // selection. If the store is on the device, nothing is copied: returns whole messages without waiting.
  template <class Args>
  std::vector<ChunkStore::Parts> chosen_parts(const ChunkPlan& plan, const Args& args, const ContextShards& shards,
                                              const ExecContext& ctx) const {
    std::vector<ChunkStore::Parts> parts(plan.earlier.size());
    if (parts.empty() || !args.selection.kept.defined() || !store_.on_host()) return parts;
    const ChosenBlocks chosen(args.selection, args.pattern, shards, ctx.stream);
    for (std::size_t i = 0; i < parts.size(); ++i)
      parts[i] = chosen.parts_of(plan.earlier[i].need, args.pattern, args.k.dim(1) * args.k.dim(2));
    return parts;
  }

  // Returns the keys and values of an earlier chunk, and starts to fetch the keys and values of the next chunk.
  KvPair earlier_keys(const ChunkPlan& plan, std::size_t i, const std::vector<ChunkStore::Parts>& parts,
                      const Tensor& like, const ExecContext& ctx) {
    const EarlierKeys& e = plan.earlier[i];
    const KvPair keys = unpack(e.need, store_.keys(key_of(e), parts[i]), like, ctx);
    if (i + 1 < plan.earlier.size()) store_.prefetch_keys(key_of(plan.earlier[i + 1]), parts[i + 1]);
    return keys;
  }

  // Calls the watch with the finished call and the keys of one chunk at a time. heads: as in AttentionWatch.
  void show(const Attention& args, KvHeads heads, const ChunkPlan& plan, const std::vector<ChunkStore::Parts>& parts,
            const AttentionWatch& watch, const ExecContext& ctx) {
    const auto show_calls = [&](const std::vector<AttentionCall>& calls, const Tensor& keys) {
      PooledAttention watched{args, {}};
      Attention& a = watched.pairs;
      a.k = keys, a.v = a.out = a.carry = {};
      for (const AttentionCall& call : calls) {
        a.queries = call.queries, a.keys = call.keys, a.selection.rows = call.block_rows;
        watch(watched, heads);
      }
    };
    for (std::size_t i = 0; i < plan.earlier.size(); ++i)
      show_calls(plan.earlier[i].need.calls, earlier_keys(plan, i, parts, args.k, ctx).k);
    show_calls(plan.own, args.k);
  }

  // Returns the gradients that later chunks contributed to a chunk's keys and values; undefined if there are none.
  // Drops these keys, values and gradients from the store, because no later chunk will read them again.
  KvPair gradients_of_later_chunks(const ChunkPlan& plan, int chunk, const Tensor& keys, const ExecContext& ctx) {
    KvPair own;
    for (std::size_t m = 0; m < plan.messages.size(); ++m) {
      const ChunkStore::Key key = key_of(chunk, m);
      if (const Tensor message = store_.gradients(key); message.defined()) {
        if (!own.k.defined()) own = no_gradients(keys, ctx);
        add_gradients(plan.messages[m], message, own, ctx);
      }
      store_.drop(key);
    }
    return own;
  }

  ChunkedContext& all_;
  ChunkStore& store_;
  const std::int64_t layer_;
  const KvHeads heads_;
  std::optional<Pattern> of_all_;  // the pattern of all heads; pattern_ is its part for these heads
  Pattern pattern_;
  LongBranches long_branches_{store_, layer_, heads_.first};
  ChunkMeans means_;
};

// The attention of one layer: over all KV heads, or, if ranks share the chunk, over this rank's heads, in groups.
class ChunkedContext::Layer final : public ContextExchange {
 public:
  Layer(ChunkedContext& all, std::int64_t layer)
      : all_(all), layer_(layer), states_(all.ranks_ ? &*all.ranks_ : nullptr, &all.store_, layer) {}

  BlockSelection forward(const PooledAttention& call, const std::shared_ptr<const ContextShards>& shards,
                         const ExecContext& ctx, const AttentionWatch& watch) override {
    const Attention& a = call.pairs;
    check_call(a.pattern, watch);
    const ContextShards& chunks = *chunks_of(shards);
    const SelectionPart part = all_.part_of_heads(shards, a.pattern, a.k.dim(1));
    if (!all_.ranks_) return heads(part.heads).forward(a, part, chunks, watch, ctx);
    BlockSelection selection = a.selection;
    const auto compute = [&](KvHeads some, const HeadTensors& in, const HeadTensors& results) {
      Attention args;
      set_up(args, a, some, in, *shards, ctx);
      args.out = results.by_row[0], args.lse = results.by_head[0];
      const BlockSelection made = heads(some).forward(args, part, chunks, watch, ctx);
      if (!a.selection.kept.defined()) add_heads(selection, part.heads, made, some, ctx);
    };
    exchange_heads({{a.q, a.k, a.v}, {}}, {{a.out}, {a.lse}}, a.k.dim(1), *shards, *all_.ranks_, compute, ctx);
    return selection;
  }

  void backward(const PooledAttentionBackward& call, const std::shared_ptr<const ContextShards>& shards,
                const ExecContext& ctx) override {
    const AttentionBackward& a = call.pairs;
    const ContextShards& chunks = *chunks_of(shards);
    if (!all_.ranks_) return heads({0, a.k.dim(1)}).backward(a, chunks, ctx);
    const auto compute = [&](KvHeads some, const HeadTensors& in, const HeadTensors& results) {
      AttentionBackward args;
      set_up(args, a, some, in, *shards, ctx);
      args.out = in.by_row[3], args.dout = in.by_row[4], args.lse = in.by_head[0];
      args.dq = results.by_row[0], args.dk = results.by_row[1], args.dv = results.by_row[2];
      heads(some).backward(args, chunks, ctx);
    };
    exchange_heads({{a.q, a.k, a.v, a.out, a.dout}, {a.lse}}, {{a.dq, a.dk, a.dv}, {}}, a.k.dim(1), *shards,
                   *all_.ranks_, compute, ctx);
  }

  void clear() {
    for (auto& [first, some] : heads_) some.clear();
    rows_.clear();
  }
  Tensor join_earlier_blocks(const Tensor& own, const ChunkBlocks& chunk, const ExecContext& ctx) override {
    return rows_.join(own, chunk, ctx);
  }
  Tensor join_earlier_blocks_backward(const Tensor& gradient, const ChunkBlocks& chunk,
                                      const ExecContext& ctx) override {
    return rows_.join_backward(gradient, chunk, ctx);
  }

  Tensor all_rows(const Tensor& t, const ContextShards& shards, const ExecContext& ctx) override {
    return all_.all_rows(t, shards, ctx);
  }
  void sum(const Tensor& t, const ExecContext& ctx) override { all_.sum(t, ctx); }
  StateChain& states() override {
    states_.set_keeps(all_.keep_ != Keep::nothing);
    return states_;
  }

 private:
  Heads& heads(KvHeads some) { return heads_.try_emplace(some.first, all_, layer_, some).first->second; }

  // Sets the arguments that the forward and the backward of a group share. The rows of the call begin with the chunk's
  // first row, not with this rank's, so dropout counts rows from there. A given selection is for this rank's heads.
  template <class Args>
  void set_up(Args& args, const Args& all, KvHeads some, const HeadTensors& in, const ContextShards& shards,
              const ExecContext& ctx) {
    set_heads(args, all, some, in);
    args.pattern = heads(some).pattern(all.pattern);
    if (all.selection.kept.defined())
      args.selection =
          of_heads(all.selection, counted_from(all_.ranks_->own_heads(all.k.dim(1)), some), args.pattern, ctx);
    args.dropout.first_row -= shards.rows_by_rank[static_cast<std::size_t>(shards.rank)].front().global;
  }

  ChunkedContext& all_;
  const std::int64_t layer_;
  std::map<std::int64_t, Heads> heads_;  // by the first head
  JoinedBlocks rows_;
  DocumentStates states_;
};

ChunkedContext::ChunkedContext(const ExecContext& ctx, std::size_t host_limit, Communicator* ranks)
    : store_(ctx, host_limit) {
  if (ranks) ranks_.emplace(*ranks);
}
ChunkedContext::~ChunkedContext() = default;

ChunkedContext::Chunk::Chunk(ChunkedContext* context, const std::shared_ptr<const ContextShards>& shards, Keep keep)
    : context_(context) {
  if (!context_) return;
  if (keep != Keep::nothing && chunks_of(shards)->rank == 0) context_->begin(chunks_of(shards));
  context_->keep_ = keep;
}

ChunkedContext::Chunk::~Chunk() {
  if (!context_) return;
  context_->keep_ = Keep::nothing;
  try {
    context_->store_.free_stored();
  } catch (const Error&) {  // the device has failed; its next use reports the error
  }
}

void ChunkedContext::clear() {
  for (const auto& layer : layers_) layer->clear();
  store_.clear();
}

void ChunkedContext::begin(const std::shared_ptr<const ContextShards>& shards) {
  clear();
  if (!shards_ || shards_->documents != shards->documents || shards_->rows_by_rank != shards->rows_by_rank)
    plans_.clear();
  shards_ = shards;
}

const ChunkedContext::Plans& ChunkedContext::plans(const Pattern& pattern, std::int64_t kv_heads, bool dropout) {
  const auto positions = dropout ? SpanPositions::in_row : SpanPositions::in_order;
  for (const auto& p : plans_)
    if (p->kv_heads == kv_heads && p->positions == positions && same_pairs(p->pattern, pattern)) return *p;
  // Dropout masks depend on positions in the sequence, and gathered samples no longer have them.
  const std::optional<SplitPattern> split = dropout ? std::nullopt : split_pattern(pattern, *shards_);
  const Pattern& of_calls = split ? split->within_chunks : pattern;
  plans_.push_back(
      std::make_unique<Plans>(Plans{pattern, kv_heads, positions, split,
                                    make_chunk_plans(*shards_, of_calls, kv_heads, positions, split.has_value())}));
  return *plans_.back();
}

ContextExchange& ChunkedContext::of_layer(std::int64_t layer) {
  while (static_cast<std::int64_t>(layers_.size()) <= layer)
    layers_.push_back(std::make_unique<Layer>(*this, static_cast<std::int64_t>(layers_.size())));
  return *layers_[static_cast<std::size_t>(layer)];
}

BlockSelection ChunkedContext::forward(const PooledAttention&, const std::shared_ptr<const ContextShards>&,
                                       const ExecContext&, const AttentionWatch&) {
  fail_without_rows("attention outside of a layer");
}
void ChunkedContext::backward(const PooledAttentionBackward&, const std::shared_ptr<const ContextShards>&,
                              const ExecContext&) {
  fail_without_rows("attention outside of a layer");
}
Tensor ChunkedContext::all_rows(const Tensor&, const ContextShards&, const ExecContext&) {
  fail_without_rows("this model");
}
void ChunkedContext::sum(const Tensor& t, const ExecContext& ctx) {
  if (!ranks_) fail_without_rows("this model");
  ranks_->all_reduce(t, ctx);
}

SelectionPart ChunkedContext::selection_part(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern,
                                             std::int64_t kv_heads) {
  SelectionPart part = part_of_heads(shards, pattern, kv_heads);
  if (pattern.blocks) part.chunk = chunk_blocks(*chunks_of(shards), pattern);
  return part;
}

SelectionPart ChunkedContext::part_of_heads(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern,
                                            std::int64_t kv_heads) const {
  SelectionPart part{{0, kv_heads}, pattern, chunks_of(shards)->documents, true};
  if (ranks_) part.heads = ranks_->own_heads(kv_heads), part.pattern = of_heads(pattern, part.heads);
  return part;
}

}  // namespace ring
