#include "core/tensorboard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "core/check.h"
#include "core/fields.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

// A bitwise CRC, which with the reader below checks the writer independently.
std::uint32_t slow_crc32c(const std::string& bytes) {
  std::uint32_t crc = 0xffffffffu;
  for (const char b : bytes) {
    crc ^= static_cast<unsigned char>(b);
    for (int i = 0; i < 8; ++i) crc = (crc & 1) ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
  }
  return ~crc;
}
std::uint32_t unmasked(std::uint32_t m) {
  m -= 0xa282ead8u;
  return (m << 15) | (m >> 17);
}

template <class T>
T load(const std::string& bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// Splits a file into its records. Fails the test at the first wrong checksum.
std::vector<std::string> records(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(stream), {});
  std::vector<std::string> out;
  for (std::size_t at = 0; at < bytes.size();) {
    if (at + 12 > bytes.size()) return ADD_FAILURE() << "torn header", out;
    const auto length = load<std::uint64_t>(bytes, at);
    EXPECT_EQ(unmasked(load<std::uint32_t>(bytes, at + 8)), slow_crc32c(bytes.substr(at, 8)));
    if (at + 16 + length > bytes.size()) return ADD_FAILURE() << "torn record", out;
    out.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(unmasked(load<std::uint32_t>(bytes, at + 12 + length)), slow_crc32c(out.back()));
    at += 16 + length;
  }
  return out;
}

struct Payload {
  std::uint64_t number = 0;  // value of a varint or of a fixed-size field
  std::string bytes;
};

std::uint64_t varint(const std::string& bytes, std::size_t& at) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto b = static_cast<unsigned char>(bytes.at(at++));
    value |= static_cast<std::uint64_t>(b & 0x7f) << shift;
    if (!(b & 0x80)) return value;
  }
}

std::map<int, Payload> message(const std::string& bytes) {
  std::map<int, Payload> out;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::uint64_t tag = varint(bytes, at);
    Payload& p = out[static_cast<int>(tag >> 3)];
    const int wire = static_cast<int>(tag & 7);
    if (wire == 0) p.number = varint(bytes, at);
    if (wire == 1) p.number = load<std::uint64_t>(bytes, at), at += 8;
    if (wire == 5) p.number = load<std::uint32_t>(bytes, at), at += 4;
    if (wire == 2) {
      const std::uint64_t size = varint(bytes, at);
      p.bytes = bytes.substr(at, size);
      at += size;
    }
  }
  return out;
}

class TensorBoard : public testing::Test {
 protected:
  TensorBoard() : folder_(fs::temp_directory_path() / str("ring_tensorboard_", getpid())) {
    fs::create_directories(folder_);
  }
  ~TensorBoard() override { fs::remove_all(folder_); }
  const fs::path folder_;
};

TEST_F(TensorBoard, AbsurdTimesInFileNamesAreIgnored) {
  for (const char* time : {"9223372036854775807", "99999999999999999999", "999999999999999999"})
    std::ofstream(folder_ / str("events.out.tfevents.", time, ".host.1.0")) << "";
  std::ofstream(folder_ / "events.out.tfevents.9000000000.host.1.0") << "";
  EventWriter writer(folder_.string());
  bool found = false;
  for (const auto& entry : fs::directory_iterator(folder_))
    found |= entry.path().filename().string().starts_with("events.out.tfevents.9000000001.");
  EXPECT_TRUE(found);
}

TEST_F(TensorBoard, ScalarsAreReadBack) {
  EventWriter writer(folder_.string());
  writer.add_scalar("train/loss", 1'000'000'007, 2.5, 1234.5);
  writer.flush();
  const auto all = records(writer.path());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(message(all[0]).at(3).bytes, "brain.Event:2");
  auto event = message(all[1]);
  EXPECT_EQ(std::bit_cast<double>(event.at(1).number), 1234.5);
  EXPECT_EQ(event.at(2).number, 1'000'000'007u);
  auto value = message(message(event.at(5).bytes).at(1).bytes);
  EXPECT_EQ(value.at(1).bytes, "train/loss");
  EXPECT_EQ(std::bit_cast<float>(static_cast<std::uint32_t>(value.at(2).number)), 2.5f);
}

TEST_F(TensorBoard, TextIsReadBack) {
  EventWriter writer(folder_.string());
  const std::string long_text(300, 'x');  // its length takes two bytes
  writer.add_text("config", 0, long_text);
  writer.flush();
  const auto all = records(writer.path());
  ASSERT_EQ(all.size(), 2u);
  auto value = message(message(message(all[1]).at(5).bytes).at(1).bytes);
  EXPECT_EQ(value.at(1).bytes, "config");
  EXPECT_EQ(message(value.at(8).bytes).at(8).bytes, long_text);
  EXPECT_EQ(message(message(value.at(9).bytes).at(1).bytes).at(1).bytes, "text");
}

TEST_F(TensorBoard, SettingsAreReadBack) {
  EventWriter writer(folder_.string());
  writer.add_settings({{"optimizer.lr", "1e-3"}}, 5.0);
  writer.add_settings({{"train.fit", "true"}});
  writer.add_settings({{"model.kind", "inf"}});
  writer.flush();
  const auto all = records(writer.path());
  ASSERT_EQ(all.size(), 4u);
  const auto start_of = [&](std::size_t i) {
    auto value = message(message(message(all[i]).at(5).bytes).at(1).bytes);
    EXPECT_EQ(value.at(1).bytes, "_hparams_/session_start_info");
    auto plugin = message(message(value.at(9).bytes).at(1).bytes);
    EXPECT_EQ(plugin.at(1).bytes, "hparams");
    return message(message(plugin.at(2).bytes).at(3).bytes);
  };
  const auto setting_of = [&](std::size_t i) { return message(start_of(i).at(1).bytes); };
  EXPECT_EQ(setting_of(1).at(1).bytes, "optimizer.lr");
  EXPECT_EQ(std::bit_cast<double>(message(setting_of(1).at(2).bytes).at(2).number), 1e-3);
  EXPECT_EQ(std::bit_cast<double>(start_of(1).at(5).number), 5.0);
  EXPECT_EQ(message(setting_of(2).at(2).bytes).at(4).number, 1u);
  EXPECT_EQ(message(setting_of(3).at(2).bytes).at(3).bytes, "inf");
}

TEST_F(TensorBoard, ARestartIsASessionStart) {
  EventWriter writer(folder_.string());
  writer.restart(7);
  writer.flush();
  auto event = message(records(writer.path()).at(1));
  EXPECT_EQ(event.at(2).number, 7u);
  EXPECT_EQ(message(event.at(7).bytes).at(1).number, 1u);
}

TEST_F(TensorBoard, EveryWriterHasItsOwnFile) {
  std::ofstream(folder_ / "events.out.tfevents.20000000000.elsewhere.9999999.0");  // from a host whose clock is ahead
  EventWriter first(folder_.string()), second(folder_.string());
  EXPECT_NE(first.path().find("tfevents.20000000001."), std::string::npos) << first.path();
  EXPECT_GT(second.path(), first.path());  // viewers read files in this order
}

TEST_F(TensorBoard, ClosingWritesBufferedRecords) {
  std::string path;
  {
    EventWriter writer(folder_.string());
    path = writer.path();
    for (int i = 0; i < 1000; ++i) writer.add_scalar("x", i, std::numeric_limits<double>::infinity());
  }
  EXPECT_EQ(records(path).size(), 1001u);
}

TEST_F(TensorBoard, FailuresNameTheFile) {
  const std::string missing = (folder_ / "missing").string();
  try {
    EventWriter writer(missing);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(missing), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace ring
