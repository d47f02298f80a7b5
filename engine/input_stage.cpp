#include "engine/input_stage.h"

#include "core/copy_stream.h"

namespace ring {

StepInputs::StepInputs(std::int64_t tokens, bool packed, const Stream& stream)
    : ids(Tensor::empty({tokens}, DType::i32, stream, Lifetime::run)),
      targets(Tensor::empty({tokens}, DType::i32, stream, Lifetime::run)) {
  if (packed) positions = Tensor::empty({tokens}, DType::i32, stream, Lifetime::run);
}

InputStage::InputStage(std::int64_t tokens, bool packed, const Stream& compute)
    : compute_(compute), copy_(copy_stream(compute)) {
  for (Slot& slot : slots_) slot.inputs = StepInputs(tokens, packed, copy_);
}

void InputStage::load(const std::vector<Batch>& batches, const StepInputs& to) {
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  copy_.wait(slot.consumed);
  const StepInputs& from = slot.inputs;
  std::size_t at = 0, all = 0;
  for (const Batch& b : batches) all += b.inputs.size() * sizeof(std::int32_t);
  RING_CHECK(all <= from.ids.bytes(), "a step's batches hold ", all, " bytes of ids, of at most ", from.ids.bytes());
  for (const Batch& b : batches) {
    const std::size_t bytes = b.inputs.size() * sizeof(std::int32_t);
    copy_.impl().upload(from.ids.raw() + at, b.inputs.data(), bytes);
    copy_.impl().upload(from.targets.raw() + at, b.targets.data(), bytes);
    if (from.positions.defined()) copy_.impl().upload(from.positions.raw() + at, b.positions.data(), bytes);
    at += bytes;
  }
  compute_.wait(copy_.record());
  const auto tokens = static_cast<std::int64_t>(at / sizeof(std::int32_t));
  const auto move = [&](const Tensor& dst, const Tensor& src) {
    copy(dst.narrow(0, 0, tokens), src.narrow(0, 0, tokens), compute_);
  };
  move(to.ids, from.ids);
  move(to.targets, from.targets);
  if (from.positions.defined()) move(to.positions, from.positions);
  slot.consumed = compute_.record();
}

}  // namespace ring
