#include "core/host_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "core/check.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
using Numbers = std::map<std::string, std::uint64_t>;

// Returns the number in a file; nullopt if it contains "max" or does not exist.
std::optional<std::uint64_t> number_in(const std::string& file) {
  std::uint64_t n = 0;
  return std::ifstream(file) >> n ? std::optional(n) : std::nullopt;  // allowed open: system (/proc, /sys)
}

// Returns the values in bytes of lines such as "MemTotal:  24689764 kB" or "inactive_file 4096".
Numbers numbers_in(const std::string& file) {
  Numbers found;
  std::ifstream in(file);  // allowed open: system (/proc, /sys)
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key, unit;
    std::uint64_t n = 0;
    if (!(words >> key >> n)) continue;
    if (key.ends_with(':')) key.pop_back();
    found[key] = words >> unit && unit == "kB" ? n << 10 : n;
  }
  return found;
}

std::uint64_t minus(std::uint64_t a, std::uint64_t b) { return a > b ? a - b : 0; }

// A mounted control group hierarchy, and this process's group in it.
struct Hierarchy {
  bool v2 = false;
  std::string mount, group;  // e.g. "/sys/fs/cgroup" and "/system.slice/job.scope"
};

bool has_word(const std::string& list, const std::string& word) {
  std::istringstream words(list);
  for (std::string w; std::getline(words, w, ',');)
    if (w == word) return true;
  return false;
}

// Returns this process's group from /proc/self/cgroup, with lines "number:controllers:path". Lines of v2 have no
// controllers.
std::optional<std::string> group_of(const std::string& root, bool v2) {
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (v2 ? controllers.empty() : has_word(controllers, "memory")) return line.substr(second + 1);
  }
  return std::nullopt;
}

// Returns the memory hierarchies from /proc/self/mountinfo, with lines "id parent device root mount-point options ... -
// type source super-options".
std::vector<Hierarchy> hierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream in(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line), after(line.substr(dash + 3));
    std::string skipped, mounted, mount, type, source, options;
    before >> skipped >> skipped >> skipped >> mounted >> mount;
    after >> type >> source >> options;
    const bool v2 = type == "cgroup2";
    if (!v2 && !(type == "cgroup" && has_word(options, "memory"))) continue;
    std::string group = group_of(root, v2).value_or("/");
    // In a container, the mount may show only the subtree of the container's own group.
    if (mounted != "/" && group.starts_with(mounted)) group = group.substr(mounted.size());
    found.push_back({v2, mount, group});
  }
  return found;
}

std::optional<MemoryBound> bound_v2(const std::string& root, const std::string& folder, const char* file,
                                    std::uint64_t swap_free) {
  const auto limit = number_in(root + folder + "/" + file);
  if (!limit) return std::nullopt;
  Numbers stat = numbers_in(root + folder + "/memory.stat");
  const std::uint64_t caches = stat["inactive_file"] + stat["active_file"] + stat["slab_reclaimable"];
  const std::uint64_t used = minus(number_in(root + folder + "/memory.current").value_or(0), caches);
  MemoryBound b{folder + "/" + file, *limit, minus(*limit, used), swap_free};
  if (const auto max = number_in(root + folder + "/memory.swap.max"))
    b.swap = std::min(b.swap, minus(*max, number_in(root + folder + "/memory.swap.current").value_or(0)));
  return b;
}

std::optional<MemoryBound> bound_v1(const std::string& root, const std::string& folder, std::uint64_t swap_free) {
  constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 60;  // the kernel writes about 2^63 if there is no limit
  const auto limit = number_in(root + folder + "/memory.limit_in_bytes");
  if (!limit || *limit >= kUnlimited) return std::nullopt;
  Numbers stat = numbers_in(root + folder + "/memory.stat");
  const std::uint64_t caches = stat["total_inactive_file"] + stat["total_active_file"];
  const std::uint64_t used = minus(number_in(root + folder + "/memory.usage_in_bytes").value_or(0), caches);
  MemoryBound b{folder + "/memory.limit_in_bytes", *limit, minus(*limit, used), swap_free};
  if (const auto both = number_in(root + folder + "/memory.memsw.limit_in_bytes")) {
    const std::uint64_t taken = number_in(root + folder + "/memory.memsw.usage_in_bytes").value_or(0);
    const std::uint64_t left = minus(*both, minus(taken, caches));
    b.available = std::min(b.available, left);
    b.swap = std::min(b.swap, left - b.available);
  }
  return b;
}

// Adds the limits of all groups from the process's own up to the root: each group also limits its descendants.
void add_groups(const Hierarchy& h, const std::string& root, std::uint64_t swap_free, std::vector<MemoryBound>& out) {
  const auto add = [&](const std::optional<MemoryBound>& b) {
    if (b) out.push_back(*b);
  };
  std::error_code error;
  std::string group = h.group == "/" ? "" : h.group;
  if (!fs::is_directory(root + h.mount + group, error)) group.clear();  // the path is from a different namespace
  for (;; group.resize(group.rfind('/'))) {
    const std::string folder = h.mount + group;
    if (h.v2) {
      add(bound_v2(root, folder, "memory.max", swap_free));
      // Above memory.high, the kernel throttles the process until it stalls.
      add(bound_v2(root, folder, "memory.high", swap_free));
    } else {
      add(bound_v1(root, folder, swap_free));
    }
    if (group.find('/') == std::string::npos) return;
  }
}

// Adds a soft limit from /proc/self/limits. Each line has a name, the soft limit, the hard limit and the unit, such as
// "Max data size   unlimited   unlimited   bytes".
void add_limit(const std::string& root, const std::string& name, const std::string& file_name, std::uint64_t used,
               std::vector<MemoryBound>& out) {
  std::ifstream in(root + "/proc/self/limits");
  for (std::string line; std::getline(in, line);) {
    std::uint64_t limit = 0;
    if (line.starts_with(name) && std::istringstream(line.substr(name.size())) >> limit)
      out.push_back({file_name, limit, minus(limit, used), 0, true});
  }
}

}  // namespace

std::vector<MemoryBound> memory_bounds(const std::string& root) {
  std::vector<MemoryBound> out;
  Numbers info = numbers_in(root + "/proc/meminfo"), status = numbers_in(root + "/proc/self/status");
  const std::uint64_t swap_free = info["SwapFree"];
  out.push_back({"MemAvailable in /proc/meminfo", info["MemTotal"], info["MemAvailable"], swap_free});
  for (const Hierarchy& h : hierarchies(root)) add_groups(h, root, swap_free, out);
  add_limit(root, "Max address space", "the address space limit (ulimit -v)", status["VmSize"], out);
  add_limit(root, "Max data size", "the data size limit (ulimit -d)", status["VmData"], out);
  return out;
}

const MemoryBound& tightest_bound(const std::vector<MemoryBound>& bounds) {
  RING_CHECK(!bounds.empty(), "no memory limit is known");
  return *std::ranges::min_element(bounds, {}, &MemoryBound::limit);
}

}  // namespace ring
