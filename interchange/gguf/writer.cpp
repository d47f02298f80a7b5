#include "interchange/gguf/writer.h"

#include <algorithm>
#include <type_traits>

#include "core/check.h"

namespace ring {
namespace {

constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kAlignment = 32;
constexpr std::size_t kChunk = 1 << 20;  // values that are rounded at a time; a multiple of kQ8Block

// Numbers of the value types in a header.
enum class ValueType : std::uint32_t { i32 = 5, u32 = 4, f32 = 6, boolean = 7, text = 8, list = 9 };

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class Header {
 public:
  template <class T>
  void add(T number) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void add(const std::string& text) {
    add(static_cast<std::uint64_t>(text.size()));
    bytes_ += text;
  }
  void add_value(const GgufValue& value) {
    std::visit([&](const auto& v) { add(type_of(v)), put(v); }, value);
  }
  std::string padded() && {
    bytes_.resize(aligned(bytes_.size()));
    return std::move(bytes_);
  }

 private:
  static ValueType type_of(bool) { return ValueType::boolean; }
  static ValueType type_of(std::int32_t) { return ValueType::i32; }
  static ValueType type_of(std::uint32_t) { return ValueType::u32; }
  static ValueType type_of(float) { return ValueType::f32; }
  static ValueType type_of(const std::string&) { return ValueType::text; }
  template <class T>
  static ValueType type_of(const std::vector<T>&) {
    return ValueType::list;
  }

  template <class T>
  void put(const T& value) {
    add(value);
  }
  template <class T>
  void put(const std::vector<T>& list) {
    add(type_of(T{}));
    add(static_cast<std::uint64_t>(list.size()));
    for (const T& item : list) add(item);
  }

  std::string bytes_;
};

std::uint64_t count_of(const GgufTensor& t) {
  std::uint64_t values = 1;
  for (const std::int64_t d : t.shape) values *= static_cast<std::uint64_t>(d);
  return values;
}

std::string header_of(const GgufKeys& keys, const std::vector<GgufTensor>& tensors) {
  Header h;
  for (const char c : {'G', 'G', 'U', 'F'}) h.add(c);
  h.add(kVersion);
  h.add(static_cast<std::uint64_t>(tensors.size()));
  h.add(static_cast<std::uint64_t>(keys.size()));
  for (const auto& [key, value] : keys) {
    h.add(key);
    h.add_value(value);
  }
  std::uint64_t at = 0;
  for (const GgufTensor& t : tensors) {
    h.add(t.name);
    h.add(static_cast<std::uint32_t>(t.shape.size()));
    for (auto d = t.shape.rbegin(); d != t.shape.rend(); ++d) h.add(static_cast<std::uint64_t>(*d));
    h.add(t.type);
    h.add(at);
    at += aligned(gguf_bytes(t.type, count_of(t)));
  }
  return std::move(h).padded();
}

void write_values(FileHandle& file, const GgufTensor& t, const std::vector<float>& values) {
  RING_CHECK(values.size() == count_of(t), t.name, ": ", values.size(), " values given");
  std::vector<std::byte> bytes(gguf_bytes(t.type, std::min(values.size(), kChunk)));
  for (std::size_t at = 0; at < values.size(); at += kChunk) {
    const std::size_t count = std::min(kChunk, values.size() - at);
    try {
      gguf_round(t.type, values.data() + at, count, bytes.data());
    } catch (const Error& e) {
      fail("tensor '", t.name, "': ", e.what());
    }
    file.write(bytes.data(), gguf_bytes(t.type, count));
  }
  const std::uint64_t written = gguf_bytes(t.type, values.size());
  const std::string padding(aligned(written) - written, '\0');
  file.write(padding.data(), padding.size());
}

}  // namespace

void write_gguf(FileHandle& file, const GgufKeys& keys, const std::vector<GgufTensor>& tensors,
                const std::function<std::vector<float>(std::size_t i)>& values) {
  const std::string header = header_of(keys, tensors);
  file.write(header.data(), header.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) write_values(file, tensors[i], values(i));
}

}  // namespace ring
