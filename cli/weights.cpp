// `ringmaster export` and `ringmaster import`.

#include <cctype>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/weights_option.h"
#include "core/counted.h"
#include "core/stop_signal.h"
#include "interchange/gguf/export.h"
#include "interchange/hf/export.h"
#include "interchange/hf/import.h"

namespace ring {
namespace {

constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 50;

struct ExportArguments {
  std::string run, output, type, format;  // format: "" until set_format() is called
  SavedWeights weights = SavedWeights::latest;
  std::uint64_t max_bytes = ExportOptions{}.max_bytes;
  std::int64_t context = 0;
  bool merge = false;
};

struct ImportArguments {
  std::string folder, output, tokenizer;
};

std::string summary(const std::string& architecture, std::size_t tensors, std::int64_t parameters) {
  return str(architecture, ", ", counted(static_cast<std::int64_t>(tensors), "tensor"), ", ",
             counted(parameters, "parameter"));
}

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::cout << note << "\n";
}

template <class T>
std::optional<T> type_named(const std::map<std::string, T>& types, const ExportArguments& a) {
  if (a.type.empty()) return std::nullopt;
  const auto found = types.find(a.type);
  if (found == types.end()) fail("--dtype: ", a.type, " is not available with --format ", a.format);
  return found->second;
}

void export_hf(const ExportArguments& a, const StopSignal& signal) {
  static const std::map<std::string, FloatType> types = {
      {"bf16", FloatType::bf16}, {"f16", FloatType::f16}, {"f32", FloatType::f32}};
  ExportOptions options;
  options.weights = a.weights;
  options.type = type_named(types, a);
  options.max_bytes = a.max_bytes;
  options.stopped = [&] { return signal.requested(); };
  options.context = a.context;
  options.merge = a.merge;
  const Exported e = export_to_hf(a.run, a.output, options);
  const std::string what = str(e.adapter ? "adapter of " : "", architecture(e.family));
  std::cout << e.checkpoint << " -> " << e.folder << ": " << summary(what, e.tensors, e.parameters) << ", "
            << safetensors_name(e.type) << "\n";
  print_notes(e.notes);
}

void export_gguf(const ExportArguments& a, const StopSignal& signal) {
  static const std::map<std::string, GgufType> types = {
      {"bf16", GgufType::bf16}, {"f16", GgufType::f16}, {"f32", GgufType::f32}, {"q8_0", GgufType::q8_0}};
  const GgufOptions options{.weights = a.weights,
                            .type = type_named(types, a),
                            .stopped = [&] { return signal.requested(); },
                            .context = a.context,
                            .merge = a.merge};
  const GgufExported e = export_to_gguf(a.run, a.output, options);
  std::cout << e.checkpoint << " -> " << e.file << ": " << summary(e.architecture, e.tensors, e.parameters) << ", "
            << gguf_name(e.type) << "\n";
  print_notes(e.notes);
}

// Unless --format was given, sets the format by the output's extension: gguf for .gguf, else hf. Throws Error if
// --format hf is given for a .gguf file.
void set_format(ExportArguments& a) {
  std::string ending = std::filesystem::path(a.output).extension().string();
  for (char& c : ending) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const bool named_gguf = ending == ".gguf";
  if (a.format == "hf" && named_gguf)
    fail("--output: --format hf writes a folder, got the GGUF file ", a.output,
         ". Omit --format to write that file, or name a folder");
  if (a.format.empty()) a.format = named_gguf ? "gguf" : "hf";
}

void export_weights(ExportArguments& a, bool max_bytes_given) {
  set_format(a);
  const StopSignal signal(/*announces=*/false);
  if (a.format == "hf") return export_hf(a, signal);
  if (max_bytes_given) fail("--max-file-bytes: --format gguf writes only one file. Omit --max-file-bytes");
  export_gguf(a, signal);
}

void import_weights(const ImportArguments& a) {
  const StopSignal signal(/*announces=*/false);
  ImportOptions options;
  options.tokenizer = a.tokenizer;
  options.stopped = [&] { return signal.requested(); };
  const Imported i = import_from_hf(a.folder, a.output, options);
  std::cout << a.folder << " -> " << i.run << ": " << summary(architecture(i.family), i.tensors, i.parameters) << "\n";
  print_notes(i.notes);
  std::cout << "To train from it: ringmaster init my.yaml --template finetune --from " << i.run
            << " --data corpus.h5\n";
}

}  // namespace

void add_export_command(Command app) {
  auto a = std::make_shared<ExportArguments>();
  const Command cmd =
      app.add_subcommand("export", "Write a trained model for Hugging Face's transformers or llama.cpp");
  cmd.add_option("run", a->run, "Directory of a run, or one of its checkpoints").required();
  cmd.add_option("--output", a->output, "Folder or .gguf file to write; existing ones are not overwritten")
      .required()
      .type_name("PATH");
  cmd.add_option(
         "--format", a->format,
         "hf: folder with safetensors and config.json; gguf: file for llama.cpp; default: gguf if --output ends with "
         ".gguf, else hf")
      .one_of({"hf", "gguf"});
  cmd.add_option(
         "--dtype", a->type,
         "bf16, f16, f32, or q8_0 for gguf; default: the checkpoint's type, or f32 if it has several, which is exact")
      .one_of({"bf16", "f16", "f32", "q8_0"});
  cmd.add_flag("--merge", a->merge,
               "Merge low-rank adapters (model.lora) into the weights; default: hf writes only the adapters, for PEFT");
  const Option max = cmd.add_bytes("--max-file-bytes", a->max_bytes,
                                   "hf: split larger weights into files of at most this size, such as 5GB", 1, kMaxFile)
                         .show_default();
  add_weights(cmd, a->weights);
  cmd.add_number(
      "--context", a->context,
      "Context written to the files, in tokens; default: the longest of model.context and the contexts of the models "
      "in run.init_from",
      1, kMaxLength);
  cmd.footer("Example: ringmaster export runs/books --output books.gguf --dtype q8_0");
  cmd.set_callback([a, max] { export_weights(*a, max.given()); });
}

void add_import_command(Command app) {
  const Command cmd =
      app.add_subcommand("import", "Import published weights as a run (Llama, Mistral, Qwen, SmolLM, GPT-2)");
  ImportArguments& a = cmd.runs(import_weights);
  cmd.add_option("folder", a.folder, "Folder with config.json and safetensors")
      .required()
      .check(check_import_folder);  // checked first, so that its error is reported before a missing --output
  cmd.add_option("--output", a.output, "Directory of the new run; an existing one is not overwritten")
      .required()
      .type_name("RUN");
  cmd.add_option(
      "--tokenizer", a.tokenizer,
      "none, bytes, a file (.rmt, tokenizer.json, .model, .h5) or a folder; default: in the weights' folder");
  cmd.footer("Example: ringmaster import SmolLM2-135M --output runs/smollm2");
}

}  // namespace ring
