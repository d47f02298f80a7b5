#include "trainer/generate.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/chat.h"
#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/number_option.h"
#include "data/documents.h"
#include "data/output_file.h"
#include "data/text_kind.h"
#include "data/unpack.h"
#include "engine/devices.h"
#include "trainer/prompt.h"
#include "trainer/session.h"
#include "trainer/written_text.h"

namespace ring {
namespace {

struct Arguments {
  std::string run, prompt, prompts_file, output;
  std::vector<std::string> stops;
  Sampling sampling;
  std::int64_t max_tokens = 256, batch_size = 8, context = 0;
  int threads = 0;
  DeviceChoice device = DeviceChoice::automatic;
  bool ignore_end = false, json = false, chat = false;
  ChatOptions talk;
};

// A prompt and what becomes of it.
struct Writing {
  std::string prompt;
  WrittenText text;

  nlohmann::ordered_json json() const {
    nlohmann::ordered_json j = {
        {"prompt", prompt}, {"text", text.text()}, {"tokens", text.tokens()}, {"end", text.end()}};
    if (text.stop()) j["stop"] = *text.stop();
    return j;
  }
};

// A line each, or a record's member of JSON Lines.
std::vector<std::string> read_prompts(const std::string& file) {
  struct Prompts : DocumentSink {
    std::vector<std::string> all{""};
    void part(std::string_view text, bool) override { all.back() += text; }
    void end() override { all.emplace_back(); }
  } prompts;
  const bool records = named_json_lines(unpacked_name(file));
  for (const TextFile& f : list_text_files({file}, "*", false, {.text = records ? "prompt" : ""}))
    read_documents(f, parse_document_rule("line"), prompts);
  prompts.all.pop_back();
  if (prompts.all.empty()) fail("--prompts-file: ", file, " holds no prompt");
  return prompts.all;
}

// Prompts [first, end) side by side. The n-th of all is drawn with the n-th seed, counted from the one that was given.
void write_together(const Arguments& a, const Session& session, std::vector<Writing>& all, std::size_t first,
                    std::size_t end, const std::function<void(const std::string&)>& show) {
  std::vector<TextStart> starts;
  for (std::size_t i = first; i < end; ++i) {
    Sampling s = sampling_of(session, a.sampling);
    s.seed += i;
    starts.push_back({prompt_tokens(*session.tokenizer, all[i].prompt), s});
  }
  generate_together(*session.model, session.ctx, std::move(starts), a.max_tokens, [&](std::size_t i, std::int32_t id) {
    show(all[first + i].text.push(id));
    return all[first + i].text.goes_on() && static_cast<bool>(std::cout);
  });
  for (std::size_t i = first; i < end; ++i) show(all[i].text.finish());
}

// Each line is printed when its batch is done; a file appears whole.
void write_lines(const Arguments& a, const Session& session, std::vector<Writing>& all) {
  std::string lines;
  const auto batch = static_cast<std::size_t>(a.batch_size);
  for (std::size_t first = 0; first < all.size(); first += batch) {
    const std::size_t end = std::min(all.size(), first + batch);
    write_together(a, session, all, first, end, [](const std::string&) {});
    for (std::size_t i = first; i < end; ++i) {
      const std::string line = all[i].json().dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
      if (a.output.empty()) std::cout << line << std::endl;
      lines += line + "\n";
    }
  }
  if (!a.output.empty()) write_whole(a.output, lines);
}

void run(const Arguments& a) {
  if (std::ranges::any_of(a.stops, &std::string::empty)) fail("--stop: an empty text would stop at once");
  if (!a.output.empty()) check_writable(a.output);
  const bool lines = a.json || !a.prompts_file.empty() || !a.output.empty();
  const std::vector<std::string> prompts =
      a.prompts_file.empty() ? std::vector<std::string>{a.prompt} : read_prompts(a.prompts_file);
  const Session session = open_session(a.run, a.threads, a.device, a.context);
  if (a.chat) return talk(session, a.talk, a.sampling, a.max_tokens, a.stops);
  std::vector<Writing> all;
  for (const std::string& prompt : prompts)
    all.push_back({prompt, WrittenText(session.tokenizer, {.stops = a.stops, .ignore_end_of_text = a.ignore_end})});
  if (lines) return write_lines(a, session, all);
  std::cout << a.prompt << std::flush;
  write_together(a, session, all, 0, 1, [](const std::string& text) { std::cout << text << std::flush; });
  std::cout << std::endl;
}

void add_sampling(CLI::App& cmd, Arguments& a) {
  add_number(cmd, "--temperature", a.sampling.temperature,
             "Below 1: safer, above 1: wilder, 0: always the likeliest token", 0, 100)
      ->capture_default_str();
  add_number(cmd, "--top-k", a.sampling.top_k, "Draw from this many likeliest tokens; 0: all", 0, kMostCount)
      ->capture_default_str();
  add_number(cmd, "--top-p", a.sampling.top_p,
             "Draw from the likeliest tokens that have this much probability together", 0, 1)
      ->capture_default_str();
  add_number(cmd, "--repetition-penalty", a.sampling.repetition_penalty,
             "Above 1: tokens of the prompt and of the text so far become less likely; 1: they do not", 0.01, 100)
      ->capture_default_str();
  add_number(cmd, "--seed", a.sampling.seed,
             "The same seed gives the same text; prompt n of a file, counted from 0, takes this seed + n", 0, kMostSeed)
      ->capture_default_str();
  add_number(cmd, "--max-tokens", a.max_tokens, "Tokens to write at most", 0, kMostCount)->capture_default_str();
}

// What prints something else than answers goes without a chat.
void add_chat(CLI::App& cmd, Arguments& a) {
  CLI::Option* chat = cmd.add_flag("--chat", a.chat,
                                   "Talk with the model: answers --prompt, or without it every line of standard input, "
                                   "by the chat template that it was trained with");
  for (const char* other : {"--prompts-file", "--json", "--output", "--ignore-end"})
    chat->excludes(cmd.get_option(other));
  cmd.add_option("--system", a.talk.system, "What a chat begins with, before the first question")
      ->type_name("TEXT")
      ->needs(chat);
  add_chat_template(cmd, a.talk.chat_template)->needs(chat);
}

}  // namespace

void add_generate_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("generate", "Write text with a trained model");
  auto a = std::make_shared<Arguments>();
  cmd->add_option("run", a->run, "Directory of a run, or one of its checkpoints")->required();
  CLI::Option* prompt = cmd->add_option("--prompt", a->prompt, "Text to continue");
  cmd->add_option("--prompts-file", a->prompts_file,
                  "Continue every line of this file, or the member 'prompt' of each record where it is named .jsonl; "
                  "prints JSON Lines")
      ->type_name("FILE")
      ->excludes(prompt);
  add_number(*cmd, "--batch-size", a->batch_size, "Prompts of a file to continue side by side", 1, 65536)
      ->capture_default_str();
  cmd->add_flag("--json", a->json, "Print JSON Lines, with how each text ended");
  cmd->add_option("--output", a->output, "Write the JSON Lines to this file instead")->type_name("FILE");
  add_sampling(*cmd, *a);
  add_context(*cmd, a->context);
  cmd->add_option("--stop", a->stops, "End a text before the first of these strings that comes up")->type_name("TEXT");
  add_number(*cmd, "--threads", a->threads, "CPU threads; 0: all cores", 0, kMostThreads);
  add_device(*cmd, a->device);
  cmd->add_flag("--ignore-end", a->ignore_end, "Go on after an end-of-text token");
  add_chat(*cmd, *a);
  cmd->footer(
      "Examples: ringmaster generate runs/quickstart --prompt \"template <\" --temperature 0.7 --top-p 0.95\n"
      "          ringmaster generate runs/quickstart --prompts-file prompts.txt --stop \"};\" --output texts.jsonl\n"
      "          ringmaster generate runs/tuned --chat --system \"Be brief.\"");
  cmd->callback([a] {
    if (a->chat) a->talk.once = a->prompt;
    run(*a);
  });
}

}  // namespace ring
