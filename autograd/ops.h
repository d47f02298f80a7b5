#pragma once
// Differentiable ops, one declaration each; forward call and backward rule are together in autograd/ops/<op>.cpp. N =
// tokens on this device, C = channels. Ops throw Error, naming the op and both shapes, if shapes do not fit. Values and
// gradients are f32 or bf16, as the inputs.

#include <cstdint>

#include "autograd/context_exchange.h"
#include "autograd/tape.h"
#include "kernels/activation.h"
#include "kernels/attention/selection.h"

namespace ring {

// The documents of a micro-batch: document b holds rows offsets[b] .. offsets[b+1]; positions [N] i32 restart in each.
// Documents may be packed into rows that start at rows[0], rows[1], ..; if `rows` is empty, each document is one row.
// If `lengths` is set, document b has lengths[b] tokens, and its other rows are padding. If `shards` is set, the rows
// are this rank's rows of a micro-batch, and attention reaches other ranks' rows through RunLayout::cp.
struct Sequences {
  std::vector<std::int32_t> offsets;
  Tensor positions;
  Tensor inv_freq;  // [documents, R/2] f32: frequencies for each document (no backward); may be undefined
  std::vector<std::int32_t> rows, lengths;
  std::shared_ptr<const ContextShards> shards;
  // If set, the spans of the current step, updated before a captured step is replayed.
  std::shared_ptr<const std::vector<Span>> current_spans;
  std::int64_t tokens() const { return offsets.empty() ? 0 : offsets.back(); }
  std::vector<Span> spans() const;  // not available for sharded sequences
  // Returns the spans for work queued now. Throws Error in a captured step, whose spans may change.
  std::vector<Span> spans_on(const Stream&) const;
  Sequences without_positions() const;  // returns a copy without positions and frequencies
  static Sequences uniform(std::int64_t batch, std::int64_t length, const ExecContext&,
                           std::int64_t first_position = 0);
  // Returns documents packed into rows of `row` tokens. Document b consists of lengths[b] tokens; its first token is
  // token starts[b] of the micro-batch.
  static Sequences packed(std::vector<std::int32_t> starts, std::vector<std::int32_t> lengths, std::int64_t row,
                          const Tensor& positions);
  // Returns sharded sequences. positions: positions of this rank's rows.
  static Sequences sharded(std::shared_ptr<const ContextShards>, const Tensor& positions);
};

// Returns true if run.layout.tp has more than one process: tensor parallelism (Shoeybi et al. 2019, section 3) with
// sequence parallelism (Korthikanti et al. 2022, section 4.2). Between sublayers each process then holds the same
// number of adjacent rows, in rank order; inside a sublayer it holds all N rows and a share of the channels.
bool is_tensor_parallel(const Run&);

// Returns the part of the selection that this process computes when it attends with kv_heads KV heads: the whole or,
// for sharded sequences, the exchange's part. Throws Error if the exchange chooses its schedule only when it attends.
SelectionPart selection_part(const Run&, const Sequences&, const Pattern&, std::int64_t kv_heads);

// Gathers x [N/tp,C], this process's rows -> [N,C]. Backward reduce-scatters the gradient. Saves only this process's
// rows: if backward needs the result, it gathers the rows again.
Var all_gather_rows(Run&, const Var& x);

// Reduce-scatters x [N,C] over the processes -> this process's rows of the sum, plus b [C] or none, plus residual
// [N/tp,C] or none. Backward gathers the gradient. Throws Error if tp does not divide N.
Var reduce_scatter_rows(Run&, const Var& x, const Var& b = {}, const Var& residual = {});

// Return linear(all_gather_rows(x), w, b, residual) and reduce_scatter_rows(linear(x, w), b, residual), with
// communication overlapped with the GEMMs. Backward overlaps, too: during the GEMM of the weight's gradient, gradients
// are sent and regathered rows arrive.
Var gather_linear(Run&, const Var& x, const Var& w, const Var& b = {}, const Var& residual = {});
Var linear_scatter(Run&, const Var& x, const Var& w, const Var& b = {}, const Var& residual = {});

// Exchange channels for rows, for ops inside a sublayer that need whole rows. swap_channels_for_rows() takes [N,C/tp],
// this process's channels of all rows, and returns [N/tp,C], all channels of this process's rows.
// swap_rows_for_channels() does the reverse. Each is the backward of the other. The run must be tensor-parallel, and tp
// must divide N or C, respectively.
Var swap_channels_for_rows(Run&, const Var& x);
Var swap_rows_for_channels(Run&, const Var& x);

// Returns this process's rows of a tensor that all processes hold whole: t [N,..] -> [N/tp,..], a view.
Tensor local_rows(const Run&, const Tensor& t);

// Applies f to chunks of rows of x [N,C], one after another. A chunk has at most `rows` rows, counted over all
// processes of run.layout.tp; 0 means a single chunk. f maps [n,C] to [n,M] and must treat rows independently. Returns
// [N,M], which is saved. Each chunk is recorded separately: in a run that recomputes, activations of at most one chunk
// exist at a time. Gradients of parameters are summed from the last chunk to the first. x must not be a parameter.
using RowsFn = std::function<Var(Run&, const Var& chunk)>;
Var map_chunks(Run&, const Var& x, std::int64_t rows, const RowsFn& f);

// Returns f(x) [N,C] and saves only x: backward runs f again, recording, and then the backward of f. f must record at
// least one step, and may itself recompute. `run` and everything that f refers to must live until backward has run.
using BlocksFn = std::function<Var(Run&, const Var& x)>;
Var checkpoint_segment(Run&, const Var& x, const BlocksFn& f);

// Returns x w^T + b + residual [N,M] for x [N,K], w [M,K], b [M] or none, residual [N,M] or none.
Var linear(Run&, const Var& x, const Var& w, const Var& b = {}, const Var& residual = {});

// Looks up ids [N] i32 in table [rows,C] -> [N,C].
Var embedding(Run&, const Tensor& ids, const Var& table);

// Same for a table whose rows are sharded evenly over run.layout.tp, [rows/tp,C] -> this process's rows [N/tp,C].
Var vocab_parallel_embedding(Run&, const Tensor& ids, const Var& table);

// Returns factor * x.
Var scale(Run&, const Var& x, float factor);

// Returns a + b, which have the same shape.
Var add(Run&, const Var& a, const Var& b);

// Returns residual + dropout(x); residual may be none. The mask is a function of run.seed, run.step, `site` and the
// global element index. With rate 0 it costs no more than add().
Var dropout_add(Run&, const Var& x, const Var& residual, float rate, std::uint32_t site);

// The norms are over the last dim of x [N,C] or [N,H,C]; w, b [C]. rms_norm() multiplies by w + w_offset.
Var rms_norm(Run&, const Var& x, const Var& w, float eps, float w_offset = 0);
Var layer_norm(Run&, const Var& x, const Var& w, const Var& b, float eps);  // b may be none

Var activate(Run&, const Var& x, Activation kind, float cap = 1);  // cap: for Activation::soft_cap
Var swiglu(Run&, const Var& gate_up, Gate = Gate::silu);           // [N,2F] -> [N,F]
Var sigmoid_gate(Run&, const Var& x, const Var& gate);             // x * sigmoid(gate), both of one shape

// Returns gelu_tanh(x w1^T + b1) w2^T + b2 + residual [N,M], with the activation fused into the GEMMs: x [N,K], w1
// [F,K], b1 [F] or none, w2 [M,F], b2 [M] or none, residual [N,M] or none.
Var mlp_gelu_tanh(Run&, const Var& x, const Var& w1, const Var& b1, const Var& w2, const Var& b2, const Var& residual);

// Rotates x [N,H,D] by its positions [N]; inv_freq [D/2] f32.
Var rope(Run&, const Var& x, const Tensor& positions, const Tensor& inv_freq);

// Rotates channels of heads [N,H,D] in place, without recording: the first two channels for each frequency. Uses the
// sequences' own frequencies if they have any, otherwise inv_freq.
void rotate(const Tensor& heads, const Sequences&, const Tensor& inv_freq, const ExecContext&);

// Options of attention. q is [N,Hq,D], k and v are [N,Hk,D]. In a tensor-parallel run, Hq and Hk are the numbers of
// this process's heads, which are equal on all processes.
struct AttentionOptions {
  float scale = 1, soft_cap = 0;  // soft_cap: as in Attention (kernels/attention/attention.h)
  Pattern pattern;
  float dropout = 0;               // dropout rate on attention weights, in [0, 1)
  std::uint32_t dropout_site = 0;  // site of the masks, as in dropout_add()
};

// Self-attention between the QKV projection and the output projection, without copies -> [N,Hq D]. qkv [N,(Hq+2Hk)D]
// holds q | k | v in columns. Optionally normalizes q and k (RMS): per head if the norm's weights are [D], over all
// heads if they are [Hq D] and [Hk D]. Then rotates the first channels of each head, two for each element of inv_freq.
// Consumes qkv: its bytes are rotated in place and saved for backward.
// - `queries` and `keys`, `values` (both or none): receive views of q [N,Hq,D] and k, v [N,Hk,D] after norm and
//   rotation, for a generation cache.
// - `selection`: the selection for selection_part(). Used if it is already set; otherwise receives the new selection.
// - `watch`: observes attention over whole sequences; may be empty.
// - `pooling`: pool_weights (kernels/attention/pools/pooled_attention.h) of a pattern with pools; if none, pools are
//   means.
// - `pool_gates` [N,Hq]: added to the scores of a query's pools.
// - `sinks` [Hq]: one more, learned logit per head, whose probability is dropped (kernels/attention/sink.h). `watch`
//   and the probes see probabilities and log-sum-exps without sinks.
struct SelfAttention {
  std::int64_t heads = 1, kv_heads = 1, head_dim = 8;
  std::int64_t layer = 0;  // for an exchange that stores something for each layer
  AttentionOptions attention;
  Tensor inv_freq;                          // undefined if there is no rotation
  Var q_norm, k_norm;                       // undefined values if there is no QK-norm
  float norm_eps = 1e-6f, norm_offset = 0;  // norm_offset: added to the weights of the QK-norm
  Tensor* queries = nullptr;
  Tensor* keys = nullptr;
  Tensor* values = nullptr;
  BlockSelection* selection = nullptr;
  AttentionWatch watch{};
  Var pooling{}, pool_gates{}, sinks{};
};
Var self_attention(Run&, const Var& qkv, const Sequences&, const SelfAttention&);

// The loss head: logits = x w^T in chunks of rows, and their softmax cross-entropy. x [N,C], w [V,C] -> [1], the sum of
// the losses of valid tokens. If the tape records, both gradients are computed in the same pass, so that at most one
// chunk of logits exists at a time. The loss is a root of the tape: the gradient of scale * loss is complete after the
// forward, and backward() takes no seed.
// If run.layout.tp has more than one process, x [N/tp,C] holds this process's rows, and w [V/tp,C] its rows of an
// evenly sharded weight. Targets, weights and results cover all N tokens and are bit-identical on every process.
struct LossHead {
  Tensor targets;          // [N] i32, -100 = ignored
  Tensor weights;          // [N] f32, the label mask; undefined means all 1
  std::int64_t vocab = 0;  // vocabulary columns in use; the unsharded w may have more rows (padding)
  float scale = 1;         // factor on the gradient, times loss_scale if the run has a state
  float z_loss = 0;
  float soft_cap = 0;            // logits become soft_cap * tanh(logits / soft_cap); 0 means none
  std::int64_t chunk_bytes = 0;  // bytes of logits held at a time; 0 means 32 MiB on a CPU, 2 GiB on a GPU
  bool correct = false;          // compute LossOutput::correct
};
struct LossOutput {
  Var sum;            // [1] f32, sum of token_loss
  Tensor token_loss;  // [N] f32, weighted, unscaled loss of each token; 0 if ignored
  Tensor correct;     // [N] f32, if requested: 1 if no token has a larger logit than the target, else 0
};
LossOutput cross_entropy_head(Run&, const Var& x, const Var& w, const LossHead&);

}  // namespace ring
