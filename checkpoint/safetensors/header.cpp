#include "checkpoint/safetensors/header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/checked.h"
#include "core/json.h"
#include "core/yaml.h"

namespace ring {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format's little-endian numbers are copied as they are");

constexpr std::size_t kLengthBytes = 8, kHeaderAlignment = 64;
constexpr const char* kMetadata = "__metadata__";

std::int64_t element_bytes(const std::string& type) {
  static const std::map<std::string, std::int64_t> sizes = {
      {"BOOL", 1},        {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1},
      {"F8_E5M2FNUZ", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},     {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},         {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8}};
  const auto found = sizes.find(type);
  if (found == sizes.end()) fail("its type '", shown(type), "' is not supported");
  return found->second;
}

json parse(std::string_view text) {
  if (!text.starts_with('{')) fail("it does not begin with '{'");
  return parse_json<json>(text, {.depth = 4, .duplicate_keys = DuplicateKeys::refused});
}

template <class T>
T natural_number(const json& j) {
  if (!j.is_number_unsigned() || !std::in_range<T>(j.get<std::uint64_t>()))
    fail(shown(j.dump()), " is not a whole number from 0 to ", std::numeric_limits<T>::max());
  return static_cast<T>(j.get<std::uint64_t>());
}

const json& entry(const json& j, const char* key) {
  const auto found = j.find(key);
  if (found == j.end()) fail("it has no ", key);
  return *found;
}

const json& list(const json& j, const char* key) {
  const json& found = entry(j, key);
  if (!found.is_array()) fail("its ", key, " is ", shown(found.dump()), ", expected a list of numbers");
  return found;
}

std::string type_in(const json& j) {
  const json& type = entry(j, "dtype");
  if (!type.is_string()) fail("its dtype is ", shown(type.dump()), ", expected a string");
  return type.get<std::string>();
}

void check_size(const SafeTensor& t) {
  std::int64_t bytes = element_bytes(t.type);
  bool countable = true, empty = false;
  for (const std::int64_t d : t.shape) {
    empty |= d == 0;
    countable &= d == 0 || !__builtin_mul_overflow(bytes, d, &bytes);
  }
  if (!countable) fail("its shape ", text_of(t), " is larger than any memory");
  const std::uint64_t wanted = empty ? 0 : static_cast<std::uint64_t>(bytes);
  if (t.end - t.begin != wanted)
    fail(text_of(t), " has ", wanted, " bytes, but its data_offsets are ", t.end - t.begin, " apart");
}

SafeTensor tensor_in(const json& j) {
  if (!j.is_object()) fail("it is ", shown(j.dump()), ", expected an object");
  SafeTensor t{type_in(j), {}, 0, 0};
  for (const json& d : list(j, "shape")) t.shape.push_back(natural_number<std::int64_t>(d));
  const json& offsets = list(j, "data_offsets");
  if (offsets.size() != 2) fail("its data_offsets have ", offsets.size(), " numbers, expected 2");
  t.begin = natural_number<std::uint64_t>(offsets[0]);
  t.end = natural_number<std::uint64_t>(offsets[1]);
  if (t.begin > t.end) fail("its data_offsets ", shown(offsets.dump()), " end before they begin");
  check_size(t);
  return t;
}

std::map<std::string, std::string> metadata_in(const json& j) {
  if (!j.is_object()) fail(kMetadata, " is ", shown(j.dump()), ", expected an object");
  std::map<std::string, std::string> texts;
  for (const auto& [key, value] : j.items()) {
    if (!value.is_string()) fail(kMetadata, ": ", shown(key), " is ", shown(value.dump()), ", expected a string");
    texts[key] = value.get<std::string>();
  }
  return texts;
}

void add_tensor(SafetensorsHeader& header, const std::string& name, const json& j) {
  try {
    header.tensors[name] = tensor_in(j);
  } catch (const Error& e) {
    fail("tensor '", shown(name), "': ", e.what());
  }
}

// Checks that every byte after the header belongs to exactly one tensor.
void check_places(const SafetensorsHeader& header, std::uint64_t data) {
  std::vector<std::pair<const SafeTensor*, const std::string*>> all;
  for (const auto& [name, t] : header.tensors) all.emplace_back(&t, &name);
  std::ranges::sort(all, {}, [](const auto& t) { return std::pair(t.first->begin, t.first->end); });
  std::uint64_t at = 0;
  for (const auto& [t, name] : all) {
    if (t->begin < at)
      fail("tensor '", *name, "' begins at byte ", t->begin, ", inside the tensor before it, which ends at ", at);
    if (t->begin > at)
      fail("the bytes from ", at, " to ", t->begin, ", before tensor '", *name, "', belong to no tensor");
    at = t->end;
  }
  if (at > data)
    fail("its tensors end at byte ", at, " after the header, but the file ends at ", data, ": it was truncated");
  if (at < data) fail("its tensors end at byte ", at, " after the header, but ", data - at, " more bytes follow");
}

}  // namespace

std::string text_of(const SafeTensor& t) {
  std::string text = t.type + "[";
  for (std::size_t i = 0; i < t.shape.size(); ++i) text += str(i ? "," : "", t.shape[i]);
  return text + "]";
}

SafetensorsHeader parse_safetensors(std::string_view file) {
  std::uint64_t length = 0;
  if (file.size() < kLengthBytes) fail("is not a safetensors file: it has ", file.size(), " bytes");
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxSafetensorsHeader)
    fail("is not a safetensors file, or is damaged: its header would have ", length, " bytes, but at most ",
         kMaxSafetensorsHeader, " are allowed");
  if (length > file.size() - kLengthBytes)
    fail("was truncated: its header has ", length, " bytes, but the file has ", file.size());
  SafetensorsHeader header;
  header.bytes = kLengthBytes + length;
  try {
    const json j = parse(file.substr(kLengthBytes, length));
    for (const auto& [name, value] : j.items()) {
      if (name == kMetadata)
        header.metadata = metadata_in(value);
      else
        add_tensor(header, name, value);
    }
    check_places(header, file.size() - header.bytes);
  } catch (const Error& e) {
    fail("has a header that cannot be read: ", e.what());
  }
  return header;
}

std::string safetensors_header(const std::vector<std::pair<std::string, SafeTensor>>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json j;
  if (!metadata.empty()) j[kMetadata] = metadata;
  for (const auto& [name, t] : tensors)
    j[name] = {{"dtype", t.type}, {"shape", t.shape}, {"data_offsets", {t.begin, t.end}}};
  std::string text = j.dump();
  const std::size_t used = (kLengthBytes + text.size()) % kHeaderAlignment;
  text.append(used ? kHeaderAlignment - used : 0, ' ');
  const std::uint64_t length = text.size();
  if (length > kMaxSafetensorsHeader)
    fail("the header of ", tensors.size(), " tensors has ", length, " bytes, but at most ", kMaxSafetensorsHeader,
         " are allowed");
  std::string out(kLengthBytes, '\0');
  std::memcpy(out.data(), &length, kLengthBytes);
  return out + text;
}

}  // namespace ring
