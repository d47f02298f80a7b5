// The gated delta rule on tensor cores, for heads of 64 and 128 channels in bf16. Passes over chunks of 64 rows:
//   forward:  (1) T, P and the numbers of rows, parallel over chunks and heads (delta_prepare.cuh)
//             (2) the recurrence and the output, serial over chunks (delta_recurrence.cuh)
//   backward: (1); (2) in blocks of kStateTokens, which are parallel, storing the states and U; the recurrence of the
//             gradients of states (delta_reverse.cuh); all other gradients, parallel over chunks (delta_pairs.cuh)

#include "kernels/linear_attention/cuda/delta_pairs.cuh"
#include "kernels/linear_attention/cuda/delta_prepare.cuh"
#include "kernels/linear_attention/cuda/delta_reverse.cuh"
#include "kernels/linear_attention/cuda/gated_delta.cuh"
#include "kernels/linear_attention/cuda/outside.cuh"

namespace ring::cuda {
namespace {

bool is_mma_operand(const Tensor& t) {
  return !t.defined() ||
         (t.dtype() == DType::bf16 && t.stride(0) % 8 == 0 && t.stride(1) % 8 == 0 && is_aligned(t.raw()));
}
template <class Args>
bool fits(const Args& a) {
  const auto width = [](std::int64_t n) { return n == 64 || n == 128; };
  return a.q.defined() && a.v.defined() && width(a.q.dim(2)) && width(a.v.dim(2)) &&
         std::ranges::none_of(a.documents, [](const Span& s) { return s.count == 0; }) &&
         std::ranges::all_of(std::array{a.q, a.k, a.v}, is_mma_operand);
}
bool supports(const GatedDelta& a, const ExecContext&) { return fits(a) && is_mma_operand(a.out); }
bool supports(const GatedDeltaBackward& a, const ExecContext&) {
  return fits(a) && std::ranges::all_of(std::array{a.dout, a.dq, a.dk, a.dv}, is_mma_operand);
}

// Calls f<keys, values>().
template <class Args, class F>
void visit_widths(const Args& a, const F& f) {
  const bool wide_keys = a.q.dim(2) == 128, wide_values = a.v.dim(2) == 128;
  if (wide_keys && wide_values) return f.template operator()<128, 128>();
  if (wide_keys) return f.template operator()<128, 64>();
  if (wide_values) return f.template operator()<64, 128>();
  f.template operator()<64, 64>();
}

int chunks_of(const MmaDocument& d) { return (d.count + kRows - 1) / kRows; }

// Calls f(documents) with their chunks counted.
template <class F>
void for_chunks(const std::vector<Span>& spans, const F& f) {
  std::vector<MmaDocument> all;
  for (const Span& s : spans) all.push_back({s.first, s.count, static_cast<int>(all.size())});
  for_documents(all, chunks_of, f);
}

// Divides temporary memory for all chunks of a call.
struct ScratchMemory {
  Tensor bytes;
  DeltaScratch parts{};

  template <class Args>
  ScratchMemory(const Args& a, bool backward, const ExecContext& ctx) {
    std::int64_t items = 0;
    for (const Span& s : a.documents) items += divide_up(s.count, kRows) * a.v.dim(1);
    const std::int64_t keys = a.q.dim(2), values = a.v.dim(2), square = std::int64_t{kRows} * kRows;
    const Shape shape{items * delta_item_bytes(keys, values, backward)};
    bytes = ctx.empty(shape, DType::u8);
    auto* at = reinterpret_cast<unsigned char*>(bytes.raw());
    const auto take = [&]<class T>(T*& to, std::int64_t each) {
      to = reinterpret_cast<T*>(at);
      at += items * each * static_cast<std::int64_t>(sizeof(T));
    };
    take(parts.numbers, kNumbers * kRows);
    take(parts.t, square);
    take(parts.p, square);
    if (!backward) return;
    take(parts.s, keys * values);
    take(parts.ds, keys * values);
    take(parts.u, kRows * values);
    take(parts.dr, kRows * values);
  }
};

template <int keys>
void launch_prepare(const DeltaInputs<Bf16>& in, const DeltaScratch& scratch, const Documents<MmaDocument>& some,
                    const ExecContext& ctx) {
  launch(ctx, {grid_of(some.before[some.count], in.value_heads), kPrepareThreads, sizeof(PrepareMemory<keys>)},
         delta_prepare<keys>, in, scratch, some);
}

// Thread blocks of a recurrence: value columns, heads, and documents or blocks of them.
Launch recurrence_grid(const DeltaInputs<Bf16>& in, int values, int parts, std::size_t shared) {
  return {dim3(static_cast<unsigned>(values / kBlockValues), static_cast<unsigned>(in.value_heads),
               static_cast<unsigned>(parts)),
          kRecurrenceThreads, shared};
}

void run_mma(const GatedDelta& args, const ExecContext& ctx) {
  check(args);
  scale_rows_outside("gated_delta", args.out, 0, args.documents, ctx);
  const ScratchMemory memory(args, false, ctx);
  const DeltaRecurrence p{
      delta_inputs<Bf16>(args),         heads_of3<Bf16>(args.out),      memory.parts,
      device_data<float>(args.initial), device_data<float>(args.final), device_data<float>(args.states)};
  visit_widths(args, [&]<int keys, int values>() {
    for_chunks(args.documents, [&](const Documents<MmaDocument>& some) {
      launch_prepare<keys>(p.in, p.scratch, some, ctx);
      launch(ctx, recurrence_grid(p.in, values, some.count, sizeof(ForwardMemory<keys>)),
             delta_forward<keys, values, true>, p, some);
    });
  });
}

// Returns how many blocks of kStateTokens the documents have.
int saved_blocks(const Documents<MmaDocument>& all) {
  constexpr int chunks = static_cast<int>(kStateTokens) / kRows;
  int sum = 0;
  for (int d = 0; d < all.count; ++d) sum += (all.before[d + 1] - all.before[d] + chunks - 1) / chunks;
  return sum;
}

void run_mma_backward(const GatedDeltaBackward& args, const ExecContext& ctx) {
  constexpr const char* op = "gated_delta_backward";
  check(args);
  for (const Tensor& t : {args.dq, args.dk, args.dv}) scale_rows_outside(op, t, args.beta_qkv, args.documents, ctx);
  for (const Tensor& t : {args.ddecay, args.dbeta}) scale_rows_outside(op, t, args.beta_gates, args.documents, ctx);
  const ScratchMemory memory(args, true, ctx);
  const DeltaInputs<Bf16> in = delta_inputs<Bf16>(args);
  const HeadsOf3<const Bf16> dout = heads_of3<const Bf16>(args.dout);
  const DeltaRecurrence states{
      in, {}, memory.parts, device_data<float>(args.initial), nullptr, device_data<float>(args.states)};
  const DeltaReverse reverse{
      in, dout, memory.parts, device_data<float>(args.dfinal), device_data<float>(args.dinitial), args.beta_initial};
  const DeltaPairs pairs{in,
                         dout,
                         heads_of3<Bf16>(args.dq),
                         heads_of3<Bf16>(args.dk),
                         heads_of3<Bf16>(args.dv),
                         heads_of3<float>(args.ddecay),
                         heads_of3<float>(args.dbeta),
                         args.beta_qkv,
                         args.beta_gates,
                         memory.parts};
  visit_widths(args, [&]<int keys, int values>() {
    for_chunks(args.documents, [&](const Documents<MmaDocument>& some) {
      launch_prepare<keys>(in, memory.parts, some, ctx);
      launch(ctx, recurrence_grid(in, values, saved_blocks(some), sizeof(ForwardMemory<keys>)),
             delta_forward<keys, values, false>, states, some);
      launch(ctx, recurrence_grid(in, values, some.count, sizeof(ReverseMemory<keys>)), delta_reverse<keys, values>,
             reverse, some);
      launch(ctx, {grid_of(some.before[some.count], in.key_heads), kPairThreads, sizeof(PairMemory<keys, values>)},
             delta_pairs<keys, values>, pairs, some);
    });
  });
}

const bool added_gated_delta_mma[] = {
    gated_delta_kernel.add(Backend::cuda, {"mma", run_mma, supports, 10}),
    gated_delta_backward_kernel.add(Backend::cuda, {"mma", run_mma_backward, supports, 10}),
};

}  // namespace
}  // namespace ring::cuda
