#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/eval_corpus.h"
#include "cli/eval_long.h"
#include "cli/eval_tasks.h"
#include "cli/output_option.h"
#include "cli/weights_option.h"
#include "comm/mesh/mesh.h"
#include "core/json.h"
#include "data/output_file.h"
#include "engine/devices.h"
#include "engine/run_directory.h"
#include "evaluate/evaluate.h"
#include "evaluate/session.h"
#include "evaluate/tasks.h"
#include "parallel/plan.h"

namespace ring {
namespace {

struct EvalArguments {
  std::string run, adapter, output;
  std::vector<std::string> tasks;
  EvalCorpus corpus;
  std::int64_t context = 0, sequence_chunk = 0;
  int threads = 0;
  DeviceChoice device = DeviceChoice::automatic;
  SavedWeights weights = SavedWeights::latest;
  bool json = false, long_context = false;
  LongEvalArguments long_eval;
};

// Prints JSON to the terminal, or writes a file, completely or not at all.
void print_json(const nlohmann::ordered_json& json, const EvalArguments& a) {
  const auto text = [&](int indent) {  // not dump(), which throws if a path is invalid UTF-8
    return json_text(json, indent) + "\n";
  };
  if (a.json) std::cout << text(-1);
  if (!a.output.empty()) write_whole(a.output, text(2));
}

std::string packing_text(const PackingConfig& packing) {
  return str("attention ", packing.documents ? "within" : "across", " documents",
             packing.best_fit ? ", which are cut only if longer than a window" : "");
}

// Returns the chunks in which windows are computed; null if windows are computed whole. tokens: of a chunk.
std::unique_ptr<ContextBatches> chunks_of(const Session& session, std::int64_t window, std::int64_t tokens) {
  ModelConfig model = session.model->config();
  model.context = window;
  const ParallelPlan plan = make_plan({}, model, {.sequences = 1, .micro_batch = 1, .sequence_chunk = tokens}, 1);
  return plan.in_chunks ? std::make_unique<ContextBatches>(plan.cp_layout, session.ctx, 0) : nullptr;
}

void run_eval(const EvalArguments& a) {
  if (!a.output.empty()) {
    std::vector<std::string> inputs = a.corpus.text.inputs;
    inputs.push_back(a.corpus.data);
    for (const TaskSpec& task : parse_tasks("--task", a.tasks)) inputs.push_back(task.file);
    check_output("--output", a.output, inputs);
  }
  const Session session =
      open_session(a.run, {.threads = a.threads, .device = a.device, .weights = a.weights}, a.adapter);
  if (a.context) check_length(session.model->config(), "--context", a.context);
  if (!a.tasks.empty()) return print_json(evaluate_tasks(session, a.tasks, a.context, a.corpus.rows, a.json), a);
  const Corpora corpora = a.corpus.open_corpora(a.run, a.threads, session);
  if (a.long_context)
    return long_eval(session, corpora, a.corpus.split(), a.long_eval, a.corpus.batches, a.corpus.rows, a.json);
  const std::int64_t window = a.context ? a.context : session.config.model.context;
  const auto chunks =
      chunks_of(session, window, a.sequence_chunk ? a.sequence_chunk : session.config.train.sequence_chunk);
  const ValidationSet set = a.corpus.make_validation_set(session, corpora, window, chunks != nullptr);
  const std::unique_ptr<Mesh> alone = mesh_of_one();
  const Evaluation e = evaluate(*session.model, session.ctx, set, alone->all(), chunks.get());
  const double bits = e.bits_per_byte(set.bytes_per_token());
  nlohmann::ordered_json json = {{"loss", e.loss},
                                 {"perplexity", e.perplexity()},
                                 {"bits_per_byte", bits},
                                 {"accuracy", e.accuracy},
                                 {"tokens", e.tokens},
                                 {"context", window},
                                 {"separate_documents", set.options().packing.documents},
                                 {"best_fit", set.options().packing.best_fit},
                                 {"checkpoint", session.origin.checkpoint}};
  const auto sources = mean_losses(e.sources, corpora.names);
  for (const auto& [name, loss] : sources) json["sources"][name] = loss;
  print_json(json, a);
  if (a.json) return;
  std::cout << "loss " << e.loss << ", perplexity " << e.perplexity() << ", bits per byte " << bits
            << (a.corpus.has_loss_mask(corpora) ? str(", accuracy ", e.accuracy) : "") << ", over " << e.tokens
            << " tokens in windows of " << window << ", " << packing_text(set.options().packing) << "\n";
  for (const auto& [name, loss] : sources) std::cout << "  " << name << ": loss " << loss << "\n";
}

}  // namespace

void add_eval_command(Command app) {
  const Command cmd = app.add_subcommand(
      "eval",
      "Measure loss, perplexity, bits per byte and accuracy of a trained model on a corpus or text, or its use of a "
      "long context");
  EvalArguments& a = cmd.runs(run_eval);
  cmd.add_option("run", a.run, "Directory of a run, or one of its checkpoints").required();
  a.corpus.add_to(cmd);
  cmd.add_number(
      "--context", a.context,
      "Tokens per window of the text, and the most per question of a task; 0: the model's context, which may be very "
      "long in imported models",
      0, kMaxLength);
  cmd.add_number("--sequence-chunk", a.sequence_chunk,
                 "Tokens of a window computed at a time; 0: train.sequence_chunk of the run", 0, kMaxLength);
  a.corpus.add_batches_to(cmd);
  cmd.add_number("--threads", a.threads, "CPU threads; 0: all cores", 0, kMaxThreads);
  add_device(cmd, a.device);
  add_weights(cmd, a.weights);
  add_adapter(cmd, a.adapter);
  const Option json = cmd.add_flag("--json", a.json, "Print one JSON object");
  cmd.add_option("--output", a.output, "Write the same JSON object to this file").type_name("FILE");
  const Option tasks =
      cmd.add_option(
             "--task,--tasks", a.tasks,
             "Answer questions: HellaSwag, ARC, MMLU, LAMBADA, or {\"context\", \"choices\", \"answer\"} as JSON Lines")
          .type_name("NAME=FILE");
  tasks.excludes({"--data", "--split", "--text", "--batches", "--separate-documents", "--sequence-chunk"});
  cmd.add_flag("--long", a.long_context,
               "Measure loss by position in the window, or recall of a fact far back, e.g. a number (passkey)")
      .excludes({"--context", "--output", "--separate-documents", "--sequence-chunk", "--task"});
  a.long_eval.add_to(cmd);
  json.excludes({"--csv"});
  cmd.footer(
      "Examples: ringmaster eval runs/quickstart --data corpus.h5\n"
      "          ringmaster eval runs/quickstart --text notes.txt more.jsonl.gz --context 512\n"
      "          ringmaster eval runs/quickstart --task hellaswag=hellaswag_val.jsonl lambada=lambada.jsonl\n"
      "          ringmaster eval runs/quickstart --long --lengths 1024,4096 --depths 0,0.5,1");
}

}  // namespace ring
