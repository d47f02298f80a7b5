#include "model/attention/learned/indexer.h"

#include <cmath>
#include <utility>

#include "autograd/learned/block_owners.h"
#include "core/checked.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/selected/block_mass.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/row_copy.h"

namespace ring {
namespace {

std::int64_t learned_heads(const AttentionConfig& a, std::int64_t kv_heads) {
  std::int64_t count = 0;
  for (std::int64_t h = 0; h < kv_heads; ++h) count += learns_blocks(rule_of_head(a, h));
  return count;
}

// Returns the shards that own the rows of the part's selection. For a
// sequence in chunks these are the chunks, even if ranks share each chunk.
const ContextShards& selected_shards(const Sequences& seqs, const SelectionPart& part) {
  return part.chunk && seqs.shards->chunks ? *seqs.shards->chunks : *seqs.shards;
}

// Returns a part's query blocks by document: their rows in the selection, and the rows of all the document's blocks.
std::vector<SelectedRows> query_blocks(const Sequences& seqs, const SelectionPart& part) {
  if (part.chunk) {
    std::vector<SelectedRows> documents = blocks_with_local_rows(selected_shards(seqs, part), part.pattern);
    for (SelectedRows& d : documents) d.kept -= part.chunk->first;
    return documents;
  }
  std::vector<std::int32_t> counts;
  for (const Span& s : part.spans) counts.push_back(blocks_of(part.pattern, s));
  return whole_documents(counts);
}

Tensor in_type(const Tensor& x, DType type, const ExecContext& ctx) {
  if (x.dtype() == type) return x;
  const Tensor out = ctx.empty(x.shape(), type);
  cast_kernel({x, out}, ctx);
  return out;
}

}  // namespace

// Initial weights have the standard deviation 1 / sqrt(width): the layer's input is normalized, so queries and keys are
// then about as large as the input. Biases are stored as a vector, head after head, so that they get no weight decay.
Indexer::Indexer(const ParamPrefix& at, const ModelConfig& c, const AttentionConfig& a)
    : shape_{.heads = a.index_heads,
             .dim = a.index_head_dim,
             .kv_heads = c.kv_heads,
             .first_head = 0,
             .count = c.kv_heads,
             .distances = a.index_distances},
      weight_(static_cast<float>(a.index_loss)),
      share_(1 / static_cast<float>(learned_heads(a, c.kv_heads))),
      warmup_steps_(a.index_warmup_steps) {
  const Init init{Init::Kind::normal, 1 / std::sqrt(static_cast<float>(c.width))};
  projection_ = &at.params.add({{at("wq.weight"), 0, shape_.key(), init},
                                {at("wk.weight"), 0, shape_.dim, init},
                                {at("weights.weight"), 0, shape_.kv_heads * shape_.heads, init}},
                               c.width);
  if (shape_.distances > 0) biases_ = &at.params.add({{at("distance.bias"), 0, shape_.biases(), {}}}, 0);
}

std::vector<Param*> Indexer::parameters() const {
  return biases_ ? std::vector{projection_, biases_} : std::vector{projection_};
}

ScoredBlocks Indexer::select(Run& run, const Var& x, const Sequences& seqs, const SelectionPart& part,
                             std::int64_t layer) const {
  const Tensor rows = is_tensor_parallel(run) ? all_gather_rows(run, {x.value, nullptr}).value : x.value;
  const Tensor means = part.chunk ? chunk_means(rows, *part.chunk, *seqs.shards, part.pattern, *run.layout.cp, run.ctx)
                       : seqs.shards ? block_means(rows, *seqs.shards, part.pattern, *run.layout.cp, run.ctx)
                                     : block_means(rows, part.spans, part.pattern, run.ctx);
  if (!part.pattern.selects()) return {};
  const Var in{in_type(means, projection_->var.value.dtype(), run.ctx), nullptr};
  const Var own = linear(run, in, projection_->var);
  IndexShape shape = shape_;
  shape.first_head += part.heads.first, shape.count = part.heads.count;
  return index_select(run, part.chunk ? join_earlier_blocks(run, own, *part.chunk, layer) : own, biases(), shape,
                      query_blocks(seqs, part), means.dim(0), part.pattern.blocks);
}

Tensor Indexer::project(const Tensor& means, const ExecContext& ctx) const {
  const Tensor& w = projection_->var.value;
  const Tensor out = ctx.empty({means.dim(0), w.dim(0)}, w.dtype());
  matmul_kernel({.a = in_type(means, w.dtype(), ctx), .b = w, .c = out, .transpose_b = true}, ctx);
  return out;
}

void Indexer::learn(Run& run, const Var& scores, const Tensor& mass, const BlockSelection& selection,
                    const Sequences& seqs, const SelectionPart& part) const {
  if (part.shared) reduce_to_owners(mass, selected_shards(seqs, part), part.pattern, *run.layout.cp, run.ctx);
  std::vector<PoolSegment> rows =
      part.shared ? owned_blocks(selected_shards(seqs, part), part.pattern) : block_rows(part.pattern, part.spans);
  for (PoolSegment& r : rows) r.out -= part.chunk ? part.chunk->first : 0;
  const IndexTarget target{mass, selection.kept, std::move(rows), part.pattern.blocks};
  const Var loss = index_loss(run, scores, target, share_, weight_);
  if (run.probes.auxiliary_loss.defined())
    axpby_kernel(
        {.x = loss.value, .y = run.probes.auxiliary_loss, .out = run.probes.auxiliary_loss, .alpha = 1, .beta = 1},
        run.ctx);
}

void add_mass(const Tensor& all, const Attention& a, KvHeads heads, bool in_chunks, const ExecContext& ctx) {
  if (!a.selection.kept.defined()) return;
  const bool every = heads.count == all.dim(1), parts = !a.selection.rows.empty();
  const Tensor part = all.narrow(1, heads.first, heads.count), mass = every ? all : ctx.empty(part.shape());
  if (parts && !every) copy_rows_kernel({mass, part, {.count = all.dim(0)}}, ctx);
  block_mass_kernel({.q = a.q,
                     .k = a.k,
                     .lse = a.lse,
                     .mass = mass,
                     .spans = a.keys,
                     .scale = a.scale,
                     .pattern = a.pattern,
                     .selection = a.selection,
                     .queries = parts ? a.queries : std::vector<Span>{},
                     .parts_of_keys = parts && in_chunks},
                    ctx);
  if (!every) copy_rows_kernel({part, mass, {.count = all.dim(0)}}, ctx);
}

}  // namespace ring
