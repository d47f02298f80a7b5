#include "core/tensor.h"

namespace ring {
namespace {

Shape packed_strides(const Shape& shape) {
  Shape strides = shape;
  std::int64_t step = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

// Returns the bytes of a new tensor. Throws Error if a dim is negative or the size exceeds 64 bits.
std::size_t checked_bytes(const Shape& shape, DType dtype) {
  std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  for (std::int64_t d : shape) {
    RING_CHECK(d >= 0, "negative dim in shape ", shape);
    if (__builtin_mul_overflow(bytes, d, &bytes))
      fail("a tensor of shape ", shape, " has more bytes than fit into 64 bits");
  }
  return static_cast<std::size_t>(bytes);
}

}  // namespace

Tensor Tensor::wrap(std::shared_ptr<Storage> storage, const Shape& shape, DType dtype) {
  const std::size_t bytes = checked_bytes(shape, dtype);
  RING_CHECK(bytes <= storage->bytes(), "a ", dtype, shape, " tensor needs ", bytes, " bytes, but the storage has ",
             storage->bytes());
  Tensor t;
  t.storage_ = std::move(storage);
  t.shape_ = shape;
  t.strides_ = packed_strides(shape);
  t.dtype_ = dtype;
  return t;
}

Tensor Tensor::with_storage(std::shared_ptr<Storage> storage) const {
  Tensor t = *this;
  t.storage_ = std::move(storage);
  return t;
}

Tensor Tensor::empty(const Shape& shape, DType dtype, const Stream& stream, Lifetime lifetime) {
  const std::size_t bytes = checked_bytes(shape, dtype);
  return wrap(std::make_shared<Storage>(bytes, stream.device(), stream.allocator(), lifetime), shape, dtype);
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, const Stream& stream, Lifetime lifetime) {
  Tensor t = empty(shape, dtype, stream, lifetime);
  fill_zero(t, stream);
  return t;
}

bool Tensor::is_contiguous() const {
  std::int64_t step = 1;
  for (int i = shape_.size() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != step) return false;
    step *= shape_[i];
  }
  return true;
}

Tensor Tensor::view(const Shape& wanted) const {
  RING_CHECK(is_contiguous(), "view needs a contiguous tensor, got shape ", shape_, " with strides ", strides_);
  Shape shape = wanted;
  int open = -1;
  std::int64_t known = 1;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] == -1) {
      RING_CHECK(open == -1, "more than one -1 in view ", wanted);
      open = i;
    } else {
      RING_CHECK(shape[i] >= 0, "negative dim in view ", wanted);
      known *= shape[i];
    }
  }
  if (open >= 0) shape[open] = known ? numel() / known : 0;
  RING_CHECK(shape.numel() == numel(), "view of ", shape_, " as ", wanted, ": element counts differ");
  Tensor t = *this;
  t.shape_ = shape;
  t.strides_ = packed_strides(shape);
  return t;
}

Tensor Tensor::view_as(DType dtype) const {
  const auto from = static_cast<std::int64_t>(size_of(dtype_)), to = static_cast<std::int64_t>(size_of(dtype));
  const int last = shape_.size() - 1;
  RING_CHECK(is_contiguous() && last >= 0 && shape_[last] * from % to == 0 && offset_ * from % to == 0, "view of ",
             dtype_, shape_, " at element ", offset_, " as ", dtype,
             ": the tensor is not contiguous, or its rows or its offset are no whole number of elements");
  Tensor t = *this;
  t.dtype_ = dtype;
  t.shape_[last] = shape_[last] * from / to;
  t.strides_ = packed_strides(t.shape_);
  t.offset_ = offset_ * from / to;
  return t;
}

Tensor Tensor::narrow(int dim, std::int64_t start, std::int64_t length) const {
  if (dim < 0) dim += shape_.size();
  RING_CHECK(dim >= 0 && dim < shape_.size() && start >= 0 && length >= 0 && start + length <= shape_[dim],
             "narrow of ", shape_, " at dim ", dim, " to [", start, ", ", start + length, ")");
  Tensor t = *this;
  t.offset_ += start * strides_[dim];
  t.shape_[dim] = length;
  return t;
}

Tensor Tensor::split_dim(int dim, std::int64_t inner) const {
  if (dim < 0) dim += shape_.size();
  RING_CHECK(dim >= 0 && dim < shape_.size() && inner > 0 && shape_[dim] % inner == 0, "dim ", dim, " of ", shape_,
             " is not divisible by ", inner);
  Tensor t = *this;
  t.shape_ = t.strides_ = Shape{};
  for (int i = 0; i < shape_.size(); ++i) {
    t.shape_.push_back(i == dim ? shape_[i] / inner : shape_[i]);
    t.strides_.push_back(i == dim ? strides_[i] * inner : strides_[i]);
    if (i != dim) continue;
    t.shape_.push_back(inner);
    t.strides_.push_back(strides_[i]);
  }
  return t;
}

void copy(const Tensor& dst, const Tensor& src, const Stream& stream) {
  RING_CHECK(dst.shape() == src.shape() && dst.dtype() == src.dtype(), "copy of ", describe(src), " into ",
             describe(dst));
  RING_CHECK(dst.is_contiguous() && src.is_contiguous(), "copy needs contiguous tensors");
  if (dst.bytes()) stream.impl().copy(dst.raw(), src.raw(), dst.bytes());
}

void fill_zero(const Tensor& t, const Stream& stream) {
  RING_CHECK(t.is_contiguous(), "fill_zero needs a contiguous tensor");
  if (t.bytes()) stream.impl().fill_zero(t.raw(), t.bytes());
}

std::string describe(const Tensor& t) {
  if (!t.defined()) return "undefined tensor";
  return str(t.dtype(), t.shape(), " on ", t.device());
}

}  // namespace ring
