#include "bench/calibrate.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/print.h"
#include "cli/rates.h"
#include "core/fields.h"
#include "core/files.h"
#include "engine/devices.h"

namespace ring {
namespace {

struct CalibrateArguments {
  BenchConfig config;
  std::string out = "rates.yaml";
};

void run_calibrate(const CalibrateArguments& a, const Facts& given) {
  Config config = a.config.load();
  config.run.rates.clear();  // the setting may name the file that this command writes
  StepBenchmark bench(config, join_mesh(config, given));
  const bool leader = bench.mesh().rank() == 0;
  const DeviceRates before =
      leader ? rates_to_update(a.out, calibrated_device(bench.exec())) : DeviceRates{.device = ""};
  const DeviceRates rates = calibrate(bench, before);
  bench.mesh().host().barrier().synchronize();  // allowed host wait: shutdown
  if (!leader) return;
  write_whole(a.out, to_yaml(rates));
  print_format("%s\nwritten to %s: ringmaster plan %s --rates %s\n", to_yaml(rates).c_str(), a.out.c_str(),
               a.config.file.c_str(), a.out.c_str());
}

}  // namespace

void add_bench_calibrate(Command bench) {
  const Command cmd = bench.add_subcommand(
      "calibrate", "Measure this machine's rates in steps of a model, for ringmaster plan --rates");
  auto a = std::make_shared<CalibrateArguments>();
  a->config.add_to(cmd);
  cmd.add_option("--out", a->out,
                 "File to write; its rates of other precisions and of the link stay if it is of this device")
      .show_default();
  cmd.footer("Example: ringmaster launch -n 2 -- bench calibrate bench/shapes/1b.yaml --out h200.yaml");
  cmd.set_callback([a, cmd] { run_calibrate(*a, facts_of_options(cmd, {"--out"})); });
}

}  // namespace ring
