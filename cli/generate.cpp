#include "trainer/generate.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "cli/commands.h"
#include "cli/number_option.h"
#include "engine/devices.h"
#include "trainer/session.h"

namespace ring {
namespace {

struct Arguments {
  std::string run, prompt;
  Sampling sampling;
  std::int64_t max_tokens = 256;
  int threads = 0;
  std::string device = "auto";
  bool ignore_end = false;
};

std::vector<std::int32_t> start_tokens(const Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<std::int32_t> ids = tokenizer.before_text();
  const std::vector<std::int32_t> said = tokenizer.encode(prompt);
  ids.insert(ids.end(), said.begin(), said.end());
  if (!ids.empty()) return ids;
  if (tokenizer.end_of_text()) return {*tokenizer.end_of_text()};
  ids = tokenizer.encode("\n");
  if (ids.empty()) fail("--prompt: this tokenizer has no end-of-text token to start from; give some text");
  return ids;
}

void run(const Arguments& a) {
  const Session session = open_session(a.run, a.threads, parse_device(a.device));
  const std::optional<std::int32_t> end = a.ignore_end ? std::nullopt : session.tokenizer->end_of_text();
  Sampling sampling = a.sampling;
  sampling.tokens = session.tokenizer->vocab_size();  // the model's vocabulary may be padded
  StreamDecoder decoder(session.tokenizer);
  std::cout << a.prompt << std::flush;
  generate(*session.model, session.ctx, start_tokens(*session.tokenizer, a.prompt), sampling, a.max_tokens,
           [&](std::int32_t id) {
             if (end && id == *end) return false;
             std::cout << decoder.push(id) << std::flush;
             return static_cast<bool>(std::cout);
           });
  std::cout << decoder.finish() << std::endl;
}

}  // namespace

void add_generate_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("generate", "Write text with a trained model");
  auto a = std::make_shared<Arguments>();
  cmd->add_option("run", a->run, "Directory of a run, or one of its checkpoints")->required();
  cmd->add_option("--prompt", a->prompt, "Text to continue");
  add_number(*cmd, "--temperature", a->sampling.temperature,
             "Below 1: safer, above 1: wilder, 0: always the likeliest token", 0, 100)
      ->capture_default_str();
  add_number(*cmd, "--top-k", a->sampling.top_k, "Draw from this many likeliest tokens; 0: all", 0, kMostCount)
      ->capture_default_str();
  add_number(*cmd, "--top-p", a->sampling.top_p,
             "Draw from the likeliest tokens that have this much probability together", 0, 1)
      ->capture_default_str();
  add_number(*cmd, "--seed", a->sampling.seed, "The same seed gives the same text", 0, kMostSeed)
      ->capture_default_str();
  add_number(*cmd, "--max-tokens", a->max_tokens, "Tokens to write at most", 0, kMostCount)->capture_default_str();
  add_number(*cmd, "--threads", a->threads, "CPU threads; 0: all cores", 0, kMostThreads);
  cmd->add_option("--device", a->device, "Where to compute: auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  cmd->add_flag("--ignore-end", a->ignore_end, "Go on after an end-of-text token");
  cmd->footer("Example: ringmaster generate runs/quickstart --prompt \"template <\" --temperature 0.7 --top-p 0.95");
  cmd->callback([a] { run(*a); });
}

}  // namespace ring
