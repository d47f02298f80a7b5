#pragma once
// A tensor is plain data: shape and strides over shared storage. Copies share the storage. Gradients are stored
// elsewhere.

#include <memory>
#include <string>
#include <vector>

#include "core/shape.h"
#include "core/storage.h"
#include "core/stream.h"

namespace ring {

class Tensor {
 public:
  Tensor() = default;  // undefined
  // Returns a contiguous tensor with unspecified contents.
  static Tensor empty(const Shape&, DType, const Stream&, Lifetime = Lifetime::step);
  static Tensor zeros(const Shape&, DType, const Stream&, Lifetime = Lifetime::step);
  static Tensor wrap(std::shared_ptr<Storage>, const Shape&, DType);  // returns a contiguous view of existing bytes

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }  // strides in elements
  std::int64_t dim(int i) const { return shape_[i < 0 ? i + shape_.size() : i]; }
  std::int64_t stride(int i) const { return strides_[i < 0 ? i + strides_.size() : i]; }
  DType dtype() const { return dtype_; }
  Device device() const { return storage_->device(); }
  std::int64_t numel() const { return shape_.numel(); }
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype_); }
  bool is_contiguous() const;
  const std::shared_ptr<Storage>& storage() const { return storage_; }
  bool unique() const { return storage_.use_count() == 1; }  // true if no other tensor shares the bytes

  Tensor view(const Shape&) const;  // shares the bytes; requires a contiguous tensor; one dim may be -1
  // Returns the bytes of a contiguous tensor as elements of a different type; only the last dim changes.
  Tensor view_as(DType) const;
  Tensor narrow(int dim, std::int64_t start, std::int64_t length) const;
  Tensor split_dim(int dim, std::int64_t inner) const;  // [.., n, ..] -> [.., n / inner, inner, ..], any strides

  // Returns the same view of a different storage of at least the same size. Null leaves only shape and dtype.
  Tensor with_storage(std::shared_ptr<Storage>) const;

  template <class T>
  T* data() const {
    RING_CHECK(defined(), "data() of an undefined tensor");
    RING_CHECK(dtype_ == DTypeOf<T>::value, "a tensor of ", dtype_, " was read as ", DTypeOf<T>::value);
    return reinterpret_cast<T*>(raw());
  }
  std::byte* raw() const {
    return static_cast<std::byte*>(storage_->data()) + offset_ * static_cast<std::int64_t>(size_of(dtype_));
  }

 private:
  std::shared_ptr<Storage> storage_;
  Shape shape_, strides_;
  std::int64_t offset_ = 0;  // offset in elements
  DType dtype_ = DType::f32;
};

// Copies on `stream`. Requires the same shape and dtype, contiguous tensors, and devices that `stream` can access.
void copy(const Tensor& dst, const Tensor& src, const Stream& stream);
void fill_zero(const Tensor& t, const Stream& stream);
std::string describe(const Tensor&);  // e.g. "f32[3,4] on cpu:0"

// from_host() copies a vector to a new tensor [n]. to_host() copies a contiguous tensor to a flat vector, and blocks
// until the copy is done. Both work on any device.
template <class T>
Tensor from_host(const std::vector<T>& host, const Stream& stream, Lifetime lifetime = Lifetime::step) {
  Tensor t = Tensor::empty({static_cast<std::int64_t>(host.size())}, DTypeOf<T>::value, stream, lifetime);
  if (t.bytes()) stream.impl().copy(t.raw(), host.data(), t.bytes());
  return t;
}
template <class T>
std::vector<T> to_host(const Tensor& t, const Stream& stream) {
  RING_CHECK(t.is_contiguous() && t.dtype() == DTypeOf<T>::value,
             "to_host needs a contiguous tensor of its dtype, got shape ", t.shape());
  std::vector<T> host(static_cast<std::size_t>(t.numel()));
  if (t.bytes()) stream.impl().copy(host.data(), t.raw(), t.bytes());
  stream.synchronize();
  return host;
}

}  // namespace ring
