#include <algorithm>
#include <filesystem>
#include <iostream>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/starting_settings.h"
#include "core/check.h"
#include "core/stream.h"
#include "core/utf8_text.h"
#include "data/hub_name.h"
#include "data/load_chat_format.h"
#include "data/load_tokenizer.h"
#include "data/output_file.h"
#include "data/packed_rows.h"
#include "data/text_advice.h"
#include "data/token_store.h"
#include "engine/devices.h"
#include "engine/run_directory.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

struct InitArguments {
  StartingPoint start;
  std::string file = "config.yaml", name;
  DeviceChoice device = DeviceChoice::automatic;
  bool force = false;
  std::string notes;  // notes about settings that the user may want to change
};

RunDirectory run_of(const std::string& weights) {
  if (const auto run = run_containing(weights)) return *run;
  if (const std::string advice = download_and_import_advice(weights); !advice.empty())
    fail("--from: ", weights, " is not a run", advice);
  fail("--from: ", weights, " is not a run. Import published weights first: ", import_command(weights));
}

void check(const InitArguments& a) {
  if (fs::exists(a.file) && !a.force) fail("init: ", a.file, " exists. Give another name, or --force");
  const bool tunes = a.start.kind == "finetune";
  if (tunes && a.start.weights.empty())
    fail(
        "init: --template finetune requires --from RUN: a run, or published weights after ringmaster import DIR "
        "--output RUN");
  if (!tunes && !a.start.weights.empty()) fail("init: --from requires --template finetune");
}

void say_what_is_next(const InitArguments& a, bool corpus) {
  std::cout << a.file << ": settings for a " << a.start.kind << " run on " << (a.start.gpu ? "a GPU" : "CPUs") << "\n"
            << a.notes;
  if (!corpus && a.start.weights.empty()) {
    std::cout << "next: ringmaster data prepare --input TEXT --output " << a.start.data << " --tokenizer bytes\n";
  } else if (!corpus) {
    const std::string tokenizer = run_of(a.start.weights).tokenizer_file();
    std::cout << "next: ringmaster data prepare --input CHATS.jsonl --chat-field"
              << (chat_format_beside(tokenizer).source.empty() ? " --chat-template plain" : "") << " --output "
              << a.start.data << " --tokenizer " << tokenizer << "\n";
  }
  std::cout << (corpus ? "next: " : "then: ") << "ringmaster train " << a.file << "\n";
}

// Takes the model's settings from the run. If the run is an imported model, which has a model.yaml, the new settings
// file includes that file.
void take_model(InitArguments& a) {
  const RunDirectory run = run_of(a.start.weights);
  a.start.model = run.config().model;
  const fs::path file = fs::path(run.path()) / kModelFile;
  std::error_code error;
  if (!fs::exists(file, error)) return;
  const fs::path folder = fs::absolute(a.file).parent_path();
  a.start.model_file = file.is_absolute() ? file.string() : fs::absolute(file).lexically_relative(folder).string();
}

// Returns true if the run with this name is the run that --from names.
bool names_base(const InitArguments& a, const std::string& name) {
  std::error_code error;
  return !a.start.weights.empty() &&
         fs::equivalent(run_of(a.start.weights).path(), RunConfig{.name = name}.path(), error);
}

// Returns the run's name: --name; else the name of the settings file; else, if the file is config.yaml, the default.
std::string name_of(const InitArguments& a) {
  if (!a.name.empty()) {
    if (names_base(a, a.name)) fail("init: --name: ", a.name, " is the run that --from starts from. Give another name");
    return a.name;
  }
  const std::string stem = fs::path(a.file).stem().string();
  const std::string name = stem.empty() || stem == "config" ? a.start.name : stem;
  return names_base(a, name) ? name + "-finetune" : name;
}

void note_existing_run(InitArguments& a) {
  const RunDirectory run(RunConfig{.name = a.start.name}.path());
  if (run.exists())
    a.notes += str("note: ", run.path(),
                   " exists, so training with this file continues it. For a separate run, give --name\n");
}

std::uint64_t longest_document(const TokenSplit& split) {
  DocumentStarts starts(split);
  std::uint64_t longest = 0;
  for (std::uint64_t d = 0; d < split.documents(); ++d) longest = std::max(longest, starts(d + 1) - starts(d));
  return longest;
}

void note_cut_documents(InitArguments& a, const TokenSplit& split) {
  const std::int64_t context = finetune_context(a.start), known = a.start.model->context;
  const std::uint64_t cut = documents_longer_than(split, context);
  if (!cut) return;
  a.notes +=
      str("note: ", cut, " of ", split.documents(), " documents are longer than model.context (", context,
          ") and are cut; the longest has ", a.start.longest, " tokens. ",
          context < known ? str("The model supports a context of ", known, ": raise model.context, or shorten them")
                          : "The model does not support a longer context: shorten them before `data prepare`",
          "\n");
}

// Throws Error if the corpus was made with a different tokenizer from the tokenizer of the weights.
void check_tokenizer_of_weights(const InitArguments& a, const TokenStore& store) {
  const std::string file = run_of(a.start.weights).tokenizer_file();
  if (!fs::exists(file) || load_tokenizer(file)->hash() == store.tokenizer_hash()) return;
  fail("--data: ", a.start.data, " was made with a tokenizer of kind ", store.tokenizer()->kind(),
       ", which is not the tokenizer of ", a.start.weights, ". Prepare it again with --tokenizer ", file);
}

void take_corpus(InitArguments& a) {
  const bool tunes = a.start.kind == "finetune";
  if (tunes && is_text_file(a.start.data)) {
    const RunDirectory base = run_of(a.start.weights);
    fail("--data: expected a corpus (.h5), but ", a.start.data, " is text. Prepare it with `",
         preparing_command(a.start.data, {base.tokenizer_file(), fs::exists(base.chat_template_file())}),
         "`, and give --data ", corpus_name(a.start.data));
  }
  const auto store = TokenStore::open(a.start.data);
  a.start.tokens = store->train().tokens();
  if (!tunes) return;
  check_tokenizer_of_weights(a, *store);
  a.start.longest = longest_document(store->train());
  note_cut_documents(a, store->train());
}

void run_init(InitArguments& a) {
  check(a);
  a.start.name = name_of(a);
  note_existing_run(a);
  const Backend wanted = backend_of(a.device);
  a.start.gpu = wanted == Backend::cuda;
  const bool corpus = fs::exists(a.start.data);
  if (!a.start.weights.empty()) take_model(a);
  if (corpus) take_corpus(a);
  const std::string settings = starting_settings(a.start);
  if (!is_utf8(settings))
    fail(
        "init: expected names and paths in UTF-8, which YAML requires, got other bytes. Rename the files, or give a "
        "different --name");
  write_whole(a.file, settings);
  say_what_is_next(a, corpus);
}

}  // namespace

void add_init_command(Command app) {
  const Command init =
      app.add_subcommand("init", "Write a settings file with comments, for this machine and your data");
  InitArguments& a = init.runs(run_init);
  init.add_option("file", a.file, "File to write").show_default();
  init.add_option("--template", a.start.kind, "Kind of run").one_of(starting_kinds()).show_default();
  init.add_option("--data", a.start.data, "The corpus; if it already exists, the number of steps follows from its size")
      .show_default();
  init.add_option("--from", a.start.weights, "With --template finetune: the run or import whose weights to start from")
      .type_name("RUN");
  init.add_option("--name", a.name, "Name of the run (default: the file's name without .yaml)");
  add_device(init, a.device, "Device to write settings for");
  init.add_flag("--force", a.force, "Overwrite the file");
  init.footer("Example: ringmaster init my.yaml --template long-context --data books.h5");
}

}  // namespace ring
