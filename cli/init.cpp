#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/starting_settings.h"
#include "core/check.h"
#include "core/stream.h"
#include "data/hub_name.h"
#include "data/output_file.h"
#include "data/token_store.h"
#include "engine/devices.h"
#include "trainer/run_directory.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  StartingPoint start;
  std::string file = "config.yaml", name;
  DeviceChoice device = DeviceChoice::automatic;
  bool force = false;
};

RunDirectory run_of(const std::string& weights) {
  if (const auto run = run_around(weights)) return *run;
  if (const std::string advice = download_and_import_advice(weights); !advice.empty())
    fail("--from: ", weights, " is no run", advice);
  fail("--from: ", weights, " is no run. Published weights become one: ", import_command(weights));
}

void check(const Arguments& a) {
  if (fs::exists(a.file) && !a.force) fail("init: ", a.file, " exists. Give another name, or --force");
  const bool tunes = a.start.kind == "finetune";
  if (tunes && a.start.weights.empty())
    fail("init: finetune needs --from RUN: a run, or published weights after ringmaster import DIR --output RUN");
  if (!tunes && !a.start.weights.empty()) fail("init: --from is for --template finetune");
}

void say_what_is_next(const Arguments& a, bool corpus) {
  std::cout << a.file << ": settings for a " << a.start.kind << " run on " << (a.start.gpu ? "a GPU" : "CPUs") << "\n";
  if (!corpus)
    std::cout << "next: ringmaster data prepare --input TEXT --output " << a.start.data << " --tokenizer "
              << (a.start.weights.empty() ? "bytes" : run_of(a.start.weights).tokenizer_file()) << "\n";
  std::cout << (corpus ? "next: " : "then: ") << "ringmaster train " << a.file << "\n";
}

// Takes the model's settings from the run. If it is an imported model, which has a model.yaml, the new file includes
// that.
void take_model(Arguments& a) {
  const RunDirectory run = run_of(a.start.weights);
  a.start.model = run.config().model;
  const fs::path file = fs::path(run.path()) / kModelFile;
  std::error_code error;
  if (!fs::exists(file, error)) return;
  const fs::path folder = fs::absolute(a.file).parent_path();
  a.start.model_file = file.is_absolute() ? file.string() : fs::absolute(file).lexically_relative(folder).string();
}

// Returns the name of the run that the settings file describes. A file with a name that says nothing keeps the default.
std::string name_of(const Arguments& a) {
  if (!a.name.empty()) return a.name;
  const std::string stem = fs::path(a.file).stem().string();
  return stem.empty() || stem == "config" ? a.start.name : stem;
}

// Takes the size of the corpus and, for a finetune, of its longest document.
void look_at(Arguments& a) {
  const auto store = TokenStore::open(a.start.data);
  const auto& train = store->train();
  a.start.tokens = train.tokens();
  if (a.start.kind != "finetune") return;
  for (std::uint64_t d = 0; d < train.documents(); ++d)
    a.start.longest = std::max(a.start.longest, train.document_start(d + 1) - train.document_start(d));
}

void run(Arguments a) {
  check(a);
  a.start.name = name_of(a);
  const Backend wanted = backend_of(a.device);
  a.start.gpu = wanted == Backend::cuda;
  const bool corpus = fs::exists(a.start.data);
  if (corpus) look_at(a);
  if (!a.start.weights.empty()) take_model(a);
  write_whole(a.file, starting_settings(a.start));
  say_what_is_next(a, corpus);
}

}  // namespace

void add_init_command(CLI::App& app) {
  CLI::App* init = app.add_subcommand("init", "Write a settings file with comments, for this machine and your data");
  auto a = std::make_shared<Arguments>();
  init->add_option("file", a->file, "The file to write")->capture_default_str();
  init->add_option("--template", a->start.kind, "What to begin with")
      ->check(CLI::IsMember(starting_kinds()))
      ->capture_default_str();
  init->add_option("--data", a->start.data, "The corpus; where it exists already, steps follow from its size")
      ->capture_default_str();
  init->add_option("--from", a->start.weights, "finetune: the run or import whose weights it takes")->type_name("RUN");
  init->add_option("--name", a->name, "Name of the run (default: the file's name without .yaml)");
  add_device(*init, a->device, "What to write for");
  init->add_flag("--force", a->force, "Overwrite the file");
  init->footer("Example: ringmaster init my.yaml --template long-context --data books.h5");
  init->callback([a] { run(*a); });
}

}  // namespace ring
