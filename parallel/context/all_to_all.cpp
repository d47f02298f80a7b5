#include "parallel/context/head_exchange.h"
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
  HeadTensors tensors;
  PendingTransfer transfer;
};

// The groups that each rank's heads are split into.
class HeadGroups {
 public:
  HeadGroups(std::int64_t kv_heads, const ContextShards& shards, ContextTransfers& ranks, const ExecContext& ctx)
      : s_(shards), ranks_(ranks), ctx_(ctx) {
    ranks.check_shards(shards);
    RING_CHECK(kv_heads % s_.ranks() == 0, "context exchange by all_to_all: ", kv_heads, " KV heads do not divide ",
               "among ", s_.ranks(), " ranks");
    while (kv_heads / s_.ranks() % groups_ != 0) --groups_;
  }

  // Calls compute() for each group in order, while the next group is in transfer.
  void run(const HeadTensors& inputs, const HeadTensors& results, std::int64_t kv_heads, const ComputeHeads& compute) {
    PendingTransfer back;
    Heads next = to_heads(inputs, 0);
    for (std::int64_t g = 0; g < groups_; ++g) {
      Heads all = std::move(next);
      all.transfer.wait(ctx_);
      if (g + 1 < groups_) next = to_heads(inputs, g + 1);
      const HeadTensors computed = empty_like(results);
      compute({first_head(kv_heads, s_.rank, g), heads_of(kv_heads)}, all.tensors, computed);
      PendingTransfer sent = to_rows(computed, results, g);
      start(sent);
      back.wait(ctx_);
      back = std::move(sent);
    }
    back.wait(ctx_);
  }

 private:
  // Return the number of heads in one group, and the first head of a group of rank r, out of `all` heads of all ranks.
  std::int64_t heads_of(std::int64_t all) const { return all / s_.ranks() / groups_; }
  std::int64_t first_head(std::int64_t all, int r, std::int64_t group) const {
    return (r * groups_ + group) * heads_of(all);
  }
  // Returns the heads of a group of rank r. dim: the dim of the heads in t.
  Tensor part(const Tensor& t, int dim, int r, std::int64_t group) const {
    return t.narrow(dim, first_head(t.dim(dim), r, group), heads_of(t.dim(dim)));
  }
  const std::vector<LocalRows>& rows_of_rank(int r) const { return s_.rows_by_rank[static_cast<std::size_t>(r)]; }
  template <class Fn>
  void for_others(const Fn& fn) const {
    for (int r = 0; r < s_.ranks(); ++r)
      if (r != s_.rank) fn(r);
  }

  void start(PendingTransfer& f) const {
    f.work = ranks_.exchange(f.sends, f.receives, ctx_);
    f.sends.clear(), f.receives.clear();
  }

  // Allocates tensors for all rows of a group, with the types of these tensors.
  HeadTensors empty_like(const HeadTensors& of) const {
    HeadTensors all;
    for (const Tensor& t : of.by_row)
      all.by_row.push_back(ctx_.empty({s_.tokens(), heads_of(t.dim(1)), t.dim(2)}, t.dtype()));
    for (const Tensor& t : of.by_head)
      all.by_head.push_back(t.defined() ? ctx_.empty({heads_of(t.dim(0)), s_.tokens()}) : Tensor{});
    return all;
  }

  // Starts sending each rank its heads of the group, packed side by side, and receiving all rows of this rank's own
  // heads, in the micro-batch's order.
  Heads to_heads(const HeadTensors& from, std::int64_t group) {
    std::int64_t heads = 0, at = 0;
    for (const Tensor& t : from.by_row) heads += heads_of(t.dim(1));
    const std::int64_t rows = from.by_row[0].dim(0), dim = from.by_row[0].dim(2);
    const Tensor all = ranks_.receive_buffer({s_.tokens(), heads, dim}, from.by_row[0].dtype(), ctx_);
    const auto lay = [&](const Tensor& to, int r, const RowMove& m) {
      std::int64_t place = 0;
      for (const Tensor& t : from.by_row) {
        const Tensor some = part(t, 1, r, group);
        move_rows(to.narrow(1, place, some.dim(1)), some, m, ctx_);
        place += some.dim(1);
      }
    };
    Heads h;
    for (const LocalRows& own : rows_of_rank(s_.rank))
      lay(all, s_.rank, {.to = own.global, .first = own.first, .count = own.count});
    for_others([&](int r) {
      const Tensor message = ctx_.empty({rows, heads, dim}, all.dtype());
      lay(message, r, {.count = rows});
      for (const LocalRows& own : rows_of_rank(s_.rank))
        h.transfer.sends.push_back({message.narrow(0, own.first, own.count), r});
      for (const LocalRows& theirs : rows_of_rank(r))
        h.transfer.receives.push_back({all.narrow(0, theirs.global, theirs.count), r});
    });
    for (const Tensor& t : from.by_row) {
      h.tensors.by_row.push_back(all.narrow(1, at, heads_of(t.dim(1))));
      at += heads_of(t.dim(1));
    }
    for (const Tensor& t : from.by_head)
      h.tensors.by_head.push_back(t.defined() ? by_head_to_heads(t, group, h.transfer) : Tensor{});
    start(h.transfer);
    return h;
  }

  // Prepares the transfer of a group's results into the tensors `to` of the ranks that hold the rows.
  PendingTransfer to_rows(const HeadTensors& results, const HeadTensors& to, std::int64_t group) {
    PendingTransfer f;
    for (std::size_t i = 0; i < to.by_row.size(); ++i) by_row_to_rows(results.by_row[i], to.by_row[i], group, f);
    for (std::size_t i = 0; i < to.by_head.size(); ++i)
      if (to.by_head[i].defined()) by_head_to_rows(results.by_head[i], to.by_head[i], group, f);
    return f;
  }
  void by_row_to_rows(const Tensor& result, const Tensor& to, std::int64_t group, PendingTransfer& f) {
    for (const LocalRows& own : rows_of_rank(s_.rank))
      move_rows(part(to, 1, s_.rank, group), result, {.to = own.first, .first = own.global, .count = own.count}, ctx_);
    for_others([&](int r) {
      for (const LocalRows& theirs : rows_of_rank(r))
        f.sends.push_back({result.narrow(0, theirs.global, theirs.count), r});
      const Tensor columns = part(to, 1, r, group);
      const Tensor message = ranks_.receive_buffer(columns.shape(), columns.dtype(), ctx_);
      for (const LocalRows& own : rows_of_rank(s_.rank))
        f.receives.push_back({message.narrow(0, own.first, own.count), r});
      f.copies.push_back({columns, message, {.count = columns.dim(0)}});
    });
  }

  // Returns the call that copies `count` tokens between tensors [heads,n]. Views them as [heads,1,n], so that each head
  // is a row of the copy.
  static CopyRows tokens(const Tensor& dst, std::int64_t to, const Tensor& src, std::int64_t from, std::int64_t count) {
    const auto view = [&](const Tensor& t, std::int64_t first) {
      return t.view({t.dim(0), 1, t.dim(1)}).narrow(2, first, count);
    };
    return {view(dst, to), view(src, from), {.count = dst.dim(0)}};
  }
  void by_head_to_rows(const Tensor& result, const Tensor& to, std::int64_t group, PendingTransfer& f) {
    for (const LocalRows& own : rows_of_rank(s_.rank))
      copy_rows_kernel(tokens(part(to, 0, s_.rank, group), own.first, result, own.global, own.count), ctx_);
    for_others([&](int r) {
      const Tensor out = ctx_.empty({result.dim(0), s_.tokens(r)});
      for (const LocalRows& theirs : rows_of_rank(r))
        copy_rows_kernel(tokens(out, theirs.first, result, theirs.global, theirs.count), ctx_);
      f.sends.push_back({out, r});
      const Tensor in = ranks_.receive_buffer({result.dim(0), to.dim(1)}, DType::f32, ctx_);
      f.receives.push_back({in, r});
      f.copies.push_back(tokens(part(to, 0, r, group), 0, in, 0, to.dim(1)));
    });
  }
  Tensor by_head_to_heads(const Tensor& t, std::int64_t group, PendingTransfer& f) {
    const Tensor whole = ctx_.empty({heads_of(t.dim(0)), s_.tokens()});
    for (const LocalRows& own : rows_of_rank(s_.rank))
      copy_rows_kernel(tokens(whole, own.global, part(t, 0, s_.rank, group), own.first, own.count), ctx_);
    for_others([&](int r) {
      f.sends.push_back({part(t, 0, r, group), r});
      const Tensor in = ranks_.receive_buffer({whole.dim(0), s_.tokens(r)}, DType::f32, ctx_);
      f.receives.push_back({in, r});
      for (const LocalRows& theirs : rows_of_rank(r))
        f.copies.push_back(tokens(whole, theirs.global, in, theirs.first, theirs.count));
    });
    return whole;
  }

  const ContextShards& s_;
  ContextTransfers& ranks_;
  const ExecContext& ctx_;
  std::int64_t groups_ = kMaxGroups;
};

}  // namespace

void exchange_heads(const HeadTensors& inputs, const HeadTensors& results, std::int64_t kv_heads,
                    const ContextShards& shards, ContextTransfers& ranks, const ComputeHeads& compute,
                    const ExecContext& ctx) {
  HeadGroups(kv_heads, shards, ranks, ctx).run(inputs, results, kv_heads, compute);
}

}  // namespace ring
