#include "bench/calibrate.h"
#include "bench/links.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/print.h"
#include "cli/rates.h"
#include "core/checked.h"
#include "core/counted.h"
#include "core/cpu/thread_pool.h"
#include "core/fields.h"
#include "core/files.h"
#include "engine/devices.h"

namespace ring {
namespace {

struct LinksArguments {
  DeviceChoice device = DeviceChoice::automatic;
  std::string out = "rates.yaml";
  double seconds = kMessageSeconds;
};

// Returns the rates to complete: the rates in the file, or the shipped table of this device.
DeviceRates rates_before(const std::string& file, const Config& c, const ExecContext& ctx) {
  DeviceRates rates = rates_to_update(file, calibrated_device(ctx));
  if (!rates.device.empty()) return rates;
  rates = rates_named("", c);
  rates.device = calibrated_device(ctx);
  return rates;
}

void run_links(const LinksArguments& a, const Facts& given) {
  Config config;
  config.run.device = a.device;
  const Environment environment = current_environment();
  const WorkerEnvironment env = parse_environment(environment);
  if (env.world == 1)
    fail(
        "bench links: one process has no links. Start several: ringmaster launch -n 2 -- bench links, or on each of N "
        "nodes: ringmaster launch --nnodes N --nproc-per-node P --rdzv-endpoint ADDRESS:PORT --secret-file FILE -- "
        "bench links");
  const std::unique_ptr<Mesh> mesh = join_mesh(config, given, layout_of_links);
  const Backend backend = mesh->device().backend;
  config.run.device = backend == Backend::cpu ? DeviceChoice::cpu : DeviceChoice::cuda;
  ExecContext ctx{Stream::create(mesh->device(), default_threads())};
  ctx.precision = backend == Backend::cpu ? Precision::fp32 : Precision::bf16;
  const bool leader = mesh->rank() == 0;
  DeviceRates rates;
  if (leader) rates = rates_before(a.out, config, ctx);
  const Links links = measure_links(ctx, *mesh, a.seconds);
  mesh->host().barrier().synchronize();  // allowed host wait: shutdown
  if (!leader) return;
  set_links(links, rates);
  write_whole(a.out, to_yaml(rates));
  print_format("%s of %s, %s over %s\n\n%s\n", counted(links.nodes, "node").c_str(),
               counted(links.ranks_per_node, "rank").c_str(), rates.device.c_str(),
               std::string(mesh->all().backend()).c_str(), links_table(links).c_str());
  const std::string nodes = links.nodes > 1 ? str(" --nodes ", links.nodes, " --gpus-per-node ", links.ranks_per_node)
                                            : str(" --gpus ", links.ranks_per_node);
  if (links.between) print_format("Between nodes, GB/s is the rate of all ranks of a node together, or of one pair.\n");
  print_format("written to %s: ringmaster plan CONFIG --rates %s%s\n", a.out.c_str(), a.out.c_str(), nodes.c_str());
}

}  // namespace

void add_bench_links(Command bench) {
  const Command cmd = bench.add_subcommand(
      "links", "Measure messages inside and between the nodes of a job, for ringmaster plan --rates");
  auto a = std::make_shared<LinksArguments>();
  add_device(cmd, a->device, "Device whose memory the messages are in: NCCL on cuda, Gloo on cpu");
  cmd.add_option("--out", a->out,
                 "File to write; its other rates stay if it is of this device. A new file gets the shipped rates")
      .show_default();
  cmd.add_number("--seconds", a->seconds, "Seconds of each round of messages of one kind and size", 1e-3, 60)
      .show_default();
  cmd.footer(
      "Examples: ringmaster launch -n 4 -- bench links\n"
      "          ringmaster launch --nnodes 2 --nproc-per-node 8 --rdzv-endpoint node0:29400 --secret-file job.secret "
      "-- bench links --out h200.yaml");
  cmd.set_callback([a, cmd] { run_links(*a, facts_of_options(cmd, {"--out"})); });
}

}  // namespace ring
