#include "trainer/nodes.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "comm/host.h"
#include "core/awake_clock.h"
#include "core/checked.h"
#include "core/counted.h"
#include "core/device_memory.h"
#include "core/joined.h"
#include "core/log.h"
#include "engine/devices.h"
#include "job/liveness.h"
#include "job/secret.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
using Clock = AwakeClock;

constexpr std::chrono::seconds kVisible{5};  // maximum time until a network file system shows a new file on all nodes
constexpr std::chrono::milliseconds kLook{50};

// Groups consecutive ranks on the same host: "a (ranks 0-3: NVIDIA H200 of 139.8 GiB), b (ranks 4-7: ...)".
std::string text_of(const std::vector<std::string>& hosts, const std::vector<std::string>& devices) {
  std::vector<std::string> parts;
  for (std::size_t first = 0, last = 0; first < hosts.size(); first = last) {
    while (last < hosts.size() && hosts[last] == hosts[first] && devices[last] == devices[first]) ++last;
    const std::string name = hosts[first].substr(0, hosts[first].find('/'));
    const std::string ranks = last == first + 1 ? str("rank ", first) : str("ranks ", first, "-", last - 1);
    parts.push_back(str(name, " (", ranks, devices[first].empty() ? "" : ": ", devices[first], ")"));
  }
  return joined(parts, ", ");
}

// Returns e.g. "NVIDIA H200 of 139.8 GiB"; empty for a CPU.
std::string text_of(const Device& device) {
  if (device.backend == Backend::cpu) return "";
  const std::string name = Stream::create(device).impl().device_name();
  const auto memory = device_memory(device);
  return memory ? str(name, " of ", bytes_text(memory->total)) : name;
}

std::string contents(const std::string& file) {
  std::string text;
  std::getline(std::ifstream(file), text);  // allowed open: own
  return text;
}

bool sees(const std::string& file, const std::string& text) {
  const auto end = Clock::now() + kVisible;
  while (contents(file) != text) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(kLook);
  }
  return true;
}

// Returns the nearest existing folder: the run's own directory may not exist yet, because nothing of the run is written
// until all ranks agree.
std::string folder_of(const std::string& run_directory) {
  std::error_code error;
  fs::path folder = run_directory;
  while (!folder.empty() && !fs::is_directory(folder, error)) folder = folder.parent_path();
  return folder.empty() ? "." : folder.string();
}

// Returns each rank's problem with the test file; empty for a rank that sees the file.
std::vector<std::string> look_at_one_file(const std::string& run_directory, const std::string& host, Mesh& mesh) {
  const std::string text = random_cookie();
  std::string own_file, problem;
  if (mesh.rank() == 0) {
    own_file = folder_of(run_directory) + "/.seen-by-all-" + text;
    std::ofstream(own_file) << text << std::endl;  // allowed open: own
    if (contents(own_file) != text) problem = "rank 0 cannot write " + own_file;
  }
  const std::string file = gather_host(mesh.host(), own_file).front();
  const std::string expected = gather_host(mesh.host(), text).front();
  if (mesh.rank() > 0 && !sees(file, expected)) problem = str("rank ", mesh.rank(), " on ", host);
  const std::vector<std::string> problems = gather_host(mesh.host(), problem);
  std::error_code error;
  if (mesh.rank() == 0) fs::remove(own_file, error);
  return problems;
}

}  // namespace

void check_nodes(const std::string& run_directory, int nodes_of_launcher, Mesh& mesh) {
  const std::vector<std::string> hosts = gather_host(mesh.host(), host_identity());
  const std::vector<std::string> devices = gather_host(mesh.host(), text_of(mesh.device()));
  const bool one = std::ranges::all_of(hosts, [&](const std::string& h) { return h == hosts.front(); });
  if (mesh.rank() == 0 && !(one && nodes_of_launcher == 1 && devices.front().empty()))
    log::info("nodes: ", text_of(hosts, devices));
  if (one && nodes_of_launcher == 1) return;
  std::vector<std::string> problems = look_at_one_file(run_directory, host_name(), mesh);
  if (!problems.front().empty()) fail("run.directory: ", problems.front());
  std::erase(problems, "");
  if (!problems.empty())
    fail("run.directory: ", run_directory, " is not the same folder on all nodes: ", joined(problems, ", "),
         problems.size() == 1 ? " does" : " do", " not see the file that rank 0 on ",
         hosts.front().substr(0, hosts.front().find('/')),
         " wrote there. Use a path on a file system that all nodes share");
}

void resolve_islands(ParallelConfig& c, std::int64_t nodes) {
  if (c.islands == 0) c.islands = nodes;
}

std::vector<std::int64_t> fitting_node_counts(const Config& c, std::int64_t min, std::int64_t max, int workers) {
  const bool any = c.parallel.is_automatic() || !c.parallel.chosen.empty();
  std::vector<std::int64_t> fit;
  for (std::int64_t nodes = min; nodes <= max; ++nodes) try {
      Config resolved = c;
      resolve_islands(resolved.parallel, nodes);
      if (!any) plan_of(resolved, narrow<int>(nodes * workers));
      fit.push_back(nodes);
    } catch (const Error&) {  // reported only if the job ever runs on this number of nodes
    }
  return fit;
}

}  // namespace ring
