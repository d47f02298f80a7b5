#include "checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "checkpoint/reader.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

double number(const std::byte* at, DType type) {
  switch (type) {
    case DType::f32: return *reinterpret_cast<const float*>(at);
    case DType::bf16: return to_float(*reinterpret_cast<const bf16*>(at));
    case DType::i32: return *reinterpret_cast<const std::int32_t*>(at);
    case DType::u8: return std::to_integer<int>(*at);
  }
  return 0;
}

// Compares two tensors, which must have the same type and shape.
void compare_elements(TensorDifference& d, const Tensor& a, const Tensor& b) {
  const std::size_t size = size_of(a.dtype());
  for (std::size_t at = 0; at < a.bytes(); at += size) {
    if (std::memcmp(a.raw() + at, b.raw() + at, size) == 0) continue;
    ++d.elements;
    const double difference = std::abs(number(a.raw() + at, a.dtype()) - number(b.raw() + at, b.dtype()));
    if (!std::isnan(d.largest) && !(difference <= d.largest)) d.largest = difference;  // a NaN is kept
  }
}

Tensor whole(const fs::path& checkpoint, const Manifest& manifest, const std::string& name) {
  const Shape& shape = manifest.tensors.at(name).global_shape;
  Region region{shape, shape};
  for (int i = 0; i < shape.size(); ++i) region.start[i] = 0;
  return read_tensor(checkpoint, manifest, name, region);
}

template <class Map>
std::set<std::string> names_of(const Map& a, const Map& b) {
  std::set<std::string> names;
  for (const Map* map : {&a, &b})
    for (const auto& [name, entry] : *map) names.insert(name);
  return names;
}

TensorDifference compare_tensor(const std::string& name, const fs::path& first, const Manifest& a,
                                const fs::path& second, const Manifest& b) {
  TensorDifference d{name, "", 0, 0};
  const auto one = a.tensors.find(name), other = b.tensors.find(name);
  if (one == a.tensors.end())
    d.kind = "only in the second";
  else if (other == b.tensors.end())
    d.kind = "only in the first";
  else if (one->second.dtype != other->second.dtype || !(one->second.global_shape == other->second.global_shape))
    d.kind = str(one->second.dtype, one->second.global_shape, " and ", other->second.dtype, other->second.global_shape);
  else
    compare_elements(d, whole(first, a, name), whole(second, b, name));
  return d;
}

std::string value_in(const Manifest& m, const std::string& name) {
  const auto value = m.values.find(name);
  if (value == m.values.end()) return "nothing";
  return std::visit([](const auto& v) { return str(v); }, value->second);
}

}  // namespace

CheckpointDifference compare_checkpoints(const fs::path& first, const Manifest& a, const fs::path& second,
                                         const Manifest& b) {
  CheckpointDifference all;
  for (const std::string& name : names_of(a.tensors, b.tensors)) {
    TensorDifference d = compare_tensor(name, first, a, second, b);
    if (!d.kind.empty() || d.elements > 0) all.tensors.push_back(std::move(d));
  }
  for (const std::string& name : names_of(a.values, b.values)) {
    const auto one = a.values.find(name), other = b.values.find(name);
    if (one == a.values.end() || other == b.values.end() ||
        value_to_json(name, one->second) != value_to_json(name, other->second))
      all.values.push_back(str(name, ": ", value_in(a, name), " and ", value_in(b, name)));
  }
  return all;
}

}  // namespace ring
