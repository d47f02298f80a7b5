#include "tests/kernels/border_operands.h"

#include <sys/mman.h>

#include <cmath>
#include <cstring>

#include "tests/op_case.h"

namespace ring::test {
namespace {

std::shared_ptr<Storage> device_memory(std::int64_t bytes, Device device) {
  const Stream stream = Stream::create(device);
  try {
    auto storage =
        std::make_shared<Storage>(static_cast<std::size_t>(bytes), device, stream.allocator(), Lifetime::run);
    stream.synchronize();  // other streams use it
    return storage;
  } catch (const OutOfMemory&) {
    return nullptr;
  }
}

double filled(double value, Fill fill) {
  switch (fill) {
    case Fill::uniform: return value;
    case Fill::positive: return std::abs(value) + 0.01;
    case Fill::integers: return std::round(2 * value);
    case Fill::zeros: return 0;
    case Fill::ones: return 1;
  }
  return 0;
}

template <class T>
std::vector<unsigned char> bytes_of(const Values& values, T (*convert)(double)) {
  std::vector<unsigned char> bytes(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T x = convert(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &x, sizeof x);
  }
  return bytes;
}

std::vector<unsigned char> make_bytes(const std::string& name, std::int64_t n, DType dtype, Fill fill) {
  Values values = random_values(name, n);
  for (double& v : values) v = filled(v, fill);
  switch (dtype) {
    case DType::f32: return bytes_of<float>(values, [](double v) { return static_cast<float>(v); });
    case DType::bf16: return bytes_of<bf16>(values, [](double v) { return to_bf16(static_cast<float>(v)); });
    case DType::i32: return bytes_of<std::int32_t>(values, [](double v) { return static_cast<std::int32_t>(v); });
    case DType::u8:
      return bytes_of<unsigned char>(values, [](double v) { return static_cast<unsigned char>(8 * std::abs(v)); });
  }
  return {};
}

// Calls fn(address, first byte among all, bytes) for each row, which must be contiguous.
template <class Fn>
void for_rows(const Tensor& t, const Fn& fn) {
  const std::int64_t rows = t.is_contiguous() ? 1 : t.dim(0);
  const auto bytes = static_cast<std::int64_t>(t.bytes()) / std::max<std::int64_t>(1, rows);
  for (std::int64_t r = 0; r < rows; ++r)
    fn(t.narrow(0, rows == 1 ? 0 : r, rows == 1 ? t.dim(0) : 1).raw(), static_cast<std::size_t>(r * bytes),
       static_cast<std::size_t>(bytes));
}

}  // namespace

std::shared_ptr<Storage> untouched_pages(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  void* const p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  madvise(p, size, MADV_NOHUGEPAGE);  // a huge page for each row would be half a gigabyte
  return std::make_shared<Storage>(p, size, Device{Backend::cpu, 0},
                                   std::shared_ptr<void>(p, [size](void* q) { munmap(q, size); }));
}

BorderMemory::BorderMemory(Device device)
    : storage_(device.backend == Backend::cpu ? untouched_pages(kBytes) : device_memory(kBytes, device)) {}

Tensor BorderMemory::rows(std::int64_t width, DType dtype) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t first = column_;
  column_ += (width + 255) / 256 * 256;
  RING_CHECK(column_ <= kPitch / 2, "border memory: the rows of a test are too long");
  return Tensor::wrap(storage_, {kRows, kPitch / size}, dtype).narrow(1, first / size, width / size);
}

Tensor BorderMemory::contiguous(const Shape& shape, DType dtype) {
  const std::int64_t bytes = (shape.numel() * static_cast<std::int64_t>(size_of(dtype)) + 4095) / 4096 * 4096;
  RING_CHECK(used_ + bytes <= kBytes, "border memory: the tensors of a test are too large");
  const Tensor all = Tensor::wrap(storage_, {kBytes}, DType::u8).narrow(0, used_, bytes);
  used_ += bytes;
  return all.view_as(dtype).narrow(0, 0, shape.numel()).view(shape);
}

Tensor BorderOperands::record(const std::string& name, const Tensor& rows, Fill fill) {
  const Operand& o = operands_.emplace_back(Operand{name, rows, make_bytes(name, rows.numel(), rows.dtype(), fill)});
  for_rows(rows, [&](std::byte* p, std::size_t at, std::size_t bytes) {
    ctx.stream.impl().copy(p, o.before.data() + at, bytes);
  });
  ctx.stream.synchronize();
  return rows;
}

Tensor BorderOperands::rows(const std::string& name, const Shape& shape, DType dtype, Fill fill) {
  if (!border_) return whole(name, shape, dtype, fill);
  const std::int64_t width = shape.numel() / shape[0];
  Tensor t = border_->rows(width * static_cast<std::int64_t>(size_of(dtype)), dtype).narrow(0, 0, shape[0]);
  if (shape.size() == 3) t = t.split_dim(1, shape[2]);
  return record(name, t, fill);
}

Tensor BorderOperands::whole(const std::string& name, const Shape& shape, DType dtype, Fill fill) {
  return record(name, ctx.empty(shape, dtype), fill);
}

Tensor BorderOperands::last_rows(const std::string& name, std::int64_t first, const Shape& shape, DType dtype,
                                 Fill fill) {
  if (!border_) return whole(name, shape, dtype, fill);
  Shape all = shape;
  all[0] += first;
  const Tensor t = border_->contiguous(all, dtype);
  record(name, t.narrow(0, first, shape[0]), fill);
  return t;
}

Tensor BorderOperands::last_elements(const std::string& name, std::int64_t first, std::int64_t count, DType dtype,
                                     Fill fill) {
  if (!border_) return whole(name, {count}, dtype, fill);
  const Tensor t = border_->contiguous({first + count}, dtype);
  fill_zero(t, ctx.stream);
  record(name, t.narrow(0, first, count), fill);
  return t;
}

std::vector<BorderOperands::Result> BorderOperands::results() const {
  std::vector<Result> results;
  for (const Operand& o : operands_) {
    Result& r = results.emplace_back(Result{o.name, o.rows.dtype(), o.before, o.before});
    for_rows(o.rows, [&](std::byte* p, std::size_t at, std::size_t bytes) {
      ctx.stream.impl().copy(r.after.data() + at, p, bytes);
    });
  }
  ctx.stream.synchronize();
  return results;
}

}  // namespace ring::test
