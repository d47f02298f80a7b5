#include "job/crash_handler.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>

#include "core/signals.h"
#include "job/worker_status.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RING_SANITIZED true
#elif defined(__has_feature)
#define RING_SANITIZED \
  (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer))
#else
#define RING_SANITIZED false
#endif

namespace ring {
namespace {

constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr int kPatience = 5'000;  // milliseconds for which the handler waits for the thread's report
constexpr int kMaxFrames = 32;

// Text in a fixed buffer; truncated if it is full.
template <std::size_t N>
class Text {
 public:
  __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    std::va_list rest;
    va_start(rest, format);
    const int n = std::vsnprintf(data_.data() + size_, N - size_, format, rest);
    va_end(rest);
    if (n > 0) size_ = std::min(N - 1, size_ + static_cast<std::size_t>(n));
  }
  void add_escaped(std::string_view text) {
    for (const char c : text) {
      if (c == '"' || c == '\\')
        add("\\%c", c);
      else if (static_cast<unsigned char>(c) < 0x20)
        add("\\u%04x", static_cast<unsigned>(c));
      else
        add("%c", c);
    }
  }
  std::string_view view() const { return {data_.data(), size_}; }

 private:
  std::array<char, N> data_{};
  std::size_t size_ = 0;
};

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

// Facts about the crash. They are in static memory, because the crashing thread may hold the heap's locks.
struct Crash {
  std::atomic<pid_t> thread{0};
  int signal = 0, code = 0;
  std::uintptr_t address = 0, pc = 0, sp = 0;
  Text<512> reason;  // message from std::terminate
  int wake[2] = {-1, -1}, done[2] = {-1, -1};
  std::atomic<pid_t> process{0};  // the process whose crashes are reported; 0 if there is none
  const char* error_file = nullptr;
};
Crash crash;
alignas(64) std::array<char, 64 << 10> alternate_stack;
std::array<char, 1 << 20> maps;
std::size_t maps_size = 0;
std::array<std::uintptr_t, 8 << 10> stack_words;
Text<1024> headline;
Text<8192> trace;
Text<16384> json;

// ---- the thread ----

struct Module {
  std::uintptr_t begin = 0, end = 0, base = 0;  // base: address of the file's first byte
  std::string_view path;
};

std::array<Module, 2048> modules;
std::size_t modules_size = 0;

void read_maps() {
  const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  for (ssize_t n; fd >= 0 && (n = read(fd, maps.data() + maps_size, maps.size() - 1 - maps_size)) > 0;)
    maps_size += static_cast<std::size_t>(n);
  maps[maps_size] = '\0';
  if (fd >= 0) close(fd);
}

// Fills `modules` with the executable mappings from read_maps(), in ascending order. A process with a GPU has thousands
// of other mappings.
void list_modules() {
  std::string_view all(maps.data(), maps_size), first_path;
  std::uintptr_t base = 0;
  while (!all.empty() && modules_size < modules.size()) {
    const std::size_t end = std::min(all.find('\n'), all.size() - 1);
    const std::string_view line = all.substr(0, end);
    all.remove_prefix(end + 1);
    unsigned long begin = 0, stop = 0, offset = 0;
    char rights[5] = {};
    int path_at = 0;
    if (std::sscanf(line.data(), "%lx-%lx %4s %lx %*s %*s %n", &begin, &stop, rights, &offset, &path_at) < 4) continue;
    const std::string_view path = line.substr(std::min(static_cast<std::size_t>(path_at), line.size()));
    if (offset == 0 && path != first_path) base = begin, first_path = path;
    if (rights[2] == 'x') modules[modules_size++] = {begin, stop, path == first_path ? base : begin - offset, path};
  }
}

const Module* find_module(std::uintptr_t at) {
  const auto known = modules.begin() + static_cast<std::ptrdiff_t>(modules_size);
  const auto after =
      std::upper_bound(modules.begin(), known, at, [](std::uintptr_t x, const Module& m) { return x < m.begin; });
  return after != modules.begin() && at < (after - 1)->end ? &*(after - 1) : nullptr;
}

// Returns true if the instruction before `at` is a call.
bool follows_call(std::uintptr_t at, const Module& in) {
  if (at < in.begin + 8) return false;
  const auto* p = reinterpret_cast<const unsigned char*>(at);
#if defined(__x86_64__)
  if (p[-5] == 0xE8) return true;
  for (const int n : {2, 3, 4, 6, 7})
    if (p[-n] == 0xFF && ((p[-n + 1] >> 3) & 7) == 2) return true;
  return false;
#elif defined(__aarch64__)
  std::uint32_t code = 0;
  std::memcpy(&code, p - 4, sizeof code);
  return (code & 0xFC000000) == 0x94000000 || (code & 0xFFFFFC1F) == 0xD63F0000;
#else
  return p != nullptr;
#endif
}

void add_frame(std::uintptr_t at, const Module& in) {
  const std::size_t slash = in.path.rfind('/');
  const std::string_view name = in.path.empty() ? "code" : in.path.substr(slash + 1);
  trace.add("  %.*s+0x%lx\n", static_cast<int>(name.size()), name.data(), static_cast<unsigned long>(at - in.base));
}

void add_trace() {
  read_maps();
  list_modules();
  if (const Module* in = find_module(crash.pc)) add_frame(crash.pc, *in);
  iovec to{stack_words.data(), sizeof stack_words}, from{reinterpret_cast<void*>(crash.sp), sizeof stack_words};
  ssize_t bytes = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
  for (; bytes < 0 && from.iov_len > 512; bytes = process_vm_readv(getpid(), &to, 1, &from, 1, 0))
    from.iov_len /= 2;  // the stack may end within the range: tries half of it
  int frames = 0;
  for (std::size_t i = 0;
       frames < kMaxFrames && bytes > 0 && i < static_cast<std::size_t>(bytes) / sizeof(std::uintptr_t); ++i) {
    const Module* in = find_module(stack_words[i]);
    if (!in || !follows_call(stack_words[i], *in)) continue;
    add_frame(stack_words[i], *in);
    ++frames;
  }
}

void add_headline() {
  const WorkerStatus& page = own_status();
  const std::string_view phase = to_string(page.phase.load());
  headline.add("ringmaster: crashed by signal %d (%s)", crash.signal, sigdescr_np(crash.signal));
  const std::string_view reason = crash.reason.view();
  if (!reason.empty()) headline.add(": %.*s", static_cast<int>(reason.size()), reason.data());
  if (crash.code > 0 && crash.signal != SIGABRT)
    headline.add(" at address 0x%lx", static_cast<unsigned long>(crash.address));
  headline.add(", in phase %.*s after step %lld", static_cast<int>(phase.size()), phase.data(),
               static_cast<long long>(page.step.load()));
  const std::int64_t newest = page.flights.queued.load();
  if (newest == 0) return;
  const FlightEntry& e = page.flights.entries[FlightRing::slot(newest)];
  const std::string_view state = to_string(e.state.load());
  headline.add("; its last operation is #%lld of %s, %s at %s (%.*s)", static_cast<long long>(e.number.load()),
               page.flights.groups[static_cast<std::size_t>(e.group.load())].name.data(), e.text.data(), e.site.data(),
               static_cast<int>(state.size()), state.data());
}

void report_crash() {
  add_headline();
  write_all(STDERR_FILENO, headline.view());
  write_all(STDERR_FILENO, "\n");
  add_trace();
  write_all(STDERR_FILENO, trace.view());
  write_error_file(headline.view(), trace.view());
}

constexpr char kCrash = 1, kEnd = 2;  // bytes that wake the thread

void* wait_for_crash(void*) {
  char byte = 0;
  while (read(crash.wake[0], &byte, 1) < 0 && errno == EINTR) continue;
  if (byte != kCrash) return nullptr;
  report_crash();
  if (write(crash.done[1], &byte, 1) < 0) return nullptr;  // no retry: the handler's poll() has a timeout
  return nullptr;
}

// Owns the thread that reports crashes. This is one of the last static objects to be destroyed, so crashes are reported
// until everything that main() created is gone. A child of fork() does not have the thread.
struct Watcher {
  pthread_t thread{};
  bool runs = false;

  void start() {
    const BlockSignals block;
    runs = pthread_create(&thread, nullptr, wait_for_crash, nullptr) == 0;
  }
  ~Watcher() {
    if (!runs || crash.process.exchange(0) != getpid()) return;
    if (write(crash.wake[1], &kEnd, 1) == 1) pthread_join(thread, nullptr);
  }
};
Watcher watcher;

// ---- the faulting thread ----

void take_registers(const void* context) {
#if defined(__x86_64__)
  const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
  crash.pc = static_cast<std::uintptr_t>(registers[REG_RIP]);
  crash.sp = static_cast<std::uintptr_t>(registers[REG_RSP]);
#elif defined(__aarch64__)
  const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext;
  crash.pc = registers.pc;
  crash.sp = registers.sp;
#else
  crash.sp = reinterpret_cast<std::uintptr_t>(&context);
#endif
}

void die_by(int number) {
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  sigaction(number, &usual, nullptr);
  syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);  // takes effect when the handler returns
}

void handle(int number, siginfo_t* info, void* context) {
  const auto self = static_cast<pid_t>(syscall(SYS_gettid));
  pid_t nobody = 0;
  if (getpid() != crash.process) return die_by(number);  // a child of fork() lacks the reporting thread
  if (!crash.thread.compare_exchange_strong(nobody, self)) {
    if (nobody == self) return die_by(number);
    for (;;) pause();  // another thread crashed first: it reports and ends the process
  }
  crash.signal = number;
  crash.code = info->si_code;
  crash.address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  take_registers(context);
  pollfd end{crash.done[0], POLLIN, 0};
  if (write(crash.wake[1], &kCrash, 1) == 1) poll(&end, 1, kPatience);
  die_by(number);
}

[[noreturn]] void handle_terminate() {
  try {
    if (const std::exception_ptr e = std::current_exception()) std::rethrow_exception(e);
    crash.reason.add("std::terminate was called");
  } catch (const std::exception& e) {
    crash.reason.add("uncaught exception: %s", e.what());
  } catch (...) {
    crash.reason.add("uncaught exception of unknown type");
  }
  std::abort();
}

}  // namespace

void install_crash_handler() {
  crash.error_file = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (RING_SANITIZED) return;
  if (pipe2(crash.wake, O_CLOEXEC) != 0 || pipe2(crash.done, O_CLOEXEC) != 0) return;
  crash.process = getpid();
  watcher.start();
  if (!watcher.runs) return;
  const stack_t stack{alternate_stack.data(), 0, alternate_stack.size()};
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  for (const int number : kSignals) sigaction(number, &action, nullptr);
  std::set_terminate(handle_terminate);
}

void write_error_file(std::string_view message, std::string_view stack) noexcept {
  if (!crash.error_file || !*crash.error_file) return;
  const int fd = open(crash.error_file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return;
  json.add(R"({"message": {"message": ")");
  json.add_escaped(message);
  json.add(R"(", "extraInfo": {"py_callstack": ")");
  json.add_escaped(stack);
  json.add(R"(", "timestamp": "%lld"}}})", static_cast<long long>(std::time(nullptr)));
  write_all(fd, json.view());
  close(fd);
}

}  // namespace ring
