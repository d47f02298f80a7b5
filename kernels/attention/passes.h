#pragma once
// Runs patterns of several passes (dilated branches): each pass merges its result, in f32, into the result of the
// passes before it.

#include "kernels/attention/attention.h"
#include "kernels/attention/head_segment.h"

namespace ring {

// Calls run(args of one pass, pass) for each pass in order. If there are several passes and no carry, first calls
// fill(lse), which must set all of lse to -inf.
template <class Fill, class Run>
void forward_passes(const Attention& args, const ExecContext& ctx, const Fill& fill, const Run& run) {
  const std::vector<BranchPass> passes = passes_of(args.pattern);
  if (passes.size() == 1) return run(args, passes[0]);
  Attention one = args;
  if (!args.carry.defined()) {
    one.carry = args.out.dtype() == DType::f32 && args.out.is_contiguous() ? args.out : ctx.empty(args.q.shape());
    fill(args.lse);
  }
  for (std::size_t i = 0; i < passes.size(); ++i) {
    one.out = i + 1 < passes.size() ? one.carry : args.out;
    run(one, passes[i]);
  }
}

// Calls run(args of one pass, pass) for each pass in order; each pass computes all three gradients.
template <class Run>
void whole_backward_passes(const AttentionBackward& args, const ExecContext& ctx, const Run& run) {
  const std::vector<BranchPass> passes = passes_of(args.pattern);
  AttentionBackward one = args;
  if (passes.size() > 1) {
    if (!args.carry_dq.defined()) one.carry_dq = ctx.zeros(args.dq.shape());
    if (!args.carry_dk.defined()) one.carry_dk = ctx.zeros(args.dk.shape()), one.carry_dv = ctx.zeros(args.dv.shape());
  }
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const bool last = i + 1 == passes.size();
    one.dq = last ? args.dq : one.carry_dq;
    one.dk = last ? args.dk : one.carry_dk;
    one.dv = last ? args.dv : one.carry_dv;
    run(one, passes[i]);
  }
}

// The gradients that one pass computes: dq, or dk and dv.
enum class Gradient : std::uint8_t { queries, keys };

// Calls run(args of one pass, pass, gradient): all passes for dq, then all passes for dk and dv. The f32 accumulators
// of dq are freed before those of dk and dv are allocated.
template <class Run>
void backward_passes(const AttentionBackward& args, const ExecContext& ctx, const Run& run) {
  const std::vector<BranchPass> passes = passes_of(args.pattern);
  const auto sums = [&](const Tensor& carry, const Tensor& out) {
    if (carry.defined() || passes.size() == 1) return carry;
    return ctx.zeros(out.shape());
  };
  for (const Gradient which : {Gradient::queries, Gradient::keys}) {
    const bool keys = which == Gradient::keys;
    AttentionBackward one = args;
    if (keys) {
      one.carry_dk = sums(args.carry_dk, args.dk);
      one.carry_dv = sums(args.carry_dv, args.dv);
    } else {
      one.carry_dq = sums(args.carry_dq, args.dq);
    }
    for (std::size_t i = 0; i < passes.size(); ++i) {
      const bool last = i + 1 == passes.size();
      if (keys) {
        one.dk = last ? args.dk : one.carry_dk;
        one.dv = last ? args.dv : one.carry_dv;
      } else {
        one.dq = last ? args.dq : one.carry_dq;
      }
      run(one, passes[i], which);
    }
  }
}

}  // namespace ring
