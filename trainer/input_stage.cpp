#include "trainer/input_stage.h"

namespace ring {
namespace {

// A CPU has one memory and computes while the caller waits: nothing to overlap.
Stream copy_stream(const Stream& compute) {
  return compute.device().backend == Backend::cpu ? compute : Stream::create(compute.device());
}

}  // namespace

InputStage::InputStage(std::int64_t tokens, const Stream& compute) : compute_(compute), copy_(copy_stream(compute)) {
  for (Slot& slot : slots_)
    slot = {Tensor::empty({tokens}, DType::i32, copy_), Tensor::empty({tokens}, DType::i32, copy_), {}};
}

void InputStage::load(const std::vector<Batch>& batches, const Tensor& ids, const Tensor& targets) {
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  copy_.wait(slot.consumed);
  std::size_t at = 0;
  for (const Batch& b : batches) {
    const std::size_t bytes = b.inputs.size() * sizeof(std::int32_t);
    copy_.impl().upload(slot.ids.raw() + at, b.inputs.data(), bytes);
    copy_.impl().upload(slot.targets.raw() + at, b.targets.data(), bytes);
    at += bytes;
  }
  RING_CHECK(at == slot.ids.bytes(), "a step's batches hold ", at, " bytes of ids, expected ", slot.ids.bytes());
  compute_.wait(copy_.record());
  copy(ids, slot.ids, compute_);
  copy(targets, slot.targets, compute_);
  slot.consumed = compute_.record();
}

}  // namespace ring
