#include "kernels/linear_attention/gated_delta.h"

#include <algorithm>
#include <string_view>

#include "kernels/rows.h"

namespace ring {
namespace {

double state_numel(const Tensor& v, std::int64_t key_width) {
  return static_cast<double>(v.dim(1) * v.dim(2) * key_width);
}

void check_head_rows(const char* op, std::string_view name, const Tensor& t, const Shape& want) {
  check_shape(op, name, t, want);
  RING_CHECK(t.dim(2) <= 1 || t.stride(2) == 1, op, ": the last dim of ", name, " ", describe(t), " has stride ",
             t.stride(2));
}

// Checks a tensor that may be undefined.
void check_optional(const char* op, std::string_view name, const Tensor& t, const Shape& want) {
  if (!t.defined()) return;
  check_shape(op, name, t, want);
  RING_CHECK(t.is_contiguous() && t.dtype() == DType::f32, op, ": ", name, " is ", describe(t),
             ", expected contiguous f32");
}

template <class Args>
void check_operands(const char* op, const Args& a) {
  RING_CHECK(a.q.defined() && a.q.shape().size() == 3 && a.v.defined() && a.v.shape().size() == 3, op, ": q is ",
             describe(a.q), " and v is ", describe(a.v), ", expected [N,Hk,Dk] and [N,Hv,Dv]");
  const std::int64_t rows = a.q.dim(0), heads = a.v.dim(1);
  check_head_rows(op, "q", a.q, a.q.shape());
  check_head_rows(op, "k", a.k, a.q.shape());
  check_head_rows(op, "v", a.v, {rows, heads, a.v.dim(2)});
  RING_CHECK(heads % a.q.dim(1) == 0, op, ": ", heads, " value heads are not a multiple of ", a.q.dim(1), " key heads");
  for (const Tensor& gate : {a.decay, a.beta}) check_shape(op, "gate", gate, {rows, heads});
  const Shape state{std::ssize(a.documents), heads, a.q.dim(2), a.v.dim(2)};
  check_optional(op, "initial", a.initial, state);
  check_optional(op, "states", a.states, {state_slots(rows), heads, a.q.dim(2), a.v.dim(2)});
  for (const Span& s : a.documents)
    RING_CHECK(s.first >= 0 && s.count >= 0 && std::int64_t{s.first} + s.count <= rows, op, ": a document has rows ",
               s.first, " to ", s.first + s.count, ", but there are ", rows, " rows");
}

// Returns the FLOPs of the recurrence, three products per token and state (S^T k, the update and S^T q; see
// gated_delta.h), and of the matrix products within chunks.
double forward_flops(const Tensor& q, const Tensor& v) {
  const double chunk = 2.0 * static_cast<double>(kDeltaChunk * (q.dim(2) + v.dim(2)) * v.dim(1));
  return static_cast<double>(v.dim(0)) * (6 * state_numel(v, q.dim(2)) + chunk);
}

}  // namespace

Cost cost(const GatedDelta& a) {
  return cost_of(a.v, {a.q, a.k, a.v, a.decay, a.beta, a.out, a.initial, a.final, a.states}, forward_flops(a.q, a.v));
}
Cost cost(const GatedDeltaBackward& a) {
  return cost_of(a.v,
                 {a.q, a.k, a.v, a.decay, a.beta, a.initial, a.states, a.dout, a.dfinal, a.dq, a.dk, a.dv, a.ddecay,
                  a.dbeta, a.dinitial},
                 3 * forward_flops(a.q, a.v));
}

// Counts the buffers of Chunk and ChunkGradients in kernels/linear_attention/cpu/gated_delta.cpp: [L,Dk] and [L,Dv]
// matrices, [L,L] matrices of token pairs, vectors [L], and states [Dk,Dv], where L = kDeltaChunk.
std::int64_t delta_floats(std::int64_t key_width, std::int64_t value_width, bool backward) {
  constexpr std::int64_t chunk = kDeltaChunk, chunks = kStateTokens / kDeltaChunk;
  const std::int64_t state = key_width * value_width;
  const std::int64_t forward = chunk * (2 * key_width + 2 * value_width + 4 * chunk + 5) + state;
  if (!backward) return forward;
  return forward + chunk * (3 * key_width + 2 * value_width + 2 * chunk + 2) + (1 + chunks) * state;
}

std::int64_t delta_blocks(const std::vector<Span>& documents, std::int64_t value_heads) {
  constexpr std::int64_t max_blocks = 264;  // two for each SM of an H200
  return std::clamp(std::ssize(documents) * value_heads, std::int64_t{1}, max_blocks);
}

// Counts the buffers of DeltaScratch in cuda/delta_tiles.cuh: 8 scalars per row and two [L,L] matrices, where
// L = kDeltaChunk. The backward also needs two states [Dk,Dv] and two [L,Dv] matrices.
std::int64_t delta_item_bytes(std::int64_t key_width, std::int64_t value_width, bool backward) {
  const std::int64_t forward = kDeltaChunk * 8 * 4 + 2 * kDeltaChunk * kDeltaChunk * 2;
  return backward ? forward + 2 * value_width * (key_width + kDeltaChunk) * 2 : forward;
}

namespace {

// Returns the bytes of temporary memory that the kernels for tensor cores need for all chunks; 0 if they do not support
// the operands.
template <class Args>
std::size_t item_bytes(const Args& a, bool backward, const ExecContext& ctx) {
  if (ctx.stream.device().backend == Backend::cpu || a.q.dtype() != DType::bf16) return 0;
  const std::int64_t items = (a.v.dim(0) / kDeltaChunk + std::ssize(a.documents)) * a.v.dim(1);
  return static_cast<std::size_t>(items * delta_item_bytes(a.q.dim(2), a.v.dim(2), backward));
}

// Returns the bytes of temporary memory of all CPU threads, or of all thread blocks of a GPU, if each of them computes
// one chunk at a time.
template <class Args>
std::size_t chunk_bytes(const Args& a, bool backward, const ExecContext& ctx) {
  const std::int64_t count =
      ctx.stream.device().backend == Backend::cpu ? ctx.stream.impl().threads() : delta_blocks(a.documents, a.v.dim(1));
  return static_cast<std::size_t>(count * delta_floats(a.q.dim(2), a.v.dim(2), backward)) * sizeof(float);
}

}  // namespace

std::size_t scratch_bytes(const GatedDelta& a, const ExecContext& ctx) {
  return std::max(chunk_bytes(a, false, ctx), item_bytes(a, false, ctx));
}
// On GPUs, also counts the gradients of q and k, which are stored for each value head before they are summed.
std::size_t scratch_bytes(const GatedDeltaBackward& a, const ExecContext& ctx) {
  const std::int64_t each = ctx.stream.device().backend == Backend::cpu ? 0 : 2 * a.v.dim(0) * a.v.dim(1) * a.q.dim(2);
  return std::max(chunk_bytes(a, true, ctx) + static_cast<std::size_t>(each) * sizeof(float), item_bytes(a, true, ctx));
}

void check(const GatedDelta& a) {
  constexpr const char* op = "gated_delta";
  check_operands(op, a);
  check_head_rows(op, "out", a.out, a.v.shape());
  check_optional(op, "final", a.final, {std::ssize(a.documents), a.v.dim(1), a.q.dim(2), a.v.dim(2)});
}

void check(const GatedDeltaBackward& a) {
  constexpr const char* op = "gated_delta_backward";
  check_operands(op, a);
  check_head_rows(op, "dout", a.dout, a.v.shape());
  if (a.dq.defined()) check_head_rows(op, "dq", a.dq, a.q.shape());
  if (a.dk.defined()) check_head_rows(op, "dk", a.dk, a.q.shape());
  if (a.dv.defined()) check_head_rows(op, "dv", a.dv, a.v.shape());
  for (const Tensor& gate : {a.ddecay, a.dbeta})
    if (gate.defined()) check_shape(op, "the gradient of a gate", gate, a.decay.shape());
  const Shape state{std::ssize(a.documents), a.v.dim(1), a.q.dim(2), a.v.dim(2)};
  check_optional(op, "dfinal", a.dfinal, state);
  check_optional(op, "dinitial", a.dinitial, state);
  RING_CHECK(a.states.defined(), op, ": the forward's states are missing");
}

}  // namespace ring
