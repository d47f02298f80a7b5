#pragma once
// BorderOperands of kernels whose offsets pass 2^31 and 2^32 elements, in memory of which only a few pages are touched.
// A test runs an op twice, with compact operands and with these, and compares the results.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/kernel.h"

namespace ring::test {

// Returns zeroed memory of CPUs, of which the system allocates a page when it is first touched. Null if it refuses.
std::shared_ptr<Storage> untouched_pages(std::int64_t bytes);

// Address range of more than 16 GiB. CPUs touch, and so allocate, only the pages that a test uses; on GPUs it is one
// allocation.
class BorderMemory {
 public:
  // Rows are kPitch bytes apart. With bf16, row 64 starts at element 2^31 and row 128 at 2^32; with f32, rows 128 and
  // 256 do. An offset that was truncated to 32 bits thus names a different row.
  static constexpr std::int64_t kRows = 257, kPitch = std::int64_t{1} << 26, kBytes = kRows * kPitch;

  explicit BorderMemory(Device);
  bool exists() const { return storage_ != nullptr; }  // false if the machine does not have the memory

  // Returns columns of the next `width` bytes of every row, as [kRows, width / size].
  Tensor rows(std::int64_t width, DType);
  // Returns a contiguous tensor behind those of earlier calls.
  Tensor contiguous(const Shape&, DType);

 private:
  // The last rows of contiguous tensors are in the first 16 MiB of a pitch, and rows() in the next 16.
  std::int64_t column_ = kPitch / 4, used_ = 0;
  std::shared_ptr<Storage> storage_;
};

enum class Fill : std::uint8_t {
  uniform,   // in [-1, 1]
  positive,  // above 0
  integers,  // from -2 to 2: sums of some hundred products are exact in any order
  zeros,
  ones,
};

// Creates the operands of one run of an op and reads them back. Without `border` all tensors are compact.
class BorderOperands {
 public:
  BorderOperands(const ExecContext& ctx, BorderMemory* border, std::size_t candidate)
      : ctx(ctx), border_(border), candidate_(candidate) {}

  // Each of these three returns a tensor whose values depend on the name, and records it as a result.
  Tensor rows(const std::string& name, const Shape&, DType, Fill = Fill::uniform);  // rows kPitch bytes apart
  Tensor whole(const std::string& name, const Shape&, DType = DType::f32, Fill = Fill::uniform);  // always compact
  // Contiguous rows [first, first + shape[0]) of a tensor with as many rows; `first` counts only with a border.
  Tensor last_rows(const std::string& name, std::int64_t first, const Shape&, DType, Fill = Fill::uniform);
  // As last_rows(), for elements of a flat tensor. The elements before are zeros, which a GPU has to write.
  Tensor last_elements(const std::string& name, std::int64_t first, std::int64_t count, DType, Fill = Fill::uniform);
  // Returns `first` with a border, else 0.
  std::int64_t shifted(std::int64_t first) const { return border_ ? first : 0; }
  // Returns an i32 tensor, which is no result.
  Tensor numbers(const std::vector<std::int32_t>& values) const { return from_host(values, ctx.stream); }

  // Runs the kernel's candidate of this run's number, if there is one that supports the arguments.
  template <class Args>
  void run(const Kernel<Args>& kernel, const Args& args) {
    const auto& all = kernel.candidates(ctx.stream.device().backend);
    has_more_ = candidate_ + 1 < all.size();
    if (candidate_ >= all.size() || (all[candidate_].supports && !all[candidate_].supports(args, ctx))) return;
    name_ = all[candidate_].name;
    all[candidate_].fn(args, ctx);
  }
  std::string_view candidate() const { return name_; }  // the candidate that ran; empty if none did
  bool has_more_candidates() const { return has_more_; }

  struct Result {
    std::string name;
    DType dtype;
    std::vector<unsigned char> before, after;
  };
  std::vector<Result> results() const;

  const ExecContext ctx;

 private:
  struct Operand {
    std::string name;
    Tensor rows;  // rows of contiguous elements
    std::vector<unsigned char> before;
  };
  Tensor record(const std::string& name, const Tensor& rows, Fill);

  BorderMemory* border_;
  std::size_t candidate_;
  std::string_view name_;
  bool has_more_ = false;
  std::vector<Operand> operands_;
};

}  // namespace ring::test
