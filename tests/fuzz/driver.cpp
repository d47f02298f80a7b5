// Replaces libFuzzer if the compiler is not clang, with the same entry point and options.
//
//   fuzz_NAME [-max_total_time=S] [-runs=N] [-max_len=BYTES] [-timeout=S] [-seed=N] [-artifact_prefix=PATH] CORPUS...
//
// CORPUS are files, or folders of files. Inputs that reach new code are added to the first folder. Before a signal, a
// finding of a sanitizer or the timeout ends the process, the last input is written to PATH.

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/coverage.h"
#include "tests/fuzz/mutate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));
// Makes one allocation over 1 GB a finding, however much memory the machine has.
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=1024:allocator_may_return_null=0"; }

namespace ring::fuzz {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Options {
  std::map<std::string, std::string> values;
  std::vector<fs::path> corpus;
  long number(const std::string& name, long otherwise) const {
    const auto it = values.find(name);
    return it == values.end() ? otherwise : std::atol(it->second.c_str());
  }
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string_view a = argv[i];
    const std::size_t equals = a.find('=');
    if (a.starts_with("-") && equals != std::string_view::npos)
      o.values[std::string(a.substr(1, equals - 1))] = a.substr(equals + 1);
    else
      o.corpus.emplace_back(a);
  }
  return o;
}

// Plain memory that signal handlers use.
const std::string* current_input = nullptr;
char artifact[4096];

void keep_input() {
  if (!current_input) return;
  const int fd = ::open(artifact, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const bool kept = fd >= 0 && ::write(fd, current_input->data(), current_input->size()) >= 0;
  std::fprintf(stderr, "%s %s\n", kept ? "the input is in" : "cannot write the input to", artifact);
  current_input = nullptr;
}

void on_signal(int number) {
  std::fprintf(stderr, "%s\n", number == SIGALRM ? "timeout: one input takes too long" : strsignal(number));
  keep_input();
  std::signal(number, SIG_DFL);
  std::raise(number == SIGALRM ? SIGABRT : number);
}

void watch(const Options& o) {
  const auto prefix = o.values.find("artifact_prefix");
  std::snprintf(artifact, sizeof artifact, "%scrash", prefix == o.values.end() ? "" : prefix->second.c_str());
  for (const int number : {SIGALRM, SIGABRT, SIGFPE, SIGILL, SIGBUS}) std::signal(number, on_signal);
  if (__sanitizer_set_death_callback)
    __sanitizer_set_death_callback(keep_input);
  else
    std::signal(SIGSEGV, on_signal);
}

void run(const std::string& input, long timeout) {
  current_input = &input;
  ::alarm(static_cast<unsigned>(timeout));
  forget_path();
  // A copy of exactly this size, so that a sanitizer sees reads past its end.
  const std::vector<std::uint8_t> exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  ::alarm(0);
  current_input = nullptr;
}

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> load(const std::vector<fs::path>& corpus) {
  std::vector<std::string> inputs;
  for (const fs::path& path : corpus) {
    if (!fs::is_directory(path)) {
      inputs.push_back(read(path));
      continue;
    }
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path)) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) inputs.push_back(read(file));
  }
  return inputs;
}

void save(const Options& o, const std::string& input) {
  if (o.corpus.empty() || !fs::is_directory(o.corpus[0])) return;
  const std::string name = std::to_string(std::hash<std::string>()(input));
  std::ofstream(o.corpus[0] / name, std::ios::binary) << input;
}

// Mutates inputs of the pool, newer ones more often, until the time or the number of runs is used up.
long explore(const Options& o, std::vector<std::string>& pool, Random& random) {
  const long seconds = o.number("max_total_time", 0), runs = o.number("runs", seconds > 0 ? -1 : 0);
  const auto longest = static_cast<std::size_t>(o.number("max_len", 65536));
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  long done = 0;
  for (; runs < 0 || done < runs; ++done) {
    if (seconds > 0 && Clock::now() >= end) break;
    const std::size_t back = std::min(random() % pool.size(), random() % pool.size());
    std::string input = mutate(pool[pool.size() - 1 - back], pool, longest, random);
    run(input, o.number("timeout", 5));
    if (!reached_anything_new()) continue;
    save(o, input);
    pool.push_back(std::move(input));
  }
  return done;
}

int fuzz(const Options& o) {
  watch(o);
  std::vector<std::string> pool = load(o.corpus);
  for (const std::string& input : pool) {
    run(input, o.number("timeout", 5));
    reached_anything_new();
  }
  const std::size_t kept = pool.size();
  if (pool.empty()) pool.emplace_back();
  Random random(static_cast<std::uint64_t>(o.number("seed", 1)));
  const long done = explore(o, pool, random);
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  std::printf("%zu kept inputs, %ld mutated ones, %zu of them new, %zu pairs of blocks reached, peak %ld MB\n", kept,
              done, pool.size() - std::max<std::size_t>(kept, 1), pairs_reached(), usage.ru_maxrss / 1024);
  return 0;
}

}  // namespace
}  // namespace ring::fuzz

int main(int argc, char** argv) { return ring::fuzz::fuzz(ring::fuzz::parse(argc, argv)); }
