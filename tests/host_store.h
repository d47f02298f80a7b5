#pragma once
// Saved tensors in a different memory, like those of an activation offload.

#include <cstring>

#include "autograd/tape.h"

namespace ring::test {

class HostStore final : public SavedTensorHooks {
 public:
  std::shared_ptr<SavedStorage> pack(const Tensor& t, const ExecContext& ctx) override {
    ++packed;
    bytes += t.bytes();
    return std::make_shared<HostCopy>(*this, t, ctx);
  }

  int packed = 0, fetched = 0;
  int unannounced = 0;  // fetched without an earlier prefetch
  std::size_t bytes = 0;
  std::function<void()> on_prefetch;

 private:
  class HostCopy final : public SavedStorage {
   public:
    HostCopy(HostStore& store, const Tensor& t, const ExecContext& ctx)
        : store_(store), shape_(t.shape()), type_(t.dtype()), bytes_(t.bytes()) {
      RING_CHECK(t.is_contiguous(), "only whole tensors are saved, not ", describe(t));
      ctx.stream.impl().copy(bytes_.data(), t.raw(), t.bytes());
      ctx.stream.synchronize();
    }
    void prefetch(const ExecContext& ctx) override {
      if (back_.defined()) return;
      back_ = ctx.empty(shape_, type_);
      ctx.stream.impl().copy(back_.raw(), bytes_.data(), bytes_.size());
      if (store_.on_prefetch) store_.on_prefetch();
    }
    Tensor get(const ExecContext& ctx) override {
      store_.unannounced += !back_.defined();
      ++store_.fetched;
      prefetch(ctx);
      return back_;
    }

   private:
    HostStore& store_;
    Shape shape_;
    DType type_;
    std::vector<std::byte> bytes_;
    Tensor back_;
  };
};

}  // namespace ring::test
