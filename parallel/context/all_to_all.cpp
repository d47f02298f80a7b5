// All rows of some heads to every rank, and the results back.

#include "parallel/context/cache.h"
#include "parallel/context/exchange.h"
#include "parallel/context/rows.h"

namespace ring {
namespace {

class AllToAll final : public ContextParallel {
 public:
  explicit AllToAll(Communicator& comm) : ContextParallel(comm) {}
  std::string_view schedule() const override { return "all_to_all"; }

  void forward(const Attention& args, const std::shared_ptr<const ContextShards>& shards, const Context& ctx) override {
    const ContextShards& s = check(args.k, *shards);
    const std::vector<Tensor> all = to_heads(s, {args.q, args.k, args.v}, ctx);
    const Tensor out = ctx.empty(all[0].shape(), args.out.dtype()), lse = ctx.empty({all[0].dim(1), all[0].dim(0)});
    attention_kernel({.q = all[0],
                      .k = all[1],
                      .v = all[2],
                      .out = out,
                      .lse = lse,
                      .queries = s.documents,
                      .keys = s.documents,
                      .scale = args.scale,
                      .pattern = pattern_of(shards, args),
                      .carry = {}},
                     ctx);
    to_rows(s, {out}, {args.out}, ctx);
    lse_to_rows(s, lse, args.lse, ctx);
  }

  void backward(const AttentionBackward& args, const std::shared_ptr<const ContextShards>& shards,
                const Context& ctx) override {
    const ContextShards& s = check(args.k, *shards);
    const std::vector<Tensor> all = to_heads(s, {args.q, args.k, args.v, args.out, args.dout}, ctx);
    AttentionBackward whole{.q = all[0], .k = all[1], .v = all[2], .out = all[3], .lse = {}, .dout = all[4]};
    whole.lse = lse_to_heads(s, args.lse, all[0].dim(0), ctx);
    whole.dq = ctx.empty(all[0].shape(), args.dq.dtype());
    whole.dk = ctx.empty(all[1].shape(), args.dk.dtype());
    whole.dv = ctx.empty(all[2].shape(), args.dv.dtype());
    whole.queries = whole.keys = s.documents;
    whole.scale = args.scale;
    whole.pattern = pattern_of(shards, args);
    attention_backward_kernel(whole, ctx);
    to_rows(s, {whole.dq, whole.dk, whole.dv}, {args.dq, args.dk, args.dv}, ctx);
  }

 private:
  const ContextShards& check(const Tensor& k, const ContextShards& s) const {
    check_shards(s);
    RING_CHECK(k.dim(1) % comm_.size() == 0, "context exchange by all_to_all: ", k.dim(1), " KV heads do not divide ",
               "among ", comm_.size(),
               " ranks. Set parallel.cp_schedule to ring or gather, or parallel.cp to a divisor");
    return s;
  }

  // For the heads of this rank.
  template <class Args>
  const Pattern& pattern_of(const std::shared_ptr<const ContextShards>& shards, const Args& args) {
    return patterns_.get(shards, args.pattern, args.k.dim(1), [&] {
      Pattern p = args.pattern;
      const auto heads = static_cast<std::int32_t>(args.k.dim(1) / comm_.size()), first = comm_.rank() * heads;
      p.shift += first;
      if (p.blocks) p.blocks = std::make_shared<BlockPattern>(p.blocks->of_heads(first, heads));
      return p;
    });
  }

  // Heads of rank r.
  Tensor part(const Tensor& t, int r) const {
    const std::int64_t heads = t.dim(1) / comm_.size();
    return t.narrow(1, r * heads, heads);
  }
  static std::int64_t width(const std::vector<Tensor>& tensors) {
    std::int64_t sum = 0;
    for (const Tensor& t : tensors) sum += t.dim(1);
    return sum;
  }
  // Tensors [n,H,D] of one type, side by side: rank r's heads of each go there, and all rows of ours come.
  std::vector<Tensor> to_heads(const ContextShards& s, const std::vector<Tensor>& tensors, const Context& ctx) {
    const std::int64_t heads = width(tensors) / comm_.size(), dim = tensors[0].dim(2);
    const DType type = tensors[0].dtype();
    std::vector<Transfer> sends, receives;
    for (int r = 0; r < comm_.size(); ++r) {
      const Tensor out = ctx.empty({tensors[0].dim(0), heads, dim}, type);
      std::int64_t at = 0;
      for (const Tensor& t : tensors) {
        const Tensor from = part(t, r);
        move_rows(out.narrow(1, at, from.dim(1)), from, {.count = from.dim(0)}, ctx.stream);
        at += from.dim(1);
      }
      sends.push_back({out, r});
      receives.push_back({ctx.empty({s.tokens(r), heads, dim}, type), r});
    }
    exchange(sends, receives, ctx).wait(ctx.stream);
    const Tensor all = ctx.empty({s.tokens(), heads, dim}, type);
    for (const Transfer& in : receives)
      for (const HeldRows& h : s.held[static_cast<std::size_t>(in.peer)])
        move_rows(all, in.tensor, {.to = h.global, .first = h.first, .count = h.count}, ctx.stream);
    std::vector<Tensor> parts;
    std::int64_t at = 0;
    for (const Tensor& t : tensors) {
      parts.push_back(all.narrow(1, at, t.dim(1) / comm_.size()));
      at += t.dim(1) / comm_.size();
    }
    return parts;
  }

  // The way back: results [N,H / ranks,D] of our heads into tensors [n,H,D] of our rows.
  void to_rows(const ContextShards& s, const std::vector<Tensor>& results, const std::vector<Tensor>& to,
               const Context& ctx) {
    const std::int64_t heads = width(results), dim = to[0].dim(2);
    const DType type = to[0].dtype();
    std::vector<Transfer> sends, receives;
    for (int r = 0; r < comm_.size(); ++r) {
      const Tensor out = ctx.empty({s.tokens(r), heads, dim}, type);
      std::int64_t at = 0;
      for (const Tensor& t : results) {
        const Tensor columns = out.narrow(1, at, t.dim(1));
        for (const HeldRows& h : s.held[static_cast<std::size_t>(r)])
          move_rows(columns, t, {.to = h.first, .first = h.global, .count = h.count}, ctx.stream);
        at += t.dim(1);
      }
      sends.push_back({out, r});
      receives.push_back({ctx.empty({to[0].dim(0), heads, dim}, type), r});
    }
    exchange(sends, receives, ctx).wait(ctx.stream);
    for (const Transfer& in : receives) {
      std::int64_t at = 0;
      for (const Tensor& t : to) {
        const Tensor columns = part(t, in.peer);
        move_rows(columns, in.tensor.narrow(1, at, columns.dim(1)), {.count = columns.dim(0)}, ctx.stream);
        at += columns.dim(1);
      }
    }
  }

  // [heads,n] seen as [heads,1,n]: heads are the rows that move.
  static Tensor by_head(const Tensor& lse) { return lse.view({lse.dim(0), 1, lse.dim(1)}); }
  static void move_tokens(const Tensor& dst, std::int64_t to, const Tensor& src, std::int64_t from, std::int64_t count,
                          const Context& ctx) {
    move_rows(by_head(dst).narrow(2, to, count), by_head(src).narrow(2, from, count), {.count = dst.dim(0)},
              ctx.stream);
  }

  void lse_to_rows(const ContextShards& s, const Tensor& lse, const Tensor& to, const Context& ctx) {
    const std::int64_t heads = lse.dim(0);
    std::vector<Transfer> sends, receives;
    for (int r = 0; r < comm_.size(); ++r) {
      const Tensor out = ctx.empty({heads, s.tokens(r)});
      for (const HeldRows& h : s.held[static_cast<std::size_t>(r)])
        move_tokens(out, h.first, lse, h.global, h.count, ctx);
      sends.push_back({out, r});
      receives.push_back({to.narrow(0, r * heads, heads), r});
    }
    exchange(sends, receives, ctx).wait(ctx.stream);
  }

  Tensor lse_to_heads(const ContextShards& s, const Tensor& lse, std::int64_t rows, const Context& ctx) {
    const std::int64_t heads = lse.dim(0) / comm_.size();
    std::vector<Transfer> sends, receives;
    for (int r = 0; r < comm_.size(); ++r) {
      sends.push_back({lse.narrow(0, r * heads, heads), r});
      receives.push_back({ctx.empty({heads, s.tokens(r)}), r});
    }
    exchange(sends, receives, ctx).wait(ctx.stream);
    const Tensor all = ctx.empty({heads, rows});
    for (const Transfer& in : receives)
      for (const HeldRows& h : s.held[static_cast<std::size_t>(in.peer)])
        move_tokens(all, h.global, in.tensor, h.first, h.count, ctx);
    return all;
  }

  PlanCache<Pattern> patterns_;
};

}  // namespace

std::unique_ptr<ContextParallel> make_all_to_all(Communicator& comm) { return std::make_unique<AllToAll>(comm); }

}  // namespace ring
