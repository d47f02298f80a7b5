// Safetensors files are written and read again, and damage is named.

#include <array>
#include <cmath>
#include <limits>

#include "checkpoint/files.h"
#include "checkpoint/safetensors/float_type.h"
#include "checkpoint/safetensors/header.h"
#include "checkpoint/safetensors/reader.h"
#include "checkpoint/safetensors/writer.h"
#include "tests/checkpoint/fixture.h"

namespace ring::test {
namespace {

std::string file_of(const std::string& json, std::size_t data) {
  std::uint64_t length = json.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + json + std::string(data, 'x');
}

std::string entry(const std::string& name, const std::string& type, const std::string& shape, int begin, int end) {
  return str("\"", name, "\":{\"dtype\":\"", type, "\",\"shape\":", shape, ",\"data_offsets\":[", begin, ",", end,
             "]}");
}

std::string refusal(const std::string& json, std::size_t data) {
  const std::string file = file_of(json, data);
  return error_of([&] { parse_safetensors(file); });
}

TEST(SafetensorsHeader, ReadsWhatTheFormatAllows) {
  // The file is made by hand from the format's definition: a scalar, an empty tensor, a different type, and spaces
  // after the JSON.
  const std::string json = "{" + entry("b", "F32", "[]", 0, 4) + "," + entry("a", "BF16", "[2,3]", 4, 16) + "," +
                           entry("none", "F32", "[3,0]", 16, 16) + "," + entry("ids", "I64", "[1]", 16, 24) +
                           R"(,"__metadata__":{"format":"pt"}}     )";
  const SafetensorsHeader h = parse_safetensors(file_of(json, 24));
  EXPECT_EQ(h.bytes, 8 + json.size());
  EXPECT_EQ(h.tensors.size(), 4u);
  EXPECT_EQ(text_of(h.tensors.at("a")), "BF16[2,3]");
  EXPECT_EQ(h.tensors.at("a").begin, 4u);
  EXPECT_EQ(text_of(h.tensors.at("b")), "F32[]");
  EXPECT_EQ(h.metadata.at("format"), "pt");
}

TEST(SafetensorsHeader, NamesDamage) {
  const std::string a = entry("a", "F32", "[2]", 0, 8);
  const auto expect = [](const std::string& json, std::size_t data, const std::string& part) {
    EXPECT_TRUE(contains(refusal(json, data), part)) << json << ": " << refusal(json, data);
  };
  expect("[]", 0, "does not begin with '{'");
  expect("{" + a, 8, "parse error at line 1");
  expect("{" + a + "," + a + "}", 8, "the key 'a' twice");
  expect(R"({"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}})", 8, "the key 'shape' twice");
  expect(R"({"a":{"b":{"c":{"d":{"e":{}}}}}})", 0, "more than 4 levels deep");
  expect(R"({"a":3})", 0, "tensor 'a': it is 3");
  expect(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8, "tensor 'a': it has no dtype");
  expect("{" + entry("a", "F31", "[2]", 0, 8) + "}", 8, "type 'F31' is not supported");
  expect("{" + entry("a", "F32", "[-2]", 0, 8) + "}", 8, "-2 is not a whole number");
  expect("{" + entry("a", "F32", "[2.0]", 0, 8) + "}", 8, "2.0 is not a whole number");
  expect("{" + entry("a", "F32", "[3]", 0, 8) + "}", 8, "F32[3] has 12 bytes, but its data_offsets are 8");
  expect("{" + entry("a", "F32", "[4611686018427387904,4]", 0, 0) + "}", 0, "larger than any memory");
  expect("{" + entry("a", "F32", "[4611686018427387904,4,0]", 0, 0) + "}", 0, "larger than any memory");
  expect("{" + entry("a", "F32", "[2]", 8, 0) + "}", 8, "end before they begin");
  expect("{" + a + "," + entry("b", "F32", "[2]", 4, 12) + "}", 12, "tensor 'b' begins at byte 4, inside");
  expect("{" + a + "," + entry("b", "F32", "[2]", 12, 20) + "}", 20, "bytes from 8 to 12, before tensor 'b'");
  expect("{" + a + "}", 7, "it was truncated");
  expect("{" + a + "}", 9, "1 more bytes follow");
  expect(R"({"__metadata__":{"a":1}})", 0, "__metadata__: a is 1");
}

TEST(SafetensorsHeader, BoundsItsLength) {
  EXPECT_TRUE(contains(error_of([] { parse_safetensors("1234567"); }), "it has 7 bytes"));
  std::string file = file_of("{}", 0);
  for (const std::uint64_t length :
       {std::uint64_t{3}, kMaxSafetensorsHeader, kMaxSafetensorsHeader + 1, ~std::uint64_t{0}}) {
    std::memcpy(file.data(), &length, 8);
    EXPECT_NE(error_of([&] { parse_safetensors(file); }), "") << length;
  }
}

TEST(SafetensorsFloats, HalvesAreExact) {
  // The definition is that of IEEE 754's binary16: 1 bit of sign, 5 of exponent, 10 of fraction.
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value = 0, expected = exponent ? std::ldexp(1024.0f + static_cast<float>(fraction), exponent - 25)
                                         : std::ldexp(static_cast<float>(fraction), -24);
    if (exponent == 31) continue;
    if (bits >> 15) expected = -expected;
    widen(FloatType::f16, reinterpret_cast<const std::byte*>(&half), 1, &value);
    ASSERT_EQ(value, expected) << bits;
    std::uint16_t back = 0;
    round_to(FloatType::f16, &value, 1, reinterpret_cast<std::byte*>(&back));
    ASSERT_EQ(back, half);
  }
}

TEST(SafetensorsFloats, FindsValuesThatAreNotFinite) {
  for (const FloatType type : {FloatType::bf16, FloatType::f16})
    for (int bits = 0; bits < 1 << 16; ++bits) {
      std::array<std::uint16_t, 37> values{};
      values[static_cast<std::size_t>(bits) % values.size()] = static_cast<std::uint16_t>(bits);
      const int full = type == FloatType::f16 ? 0x7C00 : 0x7F80;
      const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
      ASSERT_EQ(all_finite(type, bytes, values.size()), (bits & full) != full) << bits;
    }
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
    std::array<float, 37> values{};
    values.fill(std::numeric_limits<float>::max());
    EXPECT_TRUE(all_finite(FloatType::f32, reinterpret_cast<const std::byte*>(values.data()), values.size()));
    values[35] = bad;
    EXPECT_FALSE(all_finite(FloatType::f32, reinterpret_cast<const std::byte*>(values.data()), values.size()));
  }
}

TEST(SafetensorsFloats, RoundsToEvenAndRefusesValuesThatDoNotFit) {
  const auto f16 = [](float x) {
    std::uint16_t half = 0;
    round_to(FloatType::f16, &x, 1, reinterpret_cast<std::byte*>(&half));
    return half;
  };
  EXPECT_EQ(f16(1.0f + 0x1p-11f), 0x3c00);      // halfway: to even, down
  EXPECT_EQ(f16(1.0f + 3 * 0x1p-11f), 0x3c02);  // halfway: to even, up
  EXPECT_EQ(f16(65519.996f), 0x7bff);           // the largest value that rounds to 65504
  EXPECT_TRUE(contains(error_of([&] { f16(65520.0f); }), "65520 is outside the range of F16"));
  EXPECT_EQ(f16(std::numeric_limits<float>::infinity()), 0x7c00);
}

std::vector<float> values_of(std::size_t i, std::size_t count) {
  std::vector<float> v(count);
  for (std::size_t k = 0; k < count; ++k) v[k] = static_cast<float>(i) + static_cast<float>(k) / 64.0f;
  return v;
}

const std::vector<OutputTensor> kTensors = {{"z", {4, 8}}, {"a.weight", {3}}, {"m", {}}, {"big", {16, 8}}};
constexpr std::size_t kCounts[] = {32, 3, 1, 128};

void write_some(const fs::path& folder, FloatType type, std::uint64_t most) {
  write_safetensors(folder, kTensors, {type, most}, [](std::size_t i) { return values_of(i, kCounts[i]); });
}

TEST(Safetensors, WritesAndReadsOneFile) {
  for (const FloatType type : {FloatType::f32, FloatType::f16, FloatType::bf16}) {
    const TempFolder folder;
    write_some(folder.path(), type, 1 << 20);
    EXPECT_FALSE(fs::exists(folder.path() / kSafetensorsIndex));
    const Safetensors read(folder.path());
    EXPECT_EQ(read.names(), (std::vector<std::string>{"a.weight", "big", "m", "z"}));
    for (std::size_t i = 0; i < 4 && type != FloatType::bf16; ++i)
      EXPECT_EQ(read.values(kTensors[i].name), values_of(i, kCounts[i])) << kTensors[i].name;
    EXPECT_EQ(text_of(read.tensor("z")), str(safetensors_name(type), "[4,8]"));
  }
}

TEST(Safetensors, WritesAndReadsSeveralFiles) {
  const TempFolder folder;
  write_some(folder.path(), FloatType::f32, 144);
  for (const char* name : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"})
    EXPECT_TRUE(fs::exists(folder.path() / name)) << name;
  const Safetensors read(folder.path());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(read.values(kTensors[i].name), values_of(i, kCounts[i]));
  EXPECT_EQ(read.file_of("big").filename(), "model-00002-of-00002.safetensors");
}

TEST(Safetensors, NamesProblemsOfAFolder) {
  const TempFolder folder;
  const auto error = [&] { return error_of([&] { Safetensors{folder.path()}; }); };
  EXPECT_TRUE(contains(error(), "holds neither model.safetensors nor model.safetensors.index.json")) << error();
  std::ofstream(folder.path() / "pytorch_model.bin") << "x";
  EXPECT_TRUE(contains(error(), "save_pretrained(OTHER)")) << error();
  write_some(folder.path(), FloatType::f32, 144);
  const fs::path second = folder.path() / "model-00002-of-00002.safetensors", index = folder.path() / kSafetensorsIndex;
  const std::string good = read_text(index);
  const auto with_index = [&](const std::string& text) {
    replace_text(index, text);
    return error();
  };
  EXPECT_TRUE(contains(with_index("{}"), "weight_map: expected a file name")) << error();
  EXPECT_TRUE(contains(with_index(R"({"weight_map":{"a":"../x"}})"), "'../x' is not the name")) << error();
  EXPECT_TRUE(contains(with_index(R"({"weight_map":{"a":3}})"), "weight_map")) << error();
  std::string more = good;
  more.insert(more.find("\"z\""), "\"y\": \"model-00001-of-00002.safetensors\", ");
  EXPECT_TRUE(contains(with_index(more), "tensor 'y' is not in model-00001")) << error();
  std::string fewer = good;
  fewer.erase(fewer.find("\"m\""), fewer.find("\"big\"") - fewer.find("\"m\""));
  EXPECT_TRUE(contains(with_index(fewer), "tensor 'm' of ")) << error();
  replace_text(index, good);
  EXPECT_EQ(error(), "");
  fs::resize_file(second, fs::file_size(second) - 1);
  EXPECT_TRUE(contains(error(), "truncated") && contains(error(), second.string())) << error();
  fs::remove(second);
  EXPECT_TRUE(contains(error(), second.string())) << error();
}

TEST(Safetensors, RefusesOtherTypes) {
  const TempFolder folder;
  std::ofstream(folder.path() / kSafetensorsName, std::ios::binary)
      << file_of("{" + entry("a", "I64", "[1]", 0, 8) + "}", 8);
  const Safetensors read(folder.path());
  EXPECT_TRUE(contains(error_of([&] { read.values("a"); }), "tensor 'a' is I64[1]"));
  EXPECT_TRUE(contains(error_of([&] { read.values("b"); }), "has no tensor 'b'"));
}

TEST(Safetensors, NamesAValueThatDoesNotFit) {
  const TempFolder folder;
  const std::string error = error_of([&] {
    write_safetensors(folder.path(), {{"w", {1}}}, {FloatType::f16, 100},
                      [](std::size_t) { return std::vector{1e6f}; });
  });
  EXPECT_TRUE(contains(error, "tensor 'w': 1e+06 is outside the range")) << error;
}

}  // namespace
}  // namespace ring::test
