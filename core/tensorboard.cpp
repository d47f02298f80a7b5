#include "core/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "core/check.h"
#include "core/crc32c.h"
#include "core/io_error.h"

namespace ring {
namespace {

// Masks a CRC as TFRecord does (rotate and add), because a CRC of data that contains CRCs is weak.
std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

template <class T>
void append_fixed(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i));
}

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

// Encodes protocol buffers: a field is a varint (number << 3 | wire type) and its payload.
class Message {
 public:
  Message& f64(int number, double value) {
    tag(number, 1);
    append_fixed(bytes_, std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  Message& f32(int number, float value) {
    tag(number, 5);
    append_fixed(bytes_, std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  Message& integer(int number, std::int64_t value) {
    tag(number, 0);
    append_varint(bytes_, static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& bytes(int number, std::string_view value) {
    tag(number, 2);
    append_varint(bytes_, value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int number, const Message& value) { return bytes(number, value.bytes_); }
  Message& raw(std::string_view fields) {
    bytes_ += fields;
    return *this;
  }
  std::string_view view() const { return bytes_; }

 private:
  void tag(int number, int wire) { append_varint(bytes_, static_cast<std::uint64_t>(number << 3 | wire)); }
  std::string bytes_;
};

// Returns a setting as google.protobuf.Value.
Message setting_value(const std::string& text) {
  if (text == "true" || text == "false") return Message().integer(4, text == "true");
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole && std::isfinite(number) ? Message().f64(2, number) : Message().bytes(3, text);
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || !name[0]) return "localhost";
  return name.data();
}

// Returns a time later than that of all event files in the directory. TensorBoard reads files in the order of their
// names, so clocks and process IDs must not matter.
std::int64_t later_than_all_in(const std::string& directory) {
  static constexpr std::string_view kStem = "events.out.tfevents.";
  static constexpr std::int64_t kMaxTime = 999'999'999'999'999'999;  // leaves room for the increment
  auto time = static_cast<std::int64_t>(wall_time_now());
  std::error_code ignored;  // creating the file reports the error, such as a missing directory
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kStem)) continue;
    std::int64_t other = 0;
    std::from_chars(name.data() + kStem.size(), name.data() + name.size(), other);
    if (other < kMaxTime) time = std::max(time, other + 1);
  }
  return time;
}

}  // namespace

double wall_time_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

EventWriter::EventWriter(const std::string& directory) : flushed_(std::chrono::steady_clock::now()) {
  const std::int64_t time = later_than_all_in(directory);
  const std::string stem = str(directory, "/events.out.tfevents.", time, ".", host_name(), ".", getpid(), ".");
  for (int n = 0; !file_; ++n) {
    path_ = stem + std::to_string(n);
    file_.reset(std::fopen(path_.c_str(), "wbx"));
    if (!file_ && errno != EEXIST) fail("cannot create ", path_, ": ", io_error_text(errno));
  }
  write_record(Message().f64(1, wall_time_now()).bytes(3, "brain.Event:2").view());
  flush();
}

void EventWriter::add_scalar(const std::string& tag, std::int64_t step, double value, double wall_time) {
  const Message entry = Message().bytes(1, tag).f32(2, static_cast<float>(value));
  write_event(step, wall_time, Message().message(5, Message().message(1, entry)).view());
}

void EventWriter::add_text(const std::string& tag, std::int64_t step, const std::string& markdown, double wall_time) {
  constexpr int kString = 7;  // DT_STRING of types.proto
  constexpr int kTensorClass = 2;
  const Message shape = Message().message(2, Message().integer(1, 1));
  const Message tensor = Message().integer(1, kString).message(2, shape).bytes(8, markdown);
  const Message metadata = Message().message(1, Message().bytes(1, "text")).integer(4, kTensorClass);
  const Message entry = Message().bytes(1, tag).message(8, tensor).message(9, metadata);
  write_event(step, wall_time, Message().message(5, Message().message(1, entry)).view());
}

// Writes SessionStartInfo of tensorboard/plugins/hparams/plugin_data.proto into the metadata of a summary.
void EventWriter::add_settings(const std::vector<std::pair<std::string, std::string>>& values, double wall_time) {
  constexpr int kFloat = 1;  // DT_FLOAT of types.proto
  Message start;
  for (const auto& [name, value] : values) start.message(1, Message().bytes(1, name).message(2, setting_value(value)));
  start.f64(5, wall_time);
  const Message plugin = Message().bytes(1, "hparams").message(2, Message().message(3, start));
  const Message nothing = Message().integer(1, kFloat).message(2, Message().message(2, Message().integer(1, 0)));
  const Message entry =
      Message().bytes(1, "_hparams_/session_start_info").message(8, nothing).message(9, Message().message(1, plugin));
  write_event(0, wall_time, Message().message(5, Message().message(1, entry)).view());
}

void EventWriter::restart(std::int64_t first_step, double wall_time) {
  constexpr int kStart = 1;  // SessionLog.START
  write_event(first_step, wall_time, Message().message(7, Message().integer(1, kStart)).view());
}

void EventWriter::write_event(std::int64_t step, double wall_time, std::string_view what) {
  write_record(Message().f64(1, wall_time).integer(2, step).raw(what).view());
  if (std::chrono::steady_clock::now() - flushed_ >= kFlushInterval) flush();
}

void EventWriter::write_record(std::string_view data) {
  std::string out;
  append_fixed(out, static_cast<std::uint64_t>(data.size()));
  append_fixed(out, masked(crc32c(out)));
  out += data;
  append_fixed(out, masked(crc32c(data)));
  if (std::fwrite(out.data(), 1, out.size(), file_.get()) != out.size()) {
    fail("cannot write ", path_, ": ", io_error_text(errno));
  }
}

void EventWriter::flush() {
  flushed_ = std::chrono::steady_clock::now();
  if (std::fflush(file_.get()) != 0) fail("cannot write ", path_, ": ", io_error_text(errno));
}

}  // namespace ring
