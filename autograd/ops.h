#pragma once
// Differentiable ops, one declaration each; forward call and backward rule stand together in autograd/ops/<op>.cpp.
// N = tokens on this device, C = channels. Shapes that do not fit are an Error that names the op and both shapes.
// Values and their gradients are f32 or bf16, as the inputs are.

#include <cstdint>

#include "autograd/context_exchange.h"
#include "autograd/tape.h"
#include "kernels/activation.h"
#include "kernels/attention/selection.h"

namespace ring {

// Which rows belong together: document b holds rows offsets[b] .. offsets[b+1]; positions [N] i32 restart in each.
// Documents may be packed into rows that start at rows[0], rows[1], ..; no rows: each document is one. With lengths,
// document b has lengths[b] of its rows, and the others are padding. With shards, the rows are those that this rank
// holds of a micro-batch, and attention reaches the others' through Run::context.
struct Sequences {
  std::vector<std::int32_t> offsets;
  Tensor positions;
  Tensor inv_freq;  // [documents, D/2] f32, where each rotates by frequencies of its own; there is no backward then
  std::vector<std::int32_t> rows, lengths;
  std::shared_ptr<const ContextShards> shards;
  // Set: where the documents lie in the step that is queued, also once a recording of an earlier one is launched again.
  std::shared_ptr<const std::vector<Span>> spans_now;
  std::int64_t tokens() const { return offsets.empty() ? 0 : offsets.back(); }
  std::vector<Span> spans() const;  // not of shards
  // The same, for what is queued now and in a recording. Error: in the next step they may be others.
  std::vector<Span> spans_on(const Stream&) const;
  Sequences without_positions() const;  // nor frequencies
  static Sequences uniform(std::int64_t batch, std::int64_t length, const ExecContext&,
                           std::int64_t first_position = 0);
  // Packed rows of `row` tokens each: document b has lengths[b] tokens from `starts[b]` on.
  static Sequences packed(std::vector<std::int32_t> starts, std::vector<std::int32_t> lengths, std::int64_t row,
                          const Tensor& positions);
  // positions: of this rank's rows.
  static Sequences sharded(std::shared_ptr<const ContextShards>, const Tensor& positions);
};

// Tensor parallelism (Shoeybi et al. 2019, section 3) with sequence parallelism (Korthikanti et al. 2022, section 4.2):
// between sublayers the processes of run.tp hold the same number of neighbouring rows each, in rank order; inside of
// one they hold all N rows and a share of the channels. Whoever has no run.tp of more than one process has all of both.
bool sliced(const Run&);

// What this process selects blocks for while it attends with so many KV heads: all of them, or, where sequences are
// cut, what the run's exchange leaves to it. Error: it is not known before it attends.
SelectionPart selection_part(const Run&, const Sequences&, const Pattern&, std::int64_t kv_heads);

// x [N/tp,C], this process's rows -> [N,C], all of them; the gradient is summed over the processes and cut again. What
// needs the result in the backward gathers it anew: only the own rows are kept.
Var gather_rows(Run&, const Var& x);

// x [N,C], whose sum over the processes is the value -> this process's rows of that sum, plus b [C] or none, plus
// residual [N/tp,C] or none. The gradient is gathered. Error: N does not divide.
Var scatter_sum(Run&, const Var& x, const Var& b = {}, const Var& residual = {});

// linear(gather_rows(x), w, b, residual) and scatter_sum(linear(x, w), b, residual) whose rows travel while others are
// multiplied. In the backward, too: gradients are sent while weights' gradients are computed, and what is gathered
// again arrives meanwhile.
Var gather_linear(Run&, const Var& x, const Var& w, const Var& b = {}, const Var& residual = {});
Var linear_scatter(Run&, const Var& x, const Var& w, const Var& b = {}, const Var& residual = {});

// x [N,C/tp], this process's channels of all rows -> [N/tp,C], all channels of its rows, for what needs whole rows
// inside of a sublayer; and the way back. Each is the other's gradient. The run must be sliced; tp divides N, or C.
Var swap_channels_for_rows(Run&, const Var& x);
Var swap_rows_for_channels(Run&, const Var& x);

// This process's rows of what all processes hold whole: t [N,..] -> [N/tp,..], the same bytes.
Tensor own_rows(const Run&, const Tensor& t);

// f on chunks of rows of x [N,C], one after the other: each at most `rows`, over all processes of run.tp together; 0:
// all at once. f takes a chunk to [n,M] and treats every row by itself -> [N,M], which is kept. What f computes is
// recorded chunk by chunk: in a run that recomputes, no more than one chunk of it exists at a time. Gradients of
// parameters are added up from the last chunk to the first. x is no parameter.
using RowsFn = std::function<Var(Run&, const Var& chunk)>;
Var over_chunks(Run&, const Var& x, std::int64_t rows, const RowsFn& f);

// f(x) [N,C], of which nothing but x is kept: the backward runs f again, recording this time, and then backward. What
// f records, at least one step, may compute again for its part. `run`, and what f refers to, live until then.
using BlocksFn = std::function<Var(Run&, const Var& x)>;
Var computed_again(Run&, const Var& x, const BlocksFn& f);

// x [N,K], w [M,K], b [M] or none, residual [N,M] or none -> x w^T + b + residual [N,M].
Var linear(Run&, const Var& x, const Var& w, const Var& b = {}, const Var& residual = {});

// ids [N] i32, table [rows,C] -> [N,C].
Var embedding(Run&, const Tensor& ids, const Var& table);

// The same with a table whose rows are cut evenly over run.tp, [rows/tp,C] -> this process's rows [N/tp,C].
Var sliced_embedding(Run&, const Tensor& ids, const Var& table);

// a + b, one shape.
Var add(Run&, const Var& a, const Var& b);

// residual + dropout(x); residual may be none. `site` addresses the mask together with run.seed, run.step and the
// global element index; rate 0 costs nothing more than add().
Var dropout_add(Run&, const Var& x, const Var& residual, float rate, std::uint32_t site);

// Over the last dim of x [N,C] or [N,H,C]; w, b [C].
Var rms_norm(Run&, const Var& x, const Var& w, float eps);
Var layer_norm(Run&, const Var& x, const Var& w, const Var& b, float eps);  // b may be none

Var activate(Run&, const Var& x, Activation kind);
Var swiglu(Run&, const Var& gate_up);  // [N,2F] -> [N,F]

// gelu_tanh(x w1^T + b1) w2^T + b2 + residual [N,M], with the activation inside of the products: x [N,K], w1 [F,K],
// b1 [F] or none, w2 [M,F], b2 [M] or none, residual [N,M] or none.
Var mlp_gelu_tanh(Run&, const Var& x, const Var& w1, const Var& b1, const Var& w2, const Var& b2, const Var& residual);

// x [N,H,D], rotated by its sequences' positions; inv_freq [D/2] f32.
Var rope(Run&, const Var& x, const Tensor& positions, const Tensor& inv_freq);

// The same in place and not recorded: by the sequences' own frequencies where they have some, else by inv_freq.
void rotate(const Tensor& x, const Sequences&, const Tensor& inv_freq, const ExecContext&);

// Attention over q [N,Hq,D], k and v [N,Hk,D]. In a sliced run the heads are those of one process; the others have as
// many.
struct AttentionOptions {
  float scale = 1;
  Pattern pattern;
  float dropout = 0;               // rate on the weights, in [0, 1)
  std::uint32_t dropout_site = 0;  // of the masks, as dropout_add's
};

// The whole of self-attention between the two projections, without copies: qkv [N,(Hq+2Hk)D] holds q | k | v in
// columns. Optionally normalises q and k per head (RMS, weights [D]), rotates them, attends -> [N,Hq D]. Consumes qkv:
// its bytes are rotated in place and kept for the backward. `keys`, `values` (both or none) and `queries` receive
// views of the final k and v [N,Hk,D] and q [N,Hq,D], for a generation cache. `selection`, of selection_part(),
// receives what was selected; one that is there already is used. `watch` sees attention over whole sequences; it may be
// empty. `pooling`: pool_weights (kernels/attention/pooled_attention.h) of a pattern with pools; none: they are means.
// `pool_gates` [N,Hq]: added to the scores of a query's pools.
struct SelfAttention {
  std::int64_t heads = 1, kv_heads = 1, head_dim = 8;
  AttentionOptions attention;
  Tensor inv_freq;     // undefined: no rotation
  Var q_norm, k_norm;  // undefined value: no QK-norm
  float norm_eps = 1e-6f;
  Tensor* queries = nullptr;
  Tensor* keys = nullptr;
  Tensor* values = nullptr;
  BlockSelection* selection = nullptr;
  AttentionWatch watch{};
  Var pooling{}, pool_gates{};
};
Var self_attention(Run&, const Var& qkv, const Sequences&, const SelfAttention&);

// The loss head: logits = x w^T in chunks of rows, softmax cross-entropy, and, when the tape records, both gradients in
// the same pass, so that no more than one chunk of logits ever exists. x [N,C], w [V,C] -> loss sum over valid tokens
// [1]. It is the root of its tape: the gradient of scale * loss is complete once the forward has run, and backward()
// takes no seed.
// With run.tp of more than one process: x [N/tp,C] holds this process's rows, w [V/tp,C] its rows of a weight that is
// cut evenly; targets, weights and what comes back are those of all N tokens, the same bits on every process.
struct LossHead {
  Tensor targets;          // [N] i32, -100 = ignored
  Tensor weights;          // [N] f32, the label mask; undefined: all 1
  std::int64_t vocab = 0;  // columns in use; w, as a whole, may have more rows (padding)
  float scale = 1;         // of the gradient, times the run's state.loss_scale where it has a state
  float z_loss = 0;
  std::int64_t chunk_bytes = 0;  // of logits held at a time; 0: 32 MiB on a CPU, 2 GiB on a GPU
  bool correct = false;          // whether to say which targets are the likeliest tokens
};
struct LossOutput {
  Var sum;            // [1] f32: sum of token_loss
  Tensor token_loss;  // [N] f32: weighted, not scaled loss of each token, 0 where ignored
  Tensor correct;     // [N] f32, where wanted: 1 where no token has a larger logit than the target, else 0
};
LossOutput cross_entropy_head(Run&, const Var& x, const Var& w, const LossHead&);

}  // namespace ring
