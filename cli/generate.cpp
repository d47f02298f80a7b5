#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/chat.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/output_option.h"
#include "cli/weights_option.h"
#include "core/json.h"
#include "data/documents.h"
#include "data/output_file.h"
#include "data/text_kind.h"
#include "data/unpack.h"
#include "engine/devices.h"
#include "evaluate/generate_text.h"
#include "evaluate/generation_config.h"
#include "evaluate/prompt.h"

namespace ring {
namespace {

struct GenerateArguments {
  std::string run, adapter, prompt, prompts_file, output;
  std::vector<std::string> stops;
  Sampling sampling;
  std::int64_t max_tokens = 256, batch_size = 8, context = 0;
  int threads = 0;
  DeviceChoice device = DeviceChoice::automatic;
  SavedWeights weights = SavedWeights::latest;
  KvCacheType kv_cache = KvCacheType::automatic;
  Option temperature, top_k, top_p, repetition_penalty;
  bool ignore_end = false, json = false, chat = false;
  ChatOptions talk;
};

nlohmann::ordered_json json_of(const std::string& prompt, const GeneratedText& text) {
  nlohmann::ordered_json j = {
      {"prompt", prompt}, {"text", text.text()}, {"tokens", text.tokens()}, {"end", text.end()}};
  if (text.stop()) j["stop"] = *text.stop();
  return j;
}

// Reads one prompt per line, or one from a member of each record.
std::vector<std::string> read_prompts(const std::string& file) {
  struct Prompts : DocumentSink {
    std::vector<std::string> all{""};
    void add_part(std::string_view text, bool) override { all.back() += text; }
    void end() override { all.emplace_back(); }
  } prompts;
  const bool records = has_json_lines_name(unpacked_name(file)) || has_parquet_name(file);
  for (const TextFile& f :
       list_text_files({file}, "*", false, {.text = records ? "prompt" : "", .keep_empty = true}, FileOptions::none))
    read_documents(f, parse_document_rule("line"), prompts);
  prompts.all.pop_back();
  if (prompts.all.empty()) fail("--prompts-file: ", file, " contains no prompt");
  return prompts.all;
}

// Returns the sampling options of the command line. Options that it does not give come from the weights'
// generation_config.json.
Sampling sampling_for(const GenerateArguments& a, GenerationConfig published) {
  if (a.temperature.given()) published.temperature.reset();
  if (a.top_k.given()) published.top_k.reset();
  if (a.top_p.given()) published.top_p.reset();
  if (a.repetition_penalty.given()) published.repetition_penalty.reset();
  Sampling sampling = a.sampling;
  published.apply(sampling);
  return sampling;
}

// Generates text for several prompts in one batch. n: index of the first of these prompts; prompt i of the batch is
// sampled with the given seed + n + i.
std::vector<GeneratedText> write_together(const GenerateArguments& a, const Session& session,
                                          std::span<const std::string> prompts, std::size_t n,
                                          const std::function<void(const std::string&)>& show) {
  std::vector<TextStart> starts;
  for (const std::string& prompt : prompts) {
    Sampling s = a.sampling;
    s.seed += n + starts.size();
    starts.push_back({prompt_tokens(*session.tokenizer, prompt), s});
  }
  const TextEnding ending{
      .stops = a.stops, .more_tokens = generation_config_of(session.origin).ends, .ignore_end_of_text = a.ignore_end};
  return generate_texts(session, std::move(starts), a.max_tokens, ending, [&](std::size_t, const std::string& piece) {
    show(piece);
    return static_cast<bool>(std::cout);
  });
}

// Prints lines when their batch is done; an output file is written completely or not at all.
void write_lines(const GenerateArguments& a, const Session& session, std::span<const std::string> prompts) {
  std::string lines;
  const auto max = static_cast<std::size_t>(a.batch_size);
  for (std::size_t n = 0; n < prompts.size(); n += max) {
    const auto batch = prompts.subspan(n, std::min(max, prompts.size() - n));
    const std::vector<GeneratedText> texts = write_together(a, session, batch, n, [](const std::string&) {});
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto json = json_of(batch[i], texts[i]);
      const std::string line = json_text(json);
      if (a.output.empty()) std::cout << line << std::endl;
      lines += line + "\n";
    }
  }
  if (!a.output.empty()) write_whole(a.output, lines);
}

void run_generate(GenerateArguments a) {
  if (std::ranges::any_of(a.stops, &std::string::empty))
    fail("--stop: expected a text, got an empty one, which would stop at once");
  if (!a.output.empty()) check_output("--output", a.output, {a.prompts_file});
  const bool lines = a.json || !a.prompts_file.empty() || !a.output.empty();
  const std::vector<std::string> prompts =
      a.prompts_file.empty() ? std::vector<std::string>{a.prompt} : read_prompts(a.prompts_file);
  const Session session = open_session(a.run, {a.threads, a.device, a.context, a.weights, a.kv_cache}, a.adapter);
  a.sampling = sampling_for(a, generation_config_of(session.origin));
  if (a.chat) return run_chat(session, a.talk, a.sampling, a.max_tokens, a.stops);
  if (lines) return write_lines(a, session, prompts);
  std::cout << a.prompt << std::flush;
  write_together(a, session, prompts, 0, [](const std::string& text) { std::cout << text << std::flush; });
  std::cout << std::endl;
}

void add_sampling(Command cmd, GenerateArguments& a) {
  a.temperature = cmd.add_number("--temperature", a.sampling.temperature,
                                 "Randomness: below 1 safer, above 1 wilder, 0 always the most likely token", 0, 100)
                      .show_default();
  a.top_k =
      cmd.add_number("--top-k", a.sampling.top_k, "Sample from this many most likely tokens; 0: all", 0, kMaxCount)
          .show_default();
  a.top_p = cmd.add_number("--top-p", a.sampling.top_p,
                           "Sample from the most likely tokens with this total probability", 0, 1)
                .show_default();
  a.repetition_penalty =
      cmd.add_number("--repetition-penalty", a.sampling.repetition_penalty,
                     "Above 1: makes tokens of the prompt and of the text so far less likely; 1: no penalty", 0.01, 100)
          .show_default();
  cmd.add_number("--seed", a.sampling.seed, "Random seed; prompt n of a file, counted from 0, uses this seed + n", 0,
                 kMaxSeed)
      .show_default();
  cmd.add_number("--max-tokens", a.max_tokens, "Maximum number of tokens to write", 0, kMaxCount).show_default();
}

// Adds the options of chats. They exclude options that print anything other than answers.
void add_chat(Command cmd, GenerateArguments& a) {
  cmd.add_flag("--chat", a.chat,
               "Answer --prompt, or each line of standard input, with the chat template of the training")
      .excludes({"--prompts-file", "--json", "--output", "--ignore-end"});
  cmd.add_option("--system", a.talk.system, "System message at the start of a chat").type_name("TEXT").needs("--chat");
  add_chat_template(cmd, a.talk.chat_template).needs("--chat");
}

}  // namespace

void add_generate_command(Command app) {
  const Command cmd = app.add_subcommand("generate", "Write text with a trained model");
  auto a = std::make_shared<GenerateArguments>();
  cmd.add_option("run", a->run, "Directory of a run, or one of its checkpoints").required();
  cmd.add_option("--prompt", a->prompt, "Text to continue");
  cmd.add_option("--prompts-file", a->prompts_file,
                 "Continue each line (of .jsonl: each member prompt) of this file; prints JSON Lines")
      .type_name("FILE")
      .excludes({"--prompt"});
  cmd.add_number("--batch-size", a->batch_size, "Prompts of a file to continue at once", 1, 65536).show_default();
  cmd.add_flag("--json", a->json, "Print JSON Lines that include why each text ended");
  cmd.add_option("--output", a->output, "Write the JSON Lines to this file instead").type_name("FILE");
  add_sampling(cmd, *a);
  add_context(cmd, a->context);
  add_kv_cache(cmd, a->kv_cache);
  cmd.add_option("--stop", a->stops, "End a text before the first of these strings that it contains").type_name("TEXT");
  cmd.add_number("--threads", a->threads, "CPU threads; 0: all cores", 0, kMaxThreads);
  add_device(cmd, a->device);
  add_weights(cmd, a->weights);
  add_adapter(cmd, a->adapter);
  cmd.add_flag("--ignore-end", a->ignore_end, "Continue after an end-of-text token");
  add_chat(cmd, *a);
  cmd.footer(
      "Examples: ringmaster generate runs/quickstart --prompt \"template <\" --temperature 0.7 --top-p 0.95\n"
      "          ringmaster generate runs/quickstart --prompts-file prompts.txt --stop \"};\" --output texts.jsonl\n"
      "          ringmaster generate runs/tuned --chat --system \"Be brief.\"");
  cmd.set_callback([a] {
    if (a->chat) a->talk.once = a->prompt;
    run_generate(*a);
  });
}

}  // namespace ring
