#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/eval_long.h"
#include "cli/number_option.h"
#include "comm/mesh/mesh.h"
#include "engine/devices.h"
#include "trainer/evaluate.h"
#include "trainer/session.h"

namespace ring {
namespace {

struct Arguments {
  std::string run, data;
  std::int64_t batches = 0, rows = 0;
  int threads = 0;
  std::string device = "auto";
  bool json = false, long_context = false;
  LongEvalArguments long_eval;
};

void run(const Arguments& a) {
  const Session session = open_session(a.run, a.threads, parse_device(a.device));
  if (a.data.empty() && !session.origin.imported.empty())
    fail("--data: ", a.run, " holds imported weights, which have no corpus of their own: give one");
  const Corpora corpora = a.data.empty() ? open_corpora(session.config.data) : open_corpus(a.data);
  check_tokenizer(corpora, session.tokenizer->hash(), "run " + a.run);
  if (a.data.empty()) check_data(session.origin, corpora, "Put the old ones back, or give --data");
  if (a.long_context) return long_eval(session, corpora, a.long_eval, a.batches, a.rows, a.json);
  LoaderOptions options;
  options.context = session.config.model.context;
  options.rows = batch_rows(a.rows, options.context);
  check_tokens_at_once("--batch-size", options.rows, options.context);
  options.packing = session.config.data.packing;
  const ValidationSet set(corpora, options, a.batches * options.rows);
  const std::unique_ptr<Mesh> alone = mesh_of_one();
  const Evaluation e = evaluate(*session.model, session.ctx, set, alone->all());
  const double bits = e.bits_per_byte(set.bytes_per_token());
  if (a.json)
    std::cout << nlohmann::json{{"loss", e.loss},
                                {"perplexity", e.perplexity()},
                                {"bits_per_byte", bits},
                                {"tokens", e.tokens}}
              << "\n";
  else
    std::cout << "loss " << e.loss << ", perplexity " << e.perplexity() << ", bits per byte " << bits << ", over "
              << e.tokens << " tokens\n";
}

}  // namespace

void add_eval_command(CLI::App& app) {
  CLI::App* cmd =
      app.add_subcommand("eval",
                         "Loss, perplexity and bits per byte of a trained model on a validation split, or how "
                         "it uses a long context");
  auto a = std::make_shared<Arguments>();
  cmd->add_option("run", a->run, "Directory of a run, or one of its checkpoints")->required();
  cmd->add_option("--data", a->data, "Corpus whose validation split is read; default: the run's own");
  add_number(*cmd, "--batches", a->batches, "Batches to read, spread over the split; 0: all of it", 0, kMostCount);
  add_number(*cmd, "--batch-size", a->rows, "Sequences per batch; 0: at most 32, about 32,768 tokens", 0, 1 << 30);
  add_number(*cmd, "--threads", a->threads, "CPU threads; 0: all cores", 0, kMostThreads);
  cmd->add_option("--device", a->device, "Where to compute: auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  CLI::Option* json = cmd->add_flag("--json", a->json, "Print one JSON object");
  CLI::Option* long_context = cmd->add_flag(
      "--long", a->long_context,
      "Instead: the mean loss by position in the window (attention across documents), and passkey retrieval: how often "
      "the model repeats a random number that was named earlier in a prompt of filler text");
  a->long_eval.add_to(*cmd, long_context);
  json->excludes(cmd->get_option("--csv"));
  cmd->footer(
      "Examples: ringmaster eval runs/quickstart --data corpus.h5\n"
      "          ringmaster eval runs/quickstart --long --lengths 1024,4096 --depths 0,0.5,1");
  cmd->callback([a] { run(*a); });
}

}  // namespace ring
