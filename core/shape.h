#pragma once
// A tensor's shape or strides: at most kMaxDims numbers, stored inline.

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>

#include "core/check.h"

namespace ring {

inline constexpr int kMaxDims = 6;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) {
    for (std::int64_t d : dims) push_back(d);
  }
  int size() const { return size_; }
  std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  std::int64_t& operator[](int i) { return dims_[static_cast<std::size_t>(i)]; }
  const std::int64_t* begin() const { return dims_.data(); }
  const std::int64_t* end() const { return dims_.data() + size_; }
  void push_back(std::int64_t d) {
    RING_CHECK(size_ < kMaxDims, "a tensor has at most ", kMaxDims, " dims");
    dims_[static_cast<std::size_t>(size_++)] = d;
  }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (std::int64_t d : *this) n *= d;
    return n;
  }
  bool operator==(const Shape& o) const { return size_ == o.size_ && std::equal(begin(), end(), o.begin()); }

 private:
  std::array<std::int64_t, kMaxDims> dims_{};
  int size_ = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Shape& s) {
  out << '[';
  for (int i = 0; i < s.size(); ++i) out << (i ? "," : "") << s[i];
  return out << ']';
}

}  // namespace ring
