#include "engine/input_stage.h"

#include "core/copy_stream.h"

namespace ring {

StepInputs::StepInputs(const InputSizes& n, const Stream& stream)
    : ids(Tensor::empty({n.tokens}, DType::i32, stream, Lifetime::run)),
      targets(Tensor::empty({n.tokens}, DType::i32, stream, Lifetime::run)) {
  if (n.packed) positions = Tensor::empty({n.tokens}, DType::i32, stream, Lifetime::run);
  if (!n.corpora) return;
  sources = Tensor::empty({n.sequences}, DType::i32, stream, Lifetime::run);
  source_targets = Tensor::empty({n.corpora}, DType::f32, stream, Lifetime::run);
}

InputStage::InputStage(const InputSizes& sizes, const Stream& compute)
    : compute_(compute), copy_(copy_stream(compute)) {
  for (Slot& slot : slots_) slot.inputs = StepInputs(sizes, copy_);
}

void InputStage::load_sources(const std::vector<Batch>& batches, const StepInputs& from) {
  std::vector<float> counts(static_cast<std::size_t>(from.source_targets.numel()));
  std::size_t at = 0;
  for (const Batch& b : batches) {
    const std::size_t bytes = b.sources.size() * sizeof(std::int32_t);
    RING_CHECK(at + bytes <= from.sources.bytes(), "a step's batches hold more than ", from.sources.numel(),
               " sequences");
    copy_.impl().upload(from.sources.raw() + at, b.sources.data(), bytes);
    at += bytes;
    const std::vector<std::int64_t> more = count_targets_by_source(b, counts.size());
    for (std::size_t c = 0; c < counts.size(); ++c) counts[c] += static_cast<float>(more[c]);
  }
  copy_.impl().upload(from.source_targets.raw(), counts.data(), from.source_targets.bytes());
}

std::int64_t InputStage::load_tokens(const std::vector<Batch>& batches, const StepInputs& from) {
  std::size_t at = 0, all = 0;
  for (const Batch& b : batches) all += b.inputs.size() * sizeof(std::int32_t);
  RING_CHECK(all <= from.ids.bytes(), "a step's batches hold ", all, " bytes of ids, expected at most ",
             from.ids.bytes());
  for (const Batch& b : batches) {
    const std::size_t bytes = b.inputs.size() * sizeof(std::int32_t);
    copy_.impl().upload(from.ids.raw() + at, b.inputs.data(), bytes);
    copy_.impl().upload(from.targets.raw() + at, b.targets.data(), bytes);
    if (from.positions.defined()) copy_.impl().upload(from.positions.raw() + at, b.positions.data(), bytes);
    at += bytes;
  }
  return static_cast<std::int64_t>(at / sizeof(std::int32_t));
}

void InputStage::load(const std::vector<Batch>& batches, const StepInputs& to) {
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  copy_.wait(slot.consumed);
  const StepInputs& from = slot.inputs;
  const std::int64_t tokens = from.ids.numel() > 0 ? load_tokens(batches, from) : 0;
  if (from.sources.defined()) load_sources(batches, from);
  compute_.wait(copy_.record());
  const auto move = [&](const Tensor& dst, const Tensor& src) {
    if (tokens > 0) copy(dst.narrow(0, 0, tokens), src.narrow(0, 0, tokens), compute_);
  };
  move(to.ids, from.ids);
  move(to.targets, from.targets);
  if (from.positions.defined()) move(to.positions, from.positions);
  if (from.sources.defined()) copy(to.sources, from.sources, compute_);
  if (from.sources.defined()) copy(to.source_targets, from.source_targets, compute_);
  slot.consumed = compute_.record();
}

}  // namespace ring
