// Sends each rank all rows of some heads, and sends the results back. A rank's heads are split into groups: one group
// is in transfer while the previous one is computed. A rank that has all rows can also select blocks, make pools and
// call watches.

#include "kernels/attention/pools/pooled_attention.h"
#include "kernels/attention/selected/block_select.h"
#include "model/patterns.h"
#include "parallel/context/exchange.h"
#include "parallel/context/heads.h"
#include "parallel/context/rows.h"

namespace ring {
namespace {

constexpr std::int64_t kMaxGroups = 4;

// Messages in transfer, and the copies to make on arrival.
struct PendingTransfer {
  std::vector<Transfer> sends, receives;
  std::vector<CopyRows> copies;
  Work work;

  void wait(const ExecContext& ctx) {
    work.wait(ctx.stream);
    for (const CopyRows& c : copies) copy_rows_kernel(c, ctx);
    copies.clear();
  }
};

// All rows of one group of this rank's heads, as views of one tensor.
struct Heads {
  std::vector<Tensor> parts, by_head;  // parts [N,heads,D]; by_head [heads,N]
  PendingTransfer transfer;
};

class AllToAll final : public ContextParallel {
 public:
  explicit AllToAll(Communicator& comm) : ContextParallel(comm) {}
  std::string_view schedule() const override { return "all_to_all"; }

  BlockSelection forward(const PooledAttention& call, const std::shared_ptr<const ContextShards>& shards,
                         const ExecContext& ctx, const AttentionWatch& watch) override {
    const Attention& args = call.pairs;
    const PoolOperands& pools = call.pools;
    const ContextShards& s = check(args.k, *shards);
    BlockSelection selection = args.selection;
    PendingTransfer back;
    std::vector<Tensor> ours = {args.q, args.k, args.v};
    if (pools.scored.defined()) ours.push_back(pools.scored);
    for_groups(s, ours, defined({pools.gates}), ctx, [&](const Heads& all, std::int64_t group) {
      const Tensor &q = all.parts[0], out = ctx.empty(q.shape(), args.out.dtype()), lse = lse_of(q, ctx);
      Attention whole{.q = q,
                      .k = all.parts[1],
                      .v = all.parts[2],
                      .out = out,
                      .lse = lse,
                      .queries = s.documents,
                      .keys = s.documents,
                      .scale = args.scale,
                      .pattern = pattern_of(shards, args, group),
                      .dropout = dropout_of(args, group)};
      whole.selection = args.selection.bits.defined()
                            ? part(args.selection, whole.pattern, group, ctx)
                            : select_blocks(whole.pattern, q, whole.k, args.scale, s.documents, ctx);
      if (!args.selection.bits.defined()) add_part(selection, whole.selection, group, ctx);
      PooledAttention pooled{whole, {weights_of(pools.weights, args, group)}};
      if (pools.gates.defined()) pooled.pools.gates = all.by_head[0];
      if (pools.mean_gates.defined()) pooled.pools.mean_gates = lse_of(q, ctx);
      if (pools.scored.defined()) pooled.pools.scored = all.parts[3];
      pooled_attention(pooled, ctx);
      if (watch) watch(pooled, {group * heads_of(args.k.dim(1)), heads_of(args.k.dim(1))});
      PendingTransfer sent = to_rows(s, {out}, {args.out}, group, ctx);
      add_lse_to_rows(s, lse, args.lse, group, sent, ctx);
      if (pools.mean_gates.defined()) add_lse_to_rows(s, pooled.pools.mean_gates, pools.mean_gates, group, sent, ctx);
      start(sent, ctx);
      back.wait(ctx);
      back = std::move(sent);
    });
    back.wait(ctx);
    return selection;
  }

  void backward(const PooledAttentionBackward& call, const std::shared_ptr<const ContextShards>& shards,
                const ExecContext& ctx) override {
    const AttentionBackward& args = call.pairs;
    const PoolBackwardOperands& pools = call.pools;
    const ContextShards& s = check(args.k, *shards);
    PendingTransfer back;
    const std::vector<Tensor> ours = {args.q, args.k, args.v, args.out, args.dout};
    for_groups(s, ours, defined({args.lse, pools.gates}), ctx, [&](const Heads& all, std::int64_t group) {
      const auto& [q, k, v] = std::tie(all.parts[0], all.parts[1], all.parts[2]);
      AttentionBackward whole{.q = q, .k = k, .v = v, .out = all.parts[3], .lse = all.by_head[0], .dout = all.parts[4]};
      whole.dq = ctx.empty(q.shape(), args.dq.dtype());
      whole.dk = ctx.empty(k.shape(), args.dk.dtype());
      whole.dv = ctx.empty(v.shape(), args.dv.dtype());
      whole.queries = whole.keys = s.documents;
      whole.scale = args.scale;
      whole.pattern = pattern_of(shards, args, group);
      whole.dropout = dropout_of(args, group);
      whole.selection = part(args.selection, whole.pattern, group, ctx);
      PooledAttentionBackward pooled{whole,
                                     {weights_of(pools.weights, args, group), weights_of(pools.dweights, args, group)}};
      if (pools.gates.defined()) pooled.pools.gates = all.by_head[1], pooled.pools.dgates = lse_of(q, ctx);
      pooled_attention_backward(pooled, ctx);
      PendingTransfer sent = to_rows(s, {whole.dq, whole.dk, whole.dv}, {args.dq, args.dk, args.dv}, group, ctx);
      if (pools.gates.defined()) add_lse_to_rows(s, pooled.pools.dgates, pools.dgates, group, sent, ctx);
      start(sent, ctx);
      back.wait(ctx);
      back = std::move(sent);
    });
    back.wait(ctx);
  }

  SelectionPart selection_part(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern,
                               std::int64_t kv_heads) override {
    const std::int64_t count = kv_heads / comm_.size();
    const KvHeads own{comm_.rank() * count, count};
    return {own, own_patterns_.get(shards, pattern, kv_heads, own), shards->documents};
  }

 private:
  const ContextShards& check(const Tensor& k, const ContextShards& s) {
    check_shards(s);
    RING_CHECK(k.dim(1) % comm_.size() == 0, "context exchange by all_to_all: ", k.dim(1), " KV heads do not divide ",
               "among ", comm_.size(), " ranks");
    groups_ = kMaxGroups;
    while (k.dim(1) / comm_.size() % groups_ != 0) --groups_;
    return s;
  }

  // Calls compute(heads, group) for each group in order; the next group is in transfer meanwhile.
  template <class Compute>
  void for_groups(const ContextShards& s, const std::vector<Tensor>& tensors, const std::vector<Tensor>& by_head,
                  const ExecContext& ctx, const Compute& compute) {
    Heads next = to_heads(s, tensors, by_head, 0, ctx);
    for (std::int64_t g = 0; g < groups_; ++g) {
      Heads all = std::move(next);
      all.transfer.wait(ctx);
      if (g + 1 < groups_) next = to_heads(s, tensors, by_head, g + 1, ctx);
      compute(all, g);
    }
  }

  // Returns the pattern of one group of this rank's heads.
  template <class Args>
  const Pattern& pattern_of(const std::shared_ptr<const ContextShards>& shards, const Args& args, std::int64_t group) {
    const std::int64_t all = args.k.dim(1);
    return patterns_.get(shards, args.pattern, all, {first_head(all, comm_.rank(), group), heads_of(all)});
  }

  // Returns dropout settings that give the same masks as without context parallelism: this rank has all rows, in the
  // micro-batch's order.
  template <class Args>
  AttentionDropout dropout_of(const Args& args, std::int64_t group) const {
    AttentionDropout d = args.dropout;
    d.rows = {};
    d.first_head += first_head(args.q.dim(1), comm_.rank(), group);
    return d;
  }

  template <class Args>
  std::vector<PoolWeights> weights_of(const std::vector<PoolWeights>& all, const Args& args, std::int64_t group) const {
    const std::int64_t heads = args.k.dim(1);
    return of_heads(all, {first_head(heads, comm_.rank(), group), heads_of(heads)});
  }

  // Return the number of heads in one group, and the first head of a group of rank r, out of `all` heads of all ranks.
  std::int64_t heads_of(std::int64_t all) const { return all / comm_.size() / groups_; }
  std::int64_t first_head(std::int64_t all, int r, std::int64_t group) const {
    return (r * groups_ + group) * heads_of(all);
  }
  Tensor part(const Tensor& t, int r, std::int64_t group) const {
    return t.narrow(1, first_head(t.dim(1), r, group), heads_of(t.dim(1)));
  }
  Tensor lse_part(const Tensor& lse, int r, std::int64_t group) const {
    return lse.narrow(0, first_head(lse.dim(0), r, group), heads_of(lse.dim(0)));
  }
  // Returns a group's part of the selection made for this rank's heads.
  BlockSelection part(const BlockSelection& own, const Pattern& pattern, std::int64_t group, const ExecContext& ctx) {
    if (!own.bits.defined()) return {};
    const std::int64_t heads = own.bits.dim(1) / groups_;
    return of_heads(own, {group * heads, heads}, pattern, ctx);
  }
  // Copies a group's selection into the selection of all heads of this rank. Groups that do not select leave zeros.
  void add_part(BlockSelection& own, const BlockSelection& some, std::int64_t group, const ExecContext& ctx) {
    if (groups_ == 1) own = some;
    if (groups_ == 1 || !some.bits.defined()) return;
    const std::int64_t rows = some.bits.dim(0), heads = some.bits.dim(1), words = some.bits.dim(2);
    if (!own.bits.defined()) own.bits = ctx.zeros({rows, heads * groups_, words}, DType::i32);
    move_rows(own.bits.narrow(1, group * heads, heads), some.bits, {.count = rows}, ctx);
  }
  static Tensor lse_of(const Tensor& q, const ExecContext& ctx) { return ctx.empty({q.dim(1), q.dim(0)}); }
  static const std::vector<LocalRows>& rows_of_rank(const ContextShards& s, int r) {
    return s.rows_by_rank[static_cast<std::size_t>(r)];
  }
  static std::vector<Tensor> defined(std::vector<Tensor> tensors) {
    std::erase_if(tensors, [](const Tensor& t) { return !t.defined(); });
    return tensors;
  }
  template <class Fn>
  void for_others(const Fn& fn) const {
    for (int r = 0; r < comm_.size(); ++r)
      if (r != comm_.rank()) fn(r);
  }

  void start(PendingTransfer& f, const ExecContext& ctx) {
    f.work = exchange(f.sends, f.receives, ctx);
    f.sends.clear(), f.receives.clear();
  }

  // Starts sending each rank its heads of the group, from tensors [n,H,D] of one type, packed side by side. All rows of
  // this rank's heads arrive in the order of the micro-batch.
  Heads to_heads(const ContextShards& s, const std::vector<Tensor>& tensors, const std::vector<Tensor>& by_head,
                 std::int64_t group, const ExecContext& ctx) {
    std::int64_t heads = 0;
    for (const Tensor& t : tensors) heads += heads_of(t.dim(1));
    const std::int64_t rows = tensors[0].dim(0), dim = tensors[0].dim(2);
    const Tensor all = receive_buffer({s.tokens(), heads, dim}, tensors[0].dtype(), ctx);
    const auto lay = [&](const Tensor& to, int r, const RowMove& m) {
      std::int64_t at = 0;
      for (const Tensor& t : tensors) {
        const Tensor from = part(t, r, group);
        move_rows(to.narrow(1, at, from.dim(1)), from, m, ctx);
        at += from.dim(1);
      }
    };
    Heads h;
    for (const LocalRows& own : rows_of_rank(s, comm_.rank()))
      lay(all, comm_.rank(), {.to = own.global, .first = own.first, .count = own.count});
    for_others([&](int r) {
      const Tensor message = ctx.empty({rows, heads, dim}, all.dtype());
      lay(message, r, {.count = rows});
      for (const LocalRows& own : rows_of_rank(s, comm_.rank()))
        h.transfer.sends.push_back({message.narrow(0, own.first, own.count), r});
      for (const LocalRows& theirs : rows_of_rank(s, r))
        h.transfer.receives.push_back({all.narrow(0, theirs.global, theirs.count), r});
    });
    std::int64_t at = 0;
    for (const Tensor& t : tensors) {
      h.parts.push_back(all.narrow(1, at, heads_of(t.dim(1))));
      at += heads_of(t.dim(1));
    }
    for (const Tensor& t : by_head) add_lse_to_heads(s, t, group, h, ctx);
    start(h.transfer, ctx);
    return h;
  }

  // Prepares the transfer of a group's results [N,H,D], for this rank's heads, into the tensors `to` [n,H,D] of the
  // ranks that hold the rows.
  PendingTransfer to_rows(const ContextShards& s, const std::vector<Tensor>& results, const std::vector<Tensor>& to,
                          std::int64_t group, const ExecContext& ctx) {
    PendingTransfer f;
    for (std::size_t i = 0; i < results.size(); ++i) {
      for (const LocalRows& own : rows_of_rank(s, comm_.rank()))
        move_rows(part(to[i], comm_.rank(), group), results[i],
                  {.to = own.first, .first = own.global, .count = own.count}, ctx);
      for_others([&](int r) {
        for (const LocalRows& theirs : rows_of_rank(s, r))
          f.sends.push_back({results[i].narrow(0, theirs.global, theirs.count), r});
        const Tensor columns = part(to[i], r, group), message = receive_buffer(columns.shape(), columns.dtype(), ctx);
        for (const LocalRows& own : rows_of_rank(s, comm_.rank()))
          f.receives.push_back({message.narrow(0, own.first, own.count), r});
        f.copies.push_back({columns, message, {.count = columns.dim(0)}});
      });
    }
    return f;
  }

  // Returns the call that copies `count` tokens between tensors [heads,n]. Views them as [heads,1,n], so that each head
  // is a row of the copy.
  static CopyRows tokens(const Tensor& dst, std::int64_t to, const Tensor& src, std::int64_t from, std::int64_t count) {
    const auto view = [&](const Tensor& t, std::int64_t first) {
      return t.view({t.dim(0), 1, t.dim(1)}).narrow(2, first, count);
    };
    return {view(dst, to), view(src, from), {.count = dst.dim(0)}};
  }

  // Like to_rows(), for log-sum-exps [heads,N] and `to` [heads,n]; adds to the transfer `f`.
  void add_lse_to_rows(const ContextShards& s, const Tensor& lse, const Tensor& to, std::int64_t group,
                       PendingTransfer& f, const ExecContext& ctx) {
    for (const LocalRows& own : rows_of_rank(s, comm_.rank()))
      copy_rows_kernel(tokens(lse_part(to, comm_.rank(), group), own.first, lse, own.global, own.count), ctx);
    for_others([&](int r) {
      const Tensor out = ctx.empty({lse.dim(0), s.tokens(r)});
      for (const LocalRows& theirs : rows_of_rank(s, r))
        copy_rows_kernel(tokens(out, theirs.first, lse, theirs.global, theirs.count), ctx);
      f.sends.push_back({out, r});
      const Tensor in = receive_buffer({lse.dim(0), to.dim(1)}, DType::f32, ctx);
      f.receives.push_back({in, r});
      f.copies.push_back(tokens(lse_part(to, r, group), 0, in, 0, to.dim(1)));
    });
  }

  void add_lse_to_heads(const ContextShards& s, const Tensor& lse, std::int64_t group, Heads& h,
                        const ExecContext& ctx) {
    const Tensor whole = lse_of(h.parts[0], ctx);
    h.by_head.push_back(whole);
    for (const LocalRows& own : rows_of_rank(s, comm_.rank()))
      copy_rows_kernel(tokens(whole, own.global, lse_part(lse, comm_.rank(), group), own.first, own.count), ctx);
    for_others([&](int r) {
      h.transfer.sends.push_back({lse_part(lse, r, group), r});
      const Tensor in = receive_buffer({whole.dim(0), s.tokens(r)}, DType::f32, ctx);
      h.transfer.receives.push_back({in, r});
      for (const LocalRows& theirs : rows_of_rank(s, r))
        h.transfer.copies.push_back(tokens(whole, theirs.global, in, theirs.first, theirs.count));
    });
  }

  std::int64_t groups_ = 1;               // number of groups that each rank's heads are split into
  HeadPatterns patterns_, own_patterns_;  // patterns of groups; patterns of all heads of this rank
};

}  // namespace

std::unique_ptr<ContextParallel> make_all_to_all(Communicator& comm) { return std::make_unique<AllToAll>(comm); }

}  // namespace ring
