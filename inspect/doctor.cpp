#include "inspect/doctor.h"

#include <unistd.h>

#include <algorithm>
#include <iomanip>
#include <set>
#include <sstream>

#include "core/cpu/thread_pool.h"
#include "core/host_memory.h"
#include "generated/build_info.h"
#include "kernels/choice_store.h"
#include "kernels/shipped_choices.h"
#include "text/bpe/unicode.h"
#include "text/unicode/categories.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kGiB = std::uint64_t{1} << 30;
constexpr const char* kMachine = "Machine";
constexpr const char* kBuild = "Build";
constexpr const char* kGpus = "GPUs";

std::string size_text(std::uint64_t bytes) {
  std::ostringstream out;
  const bool large = bytes >= kGiB;
  out << std::fixed << std::setprecision(large ? 1 : 0)
      << static_cast<double>(bytes) / static_cast<double>(large ? kGiB : kMiB) << (large ? " GiB" : " MiB");
  return out.str();
}

// Reads memory in the same way as the check before a run.
void read_memory(HostFacts& facts) {
  const std::vector<MemoryBound> bounds = memory_bounds();
  const MemoryBound& bound = tightest_bound(bounds);
  facts.memory_total = bound.total;
  facts.memory_available = bound.available;
  facts.swap_available = bound.swap;
  if (&bound != &bounds.front()) facts.memory_limit = bound.source;
}

Finding check_memory(const HostFacts& host) {
  Finding f{kMachine, "memory",
            str(size_text(host.memory_available), " of ", size_text(host.memory_total), " available",
                host.swap_available ? str(", and ", size_text(host.swap_available), " of swap") : "",
                host.memory_limit.empty() ? "" : str(", limited by ", host.memory_limit))};
  f.fix = host.memory_limit.empty() ? "end other programs" : "raise that limit of the container or job";
  if (host.memory_available < kGiB) f.verdict = Verdict::note;
  if (host.memory_available < 256 * kMiB) f.verdict = Verdict::stop;
  return f;
}

Finding check_disk(const HostFacts& host) {
  Finding f{kMachine, "disk", str(size_text(host.disk_free), " free in ", host.folder.string())};
  f.fix =
      "free some space: a checkpoint takes 12 bytes per parameter (6 with states in bf16), and two exist for a moment";
  if (host.disk_free < kGiB) f.verdict = Verdict::note;
  if (host.disk_free < 64 * kMiB) f.verdict = Verdict::stop;
  if (host.writable) return f;
  f.verdict = Verdict::stop;
  f.detail = str("cannot write to ", host.folder.string());
  f.fix = "start in a writable folder, or set run.directory";
  return f;
}

// Adds a finding for the library, and one for each known defect of its version.
void check_library(const LibraryFacts& library, bool any_device, std::vector<Finding>& out) {
  if (!library.found) {
    const Verdict verdict = !any_device ? Verdict::absent : library.needed ? Verdict::stop : Verdict::note;
    out.push_back({kGpus, library.name, str("not found (", library.use, ")"), verdict, library.detail});
    return;
  }
  // A driver's detail begins with its full release number ("580.159.03"), so the version is not repeated.
  const std::string version = to_string(library.version);
  const bool own_words = library.detail.find(std::to_string(library.version.major) + ".") == 0;
  out.push_back({kGpus, library.name,
                 own_words                ? library.detail
                 : library.detail.empty() ? version
                                          : str(version, ", ", library.detail)});
  for (const KnownDefect& d : known_defects(library.name, library.version))
    out.push_back({kGpus, library.name, str(version, d.refused ? " is not used: " : ": ", d.what, " [", d.source, "]"),
                   Verdict::note, std::string(d.remedy)});
}

std::string arch_list(std::string_view archs) {
  std::istringstream words{std::string(archs)};
  std::string all, word;
  while (words >> word) all += (all.empty() ? "sm_" : ", sm_") + word;
  return all;
}

bool built_for(std::string_view archs, int capability) {
  std::istringstream words{std::string(archs)};
  std::string word;
  while (words >> word)
    if (arch_runs_on(word, capability)) return true;
  return false;
}

Finding check_device(const DeviceFacts& d, std::string_view archs) {
  Finding f{kGpus, str(d.device)};
  f.detail = str(d.name.empty() ? "unknown" : d.name, ", ", size_text(d.memory_free), " of ", size_text(d.memory_total),
                 " free, compute capability ", d.capability / 10, '.', d.capability % 10,
                 d.memory_node ? str(", near NUMA node ", *d.memory_node) : "");
  if (!d.problem.empty()) {
    f.verdict = Verdict::stop;
    f.detail += ": " + d.problem;
    f.fix = "check this GPU with `nvidia-smi`, or exclude it with CUDA_VISIBLE_DEVICES";
  } else if (!built_for(archs, d.capability)) {
    f.verdict = Verdict::stop;
    f.detail += str("; this program has machine code for ", arch_list(archs), ", but not for this GPU");
    f.fix = str("rebuild with -DRING_CUDA_ARCHS=", d.capability, " (or a list of architectures)");
  } else if (d.memory_free < d.memory_total / 2) {
    f.verdict = Verdict::note;
    f.fix = "another process uses this GPU: see `nvidia-smi`";
  }
  return f;
}

std::string_view to_string(Link link) {
  switch (link) {
    case Link::self: return "self";
    case Link::fast: return "NVLink";
    case Link::bus: return "PCIe";
    case Link::none: return "host";
  }
  return "?";
}

void check_links(const BackendFacts& facts, std::vector<Finding>& out) {
  if (facts.devices.size() < 2) return;
  for (std::size_t from = 0; from < facts.links.size(); ++from) {
    Finding f{kGpus, str("links of ", from)};
    for (Link link : facts.links[from]) {
      f.detail += str(f.detail.empty() ? "" : "  ", to_string(link));
      if (link == Link::none) f.verdict = Verdict::note;
    }
    f.fix = "GPUs that reach each other only through the host exchange gradients slowly; see `nvidia-smi topo -m`";
    out.push_back(f);
  }
}

std::string_view mark(Verdict v) {
  switch (v) {
    case Verdict::good: return "ok";
    case Verdict::absent: return "-";
    case Verdict::note: return "note";
    case Verdict::stop: return "STOP";
  }
  return "?";
}

}  // namespace

HostFacts inspect_host(const fs::path& folder) {
  HostFacts facts;
  facts.threads = default_threads();
  facts.cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  read_memory(facts);
  std::error_code none;
  facts.folder = fs::weakly_canonical(folder, none);
  const fs::space_info space = fs::space(folder, none);
  facts.disk_free = none ? 0 : space.available;
  facts.writable = access(folder.c_str(), W_OK | X_OK) == 0;
  facts.nvidia_driver = fs::exists("/proc/driver/nvidia/version", none);
  return facts;
}

std::vector<Finding> check_host(const HostFacts& host) {
  return {
      {kMachine, "cores", str(host.cores, ", a run uses ", host.threads, host.threads == 1 ? " thread" : " threads")},
      check_memory(host),
      check_disk(host)};
}

std::vector<Finding> check_build() {
  std::vector<Finding> out;
  for (const build_info::Found& f : build_info::kFound) {
    const std::string_view status = f.status;
    Finding finding{kBuild, f.name, f.detail};
    if (status == "off") finding.verdict = Verdict::absent;
    if (status == "missing") {
      finding.verdict = Verdict::absent;
      finding.detail = str("not in this build: ", f.detail);
    }
    out.push_back(finding);
  }
  const std::string forms = unicode::normal_forms_version();
  out.push_back({kBuild, "Unicode",
                 str(unicode::kVersion, " for character classes, ", forms.empty() ? "none" : forms,
                     " for normal forms and cases")});
  return out;
}

std::vector<Finding> check_cuda(const BackendFacts& facts, const CudaBuild& build, const HostFacts& host) {
  if (!build.built && host.nvidia_driver)
    return {{kGpus, "CUDA", "this machine has an NVIDIA driver, but this program was built without CUDA", Verdict::note,
             "install the CUDA Toolkit and rebuild with `make build CUDA=ON`"}};
  if (!build.built)
    return {{kGpus, "CUDA", "not in this build, and no NVIDIA driver was found: training runs on the CPU",
             Verdict::absent}};
  std::vector<Finding> out;
  for (const LibraryFacts& library : facts.libraries) check_library(library, !facts.devices.empty(), out);
  if (!facts.problem.empty())
    out.push_back({kGpus, "GPU", str("no GPU can be used: ", facts.problem), Verdict::stop,
                   "update the driver (CUDA 13 needs release 580 or newer), or set run.device=cpu"});
  else if (facts.devices.empty())
    out.push_back({kGpus, "GPU", "none found: training runs on the CPU", Verdict::absent});
  for (const DeviceFacts& d : facts.devices) out.push_back(check_device(d, build.archs));
  check_links(facts, out);
  return out;
}

ChoiceFacts inspect_choices() {
  const auto keys_of = [](const ChoiceMap& choices) {
    std::vector<std::string> keys;
    for (const auto& [key, choice] : choices) keys.push_back(key);
    return keys;
  };
  ChoiceFacts facts{.store = user_choice_store_path(), .shipped = keys_of(shipped_choices())};
  try {
    if (!facts.store.empty()) facts.stored = keys_of(read_choice_file(facts.store));
  } catch (const Error& e) {
    facts.problem = e.what();
  }
  return facts;
}

std::vector<Finding> check_choices(const BackendFacts& facts, const ChoiceFacts& choices) {
  if (facts.devices.empty()) return {};
  if (choices.store.empty())
    return {{kGpus, "choices", "no store: neither XDG_CACHE_HOME nor HOME is set, so each run measures its own",
             Verdict::note, "set one of them, or name a file with run.tuning"}};
  if (!choices.problem.empty())
    return {{kGpus, "choices", choices.problem, Verdict::stop, str("delete ", choices.store)}};
  std::vector<Finding> out;
  std::set<std::string> models;
  for (const DeviceFacts& d : facts.devices) {
    if (!models.insert(d.name).second) continue;
    const auto count = [&](const std::vector<std::string>& keys) {
      return std::ranges::count_if(keys, [&](const std::string& key) { return key.find(d.name) != std::string::npos; });
    };
    out.push_back({kGpus, "choices",
                   str(d.name, ": ", count(choices.shipped), " in this program's tables, ", count(choices.stored),
                       " in ", choices.store)});
  }
  return out;
}

bool is_healthy(const std::vector<Finding>& findings) {
  return std::ranges::none_of(findings, [](const Finding& f) { return f.verdict == Verdict::stop; });
}

std::string findings_table(const std::vector<Finding>& findings) {
  std::ostringstream out;
  std::string section;
  for (const Finding& f : findings) {
    if (f.section != section) out << (section.empty() ? "" : "\n") << f.section << '\n';
    section = f.section;
    out << "  " << std::left << std::setw(6) << mark(f.verdict) << std::setw(20) << f.name << ' ' << f.detail << '\n';
    if (f.verdict >= Verdict::note && !f.fix.empty()) out << std::string(29, ' ') << "-> " << f.fix << '\n';
  }
  const auto stops = std::ranges::count(findings, Verdict::stop, &Finding::verdict);
  if (stops == 0)
    out << "\nNothing here would stop a training run.\n";
  else
    out << '\n' << stops << (stops == 1 ? " thing" : " things") << " here would stop a training run (STOP above).\n";
  return out.str();
}

}  // namespace ring
