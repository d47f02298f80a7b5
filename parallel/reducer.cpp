#include "parallel/reducer.h"

#include <chrono>
#include <utility>

namespace ring {

Reducer::Reducer(Communicator& comm, Stream compute, std::vector<Bucket> buckets, const GradientTravel& travel)
    : comm_(comm), compute_{std::move(compute)}, travel_(travel), buckets_(std::move(buckets)) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::size_t i = 0; i < buckets_[b].slots.size(); ++i) {
      GradSlot& slot = *buckets_[b].slots[i];
      RING_CHECK(slot.bound, "reducer: slot ", i, " of bucket ", b, " is not bound to its bucket");
      RING_CHECK(!slot.on_ready, "reducer: slot ", i, " of bucket ", b, " already has an owner");
      slot.on_ready = [this, b, i] { on_ready(b, i); };
    }
  }
  reset();
}

Reducer::~Reducer() {
  for (Bucket& bucket : buckets_)
    for (SlotPtr& slot : bucket.slots) slot->on_ready = nullptr;
}

void Reducer::reset() {
  ready_.clear();
  missing_.clear();
  for (const Bucket& bucket : buckets_) {
    ready_.emplace_back(bucket.slots.size(), false);
    missing_.push_back(bucket.slots.size());
  }
  sums_.clear();
  next_ = 0;
}

void Reducer::on_ready(std::size_t bucket, std::size_t index) {
  RING_CHECK(!ready_[bucket][index], "reducer: gradient ", index, " of bucket ", bucket,
             " was completed twice in one step; call finish() after the last micro-batch");
  ready_[bucket][index] = true;
  GradSlot& slot = *buckets_[bucket].slots[index];
  // If no gradient was written, the parameter was used without an effect on the loss: its gradient is zero.
  if (!std::exchange(slot.written, true)) fill_zero(slot.grad, compute_.stream);
  --missing_[bucket];
  while (next_ < buckets() && missing_[static_cast<std::size_t>(next_)] == 0) start_next();
}

void Reducer::start_next() {
  const Bucket& bucket = buckets_[static_cast<std::size_t>(next_)];
  // A compressed sum has a second exchange of messages, which also overlaps with backward if it starts here.
  if (travel_.compressor && !sums_.empty()) sums_.back().advance(compute_);
  sums_.emplace_back(comm_, compute_, bucket.grad, bucket.pieces, travel_);
  ++next_;
}

void Reducer::finish() {
  overlapped_ = next_;
  for (Bucket& bucket : buckets_)
    for (SlotPtr& slot : bucket.slots)
      if (!std::exchange(slot->written, true)) fill_zero(slot->grad, compute_.stream);
  while (next_ < buckets()) start_next();
  const auto before = std::chrono::steady_clock::now();
  for (bool under_way = true; under_way;) {
    under_way = false;
    for (GradientSum& sum : sums_) under_way |= sum.advance(compute_);
  }
  wait_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
  reset();
}

}  // namespace ring
