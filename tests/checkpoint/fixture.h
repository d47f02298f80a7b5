#pragma once
// Temporary folders, states with known contents, and ranks that are threads.

#include <gtest/gtest.h>

#include <unistd.h>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "checkpoint/reader.h"
#include "checkpoint/state.h"
#include "checkpoint/writer.h"
#include "tests/error_of.h"

namespace ring::test {

namespace fs = std::filesystem;

class TempFolder {
 public:
  explicit TempFolder(const fs::path& parent = fs::temp_directory_path()) {
    std::string pattern = (parent / "ring_checkpoint_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

inline Stream& stream() {
  static Stream s = Stream::cpu(1);
  return s;
}

// Returns a byte that depends on both arguments.
inline unsigned char pattern(std::uint64_t seed, std::uint64_t i) {
  return static_cast<unsigned char>((seed * 0x9E3779B97F4A7C15ull + i * 0xD1B54A32D192ED03ull) >> 56);
}

inline Tensor filled(const Shape& shape, DType dtype, std::uint64_t seed) {
  Tensor t = Tensor::empty(shape, dtype, stream());
  for (std::size_t i = 0; i < t.bytes(); ++i) t.raw()[i] = static_cast<std::byte>(pattern(seed, i));
  return t;
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

// A state like a small model's, with several dtypes and shapes and every kind of value.
struct SmallState {
  std::vector<Tensor> tensors;
  std::int64_t cursor = 0;
  std::uint64_t counter = 0;
  double loss = 0;
  std::string note;
  State state;

  explicit SmallState(std::uint64_t seed) {
    add("model.embedding", {37, 16}, DType::f32, seed + 1);
    add("model.norm", {16}, DType::f32, seed + 2);
    add("model.half", {5, 7, 3}, DType::bf16, seed + 3);
    add("optimizer.steps", {3}, DType::i32, seed + 4);
    add("data.carry", {1001}, DType::u8, seed + 5);
    add("optimizer.scale", {}, DType::f32, seed + 6);
    add("optimizer.nothing", {0, 4}, DType::f32, seed + 7);
    cursor = -static_cast<std::int64_t>(seed);
    counter = ~seed;
    loss = 0.1 * static_cast<double>(seed + 1);
    note = "seed " + std::to_string(seed) + " \"quoted\" \n ü";
    state.add("data.cursor", &cursor);
    state.add("data.counter", &counter);
    state.add("schedule.best_loss", &loss);
    state.add("data.note", &note);
  }
  SmallState(const SmallState&) = delete;

  bool equals(const SmallState& o) const {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (!same_bytes(tensors[i], o.tensors[i])) return false;
    return cursor == o.cursor && counter == o.counter && loss == o.loss && note == o.note;
  }

 private:
  void add(const std::string& name, const Shape& shape, DType dtype, std::uint64_t seed) {
    tensors.push_back(filled(shape, dtype, seed));
    state.add(name, tensors.back());
  }
};

inline fs::path write_small(const fs::path& folder, std::int64_t step, const Retention& keep = {100, 0}) {
  const SmallState s(static_cast<std::uint64_t>(step));
  return write_checkpoint(folder, step, s.state.snapshot(stream()), R"({"config":"a: 1"})", keep);
}

inline void flip_byte(const fs::path& file, std::streamoff at) {
  std::fstream f(file, std::ios::binary | std::ios::in | std::ios::out);
  const int byte = f.seekg(at).get();
  f.seekp(at).put(static_cast<char>(byte ^ 1));
}

inline std::string read_all(const fs::path& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

// Returns the steps of the checkpoints in a folder.
inline std::vector<std::int64_t> steps(const fs::path& folder) {
  std::vector<std::int64_t> found;
  for (const CheckpointEntry& e : list_checkpoints(folder)) found.push_back(e.step);
  return found;
}

inline std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

// Runs `rank(group)` on `world` threads that exchange texts through memory. Returns the message of each rank's error;
// "" if there was none.
inline std::vector<std::string> run_ranks(int world, const std::function<void(const WriterGroup&)>& rank) {
  const auto n = static_cast<std::size_t>(world);
  std::vector<std::string> texts(n), errors(n);
  std::barrier<> barrier(world);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      WriterGroup group{static_cast<int>(r), world, [&, r](const std::string& own) {
                          texts[r] = own;
                          barrier.arrive_and_wait();
                          std::vector<std::string> all = texts;
                          barrier.arrive_and_wait();
                          return all;
                        }};
      errors[r] = error_of([&] { rank(group); });
    });
  for (std::thread& t : threads) t.join();
  return errors;
}

}  // namespace ring::test
