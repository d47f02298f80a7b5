#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/eval_long.h"
#include "cli/eval_tasks.h"
#include "cli/number_option.h"
#include "cli/weights_option.h"
#include "comm/mesh/mesh.h"
#include "data/output_file.h"
#include "data/token_store.h"
#include "engine/devices.h"
#include "trainer/evaluate.h"
#include "trainer/session.h"
#include "trainer/text_corpus.h"

namespace ring {
namespace {

struct Arguments {
  std::string run, data, split = "validation", output;
  std::vector<std::string> tasks;
  PrepareOptions text;
  std::int64_t context = 0, batches = 0, rows = 0;
  int threads = 0;
  DeviceChoice device = DeviceChoice::automatic;
  SavedWeights weights = SavedWeights::latest;
  bool json = false, long_context = false;
  LongEvalArguments long_eval;
};

Corpora corpora_of(const Arguments& a, const Session& session) {
  if (!a.text.inputs.empty()) {
    PrepareOptions text = a.text;
    text.threads = a.threads;
    return corpus_of_text(text, *session.tokenizer);
  }
  if (a.data.empty() && !session.origin.imported.empty())
    fail("--data: ", a.run, " holds imported weights, which have no corpus of their own: give one, or --text");
  Corpora corpora = a.data.empty() ? open_corpora(session.config.data) : open_corpus(a.data);
  check_tokenizer(corpora, session.tokenizer->hash(), "run " + a.run);
  if (a.data.empty()) check_data(session.origin, corpora, "Put the old ones back, or give --data");
  return corpora;
}

// All of --text is its training split.
Split split_of(const Arguments& a) {
  return !a.text.inputs.empty() || a.split == "train" ? Split::train : Split::validation;
}

bool masked(const Arguments& a, const Corpora& corpora) {
  const auto some = [&](const auto& s) {
    return (split_of(a) == Split::train ? s->train() : s->validation()).masked();
  };
  return std::ranges::any_of(corpora.stores, some);
}

ValidationSet windows_of(const Arguments& a, const Session& session, const Corpora& corpora) {
  LoaderOptions options;
  options.context = a.context ? a.context : session.config.model.context;
  options.rows = batch_rows(a.rows, options.context);
  check_tokens_at_once("--batch-size", options.rows, options.context);
  options.packing = session.config.data.packing;
  return {corpora, options, a.batches * options.rows, split_of(a)};
}

// To the terminal, and whole or not at all to a file.
void print_json(const nlohmann::ordered_json& json, const Arguments& a) {
  if (a.json) std::cout << json << "\n";
  if (!a.output.empty()) write_whole(a.output, json.dump(2) + "\n");
}

void run(const Arguments& a) {
  if (!a.output.empty()) check_writable(a.output);
  const Session session = open_session(a.run, a.threads, a.device, 0, a.weights);
  if (a.context) check_length(session.model->config(), "--context", a.context);
  if (!a.tasks.empty()) return print_json(evaluate_tasks(session, a.tasks, a.context, a.rows, a.json), a);
  const Corpora corpora = corpora_of(a, session);
  if (a.long_context) return long_eval(session, corpora, split_of(a), a.long_eval, a.batches, a.rows, a.json);
  const ValidationSet set = windows_of(a, session, corpora);
  const std::unique_ptr<Mesh> alone = mesh_of_one();
  const Evaluation e = evaluate(*session.model, session.ctx, set, alone->all());
  const double bits = e.bits_per_byte(set.bytes_per_token());
  nlohmann::ordered_json json = {{"loss", e.loss},
                                 {"perplexity", e.perplexity()},
                                 {"bits_per_byte", bits},
                                 {"accuracy", e.accuracy},
                                 {"tokens", e.tokens}};
  const auto sources = mean_losses(e.sources, corpora.names);
  for (const auto& [name, loss] : sources) json["sources"][name] = loss;
  print_json(json, a);
  if (a.json) return;
  std::cout << "loss " << e.loss << ", perplexity " << e.perplexity() << ", bits per byte " << bits
            << (masked(a, corpora) ? str(", accuracy ", e.accuracy) : "") << ", over " << e.tokens << " tokens\n";
  for (const auto& [name, loss] : sources) std::cout << "  " << name << ": loss " << loss << "\n";
}

void add_text(CLI::App& cmd, Arguments& a) {
  CLI::Option* data =
      cmd.add_option("--data", a.data, "Corpus (.h5) with the run's tokenizer to read; default: the run's own");
  CLI::Option* split = cmd.add_option("--split", a.split, "Which split of the corpus: train or validation")
                           ->check(CLI::IsMember({"train", "validation"}))
                           ->capture_default_str();
  CLI::Option* text =
      cmd.add_option("--text", a.text.inputs,
                     "Instead of a corpus: files of text or JSON Lines, also compressed, Parquet, and folders")
          ->type_name("PATH")
          ->excludes(data)
          ->excludes(split);
  cmd.add_option("--text-field", a.text.members.text,
                 "With --text: it is JSON Lines or Parquet, and this member of each record is a document's text")
      ->type_name("NAME")
      ->needs(text);
  cmd.add_option("--document", a.text.document,
                 "With --text: what is one document: file, line, blank-line, or the text that separates documents")
      ->capture_default_str()
      ->needs(text);
  add_number(cmd, "--context", a.context,
             "Tokens of the windows that the text is cut into, and most of a question of a task; 0: the model's "
             "context, which may be very long in imported models",
             0, kMostLength);
}

}  // namespace

void add_eval_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand(
      "eval",
      "Loss, perplexity, bits per byte and accuracy of a trained model on a corpus or on text, or how it uses "
      "a long context");
  auto a = std::make_shared<Arguments>();
  cmd->add_option("run", a->run, "Directory of a run, or one of its checkpoints")->required();
  add_text(*cmd, *a);
  add_number(*cmd, "--batches", a->batches, "Batches to read, spread over the split; 0: all of it", 0, kMostCount);
  add_number(*cmd, "--batch-size", a->rows, "Sequences per batch; 0: at most 32, about 32,768 tokens", 0, 1 << 30);
  add_number(*cmd, "--threads", a->threads, "CPU threads; 0: all cores", 0, kMostThreads);
  add_device(*cmd, a->device);
  add_weights(*cmd, a->weights);
  CLI::Option* json = cmd->add_flag("--json", a->json, "Print one JSON object");
  cmd->add_option("--output", a->output, "Write the same JSON object to this file")->type_name("FILE");
  CLI::Option* tasks = cmd->add_option("--task,--tasks", a->tasks,
                                       "Instead: questions in JSON Lines, in the format of HellaSwag, ARC, MMLU, "
                                       "LAMBADA or {\"context\", \"choices\", \"answer\"}")
                           ->type_name("NAME=FILE");
  for (const char* other : {"--data", "--split", "--text", "--batches"}) tasks->excludes(cmd->get_option(other));
  CLI::Option* long_context = cmd->add_flag(
      "--long", a->long_context,
      "Instead: the mean loss by position in the window (attention across documents), and how often the model answers "
      "questions about what was said far back in a prompt of filler text, such as a random number (passkey)");
  for (const char* other : {"--context", "--output"}) long_context->excludes(cmd->get_option(other));
  tasks->excludes(long_context);
  a->long_eval.add_to(*cmd, long_context);
  json->excludes(cmd->get_option("--csv"));
  cmd->footer(
      "Examples: ringmaster eval runs/quickstart --data corpus.h5\n"
      "          ringmaster eval runs/quickstart --text notes.txt more.jsonl.gz --context 512\n"
      "          ringmaster eval runs/quickstart --task hellaswag=hellaswag_val.jsonl lambada=lambada.jsonl\n"
      "          ringmaster eval runs/quickstart --long --lengths 1024,4096 --depths 0,0.5,1");
  cmd->callback([a] { run(*a); });
}

}  // namespace ring
