#include "core/cuda/launch_log.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "core/check.h"
#include "core/cuda/launches.h"

namespace ring::cuda {
namespace {

std::string kernel_name(const void* kernel) {
  const char* mangled = nullptr;
  if (cudaFuncGetName(&mangled, kernel) != cudaSuccess || !mangled) {
    cudaGetLastError();
    return "an unnamed kernel";
  }
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(mangled, nullptr, nullptr, &status),
                                                         std::free);
  return short_kernel_name(name ? name.get() : mangled);
}

// Returns the position of the parameter list: the first parenthesis outside of template arguments that does not belong
// to "(anonymous namespace)".
std::size_t find_parameters(std::string_view name) {
  constexpr std::string_view kAnonymous = "(anonymous namespace)";
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name.substr(i).starts_with(kAnonymous)) {
      i += kAnonymous.size() - 1;
      continue;
    }
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) return i;
  }
  return name.size();
}

LaunchLog& log_of_process() {
  static LaunchLog log;
  return log;
}

}  // namespace

void LaunchLog::add_kernel(cudaStream_t stream, const void* kernel) {
  const std::lock_guard lock(mutex_);
  auto at = names_.find(kernel);
  // Asks for the name while the device works: after a failure the runtime may no longer know it.
  if (at == names_.end()) at = names_.emplace(kernel, kernel_name(kernel)).first;
  add(stream, at->second.c_str());
}

void LaunchLog::add_call(cudaStream_t stream, const char* name) {
  const std::lock_guard lock(mutex_);
  add(stream, name);
}

std::uint64_t LaunchLog::launch_count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

void LaunchLog::mark_ended(cudaStream_t stream, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  std::uint64_t& known = ended_[stream];
  known = std::max(known, count);
}

bool LaunchLog::has_ended(std::uint64_t launch) const {
  const auto known = ended_.find(ring_[launch % kMaxLaunches].stream);
  return known != ended_.end() && launch < known->second;
}

std::string LaunchLog::describe_unfinished(bool one_at_a_time) const {
  const std::lock_guard lock(mutex_);
  NameCounts names;
  std::uint64_t launches = 0;
  for (std::uint64_t i = count_ - std::min(count_, one_at_a_time ? 1 : kMaxLaunches); i < count_; ++i) {
    if (has_ended(i)) continue;
    ++launches;
    const std::string_view name = ring_[i % kMaxLaunches].name;
    const auto at = std::ranges::find(names, name, &NameCounts::value_type::first);
    if (at == names.end())
      names.emplace_back(name, 1);
    else
      ++at->second;
  }
  if (launches == 0) return "";
  if (launches == 1) return str("The kernel that failed is ", names[0].first);
  std::string text = str("One of ", launches, " launches failed, oldest first: ");
  for (std::size_t i = 0; i < std::min(names.size(), kMaxNames); ++i)
    text += str(i ? ", " : "", names[i].first, names[i].second > 1 ? str(" x ", names[i].second) : "");
  return text + (names.size() > kMaxNames ? str(", and ", names.size() - kMaxNames, " other kernels") : "");
}

std::string short_kernel_name(std::string_view demangled) {
  std::string name(demangled.substr(0, find_parameters(demangled)));
  // The casts come from template arguments: "(int)64", "(bool)1".
  for (const std::string_view part :
       {"(anonymous namespace)::", "ring::cuda::", "ring::", "sm90::", "void ", "(int)", "(unsigned int)", "(bool)"})
    for (std::size_t at = name.find(part); at != std::string::npos; at = name.find(part)) name.erase(at, part.size());
  return name;
}

void log_launch(cudaStream_t stream, const void* kernel) { log_of_process().add_kernel(stream, kernel); }
void log_library_call(cudaStream_t stream, const char* name) { log_of_process().add_call(stream, name); }
std::uint64_t launch_count() { return log_of_process().launch_count(); }
void log_launches_ended(cudaStream_t stream, std::uint64_t count) { log_of_process().mark_ended(stream, count); }

std::string describe_unfinished_launches() {
  const char* blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  return log_of_process().describe_unfinished(blocking && std::string_view(blocking) == "1");
}

}  // namespace ring::cuda
