#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/data_text.h"
#include "cli/live_line.h"
#include "cli/output_option.h"
#include "cli/record_options.h"
#include "core/check.h"
#include "core/counted.h"
#include "core/log.h"
#include "data/prepare.h"
#include "data/token_store.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

// Shows the progress of a command in bytes.
void show_bytes(LiveLine& line, std::uint64_t done, std::uint64_t total, const std::string& besides = "") {
  if (!line.is_due()) return;
  const double rate = static_cast<double>(done) / line.seconds();
  std::string text = str(format_bytes(static_cast<double>(done)), "  ", besides, format_bytes(rate), "/s");
  if (total > 0)
    text = str(done * 100 / total, " %  of ", format_bytes(static_cast<double>(total)), "  ", text, "  ",
               format_fixed(static_cast<double>(total - std::min(done, total)) / rate, 0), " s left");
  line.show(text);
}

// Minimum number of validation tokens with which the second digit of the loss is significant.
constexpr std::uint64_t kFewValidationTokens = 50'000;

void warn_of_validation(const PrepareReport& r) {
  if (r.tokens[1] == 0 || r.targets[1] >= kFewValidationTokens) return;
  log::warn(
      "the validation split has ", with_commas(r.targets[1]), " tokens",
      r.targets[1] < r.tokens[1] ? " that count as targets" : "", "; with fewer than ",
      with_commas(kFewValidationTokens),
      " the validation loss is imprecise. Give more text, raise --validation-fraction or give separate files with "
      "--validation-input");
}

void warn_of_training(const PrepareReport& r) {
  constexpr std::uint64_t kFew = 64;
  if (r.tokens[0] < kFew)
    log::warn("the training split has ", counted(static_cast<std::int64_t>(r.tokens[0]), "token"),
              ", but training needs at least model.context + 1. Give more text");
}

struct PrepareArguments {
  PrepareOptions options;
  bool force = false;
};

void prepare(const PrepareArguments& a) {
  if (!a.force && std::filesystem::exists(a.options.output)) {
    fail("--output: ", a.options.output, " exists. Choose another name, or replace it with --force");
  }
  check_output("--output", a.options.output);
  PrepareReport r;
  {
    LiveLine line;
    r = prepare_corpus(a.options, [&](const PrepareProgress& p) {
      show_bytes(line, p.bytes, p.total_bytes, with_commas(p.tokens) + " tokens  ");
    });
  }
  log_warnings(r);
  warn_of_validation(r);
  warn_of_training(r);
  const double bytes = static_cast<double>(r.bytes), tokens = static_cast<double>(r.tokens[0] + r.tokens[1]);
  std::cout << a.options.output << ": " << with_commas(r.files) << (r.files == 1 ? " file, " : " files, ")
            << format_bytes(bytes) << " of text\n";
  for (std::size_t i = 0; i < 2; ++i)
    std::cout << split_summary(i ? "validation" : "train", r.tokens[i], r.documents[i], r.targets[i]) << "\n";
  if (a.options.members.masked())
    std::cout << "  longest     " << with_commas(r.longest)
              << " tokens in one document. Few documents are cut if model.context is several times that\n";
  std::cout << "  tokenizer   " << r.tokenizer->kind() << ", "
            << with_commas(static_cast<std::uint64_t>(r.tokenizer->vocab_size())) << " tokens, hash "
            << r.tokenizer->hash() << "\n  " << format_fixed(bytes / tokens, 2) << " bytes per token, "
            << format_fixed(r.seconds, 1) << " s, " << format_bytes(bytes / r.seconds) << "/s\n";
}

// Verifies every byte. If anything is damaged, prints it and returns false.
bool verify_one(const std::string& path) {
  try {
    const auto store = TokenStore::open(path);
    LiveLine line;
    const auto damaged = [&](const std::string& what) {
      line.clear();
      std::cout << what << std::endl;
    };
    const VerifyReport r =
        verify_corpus(*store, damaged, [&](const VerifyReport& p) { show_bytes(line, p.bytes, p.total_bytes); });
    line.clear();
    std::cout << path << ": " << (r.damaged == 0 ? str("whole, ") : with_commas(r.damaged) + " damaged of ")
              << counted(static_cast<std::int64_t>(r.blocks), "block") << ", "
              << format_bytes(static_cast<double>(r.total_bytes)) << " of tokens, document starts and loss masks"
              << std::endl;
    return r.damaged == 0;
  } catch (const Error& e) {
    std::cout << e.what() << std::endl;
    return false;
  }
}

void verify_corpora(const std::vector<std::string>& files) {
  const std::int64_t bad = std::ranges::count_if(files, [](const std::string& file) { return !verify_one(file); });
  if (bad > 0)
    fail(bad, " of ", counted(static_cast<std::int64_t>(files.size()), "corpus file"),
         " cannot be used. Copy damaged files again from their source, or recreate them with: ringmaster data prepare");
}

void add_verify(Command parent) {
  const Command c = parent.add_subcommand("verify", "Read whole corpora and print their damaged blocks");
  std::vector<std::string>& files = c.runs(verify_corpora);
  c.add_option("corpora", files, "corpora (.h5)").required().type_name("FILE");
  c.footer(
      "Compares every block of 64 KiB with its hash. The exit code is 1 if a corpus is damaged.\n"
      "Example: ringmaster data verify corpus.h5");
}

void add_prepare(Command parent) {
  auto a = std::make_shared<PrepareArguments>();
  PrepareOptions& o = a->options;
  const Command c = parent.add_subcommand("prepare", "Turn text files into a corpus of tokens");
  c.add_option("--input", o.inputs,
               "text or JSON Lines (also .gz, .zst), Parquet, Megatron-LM data sets (.bin and .idx), and folders")
      .required()
      .type_name("PATH");
  c.add_option("--glob", o.glob, "files of a folder to read, such as '*.txt'").show_default().type_name("PATTERN");
  c.add_flag(
      "--as-text", o.as_text,
      "read the bytes of all files unchanged, even of JSON and of files that are not text (compressed, tables, NUL "
      "bytes)");
  add_record_options(c, o);
  c.add_option("--tokenizer", o.tokenizer,
               "bytes, chars, a file (.rmt, tokenizer.json, .model, .h5), or the folder of a model or run")
      .required()
      .type_name("SPEC");
  c.add_option("--output", o.output, "the corpus to write (.h5)").required().type_name("FILE");
  c.add_option("--validation-input", o.validation_inputs,
               "files and folders for the validation split; all of --input is then for training")
      .type_name("PATH");
  c.add_option("--split", o.split,
               "validation text: hash (whole documents), tail (end of the text), or auto (see docs/data.md)")
      .one_of({"auto", "hash", "tail"})
      .show_default()
      .excludes({"--validation-input"});
  const Option fraction =
      c.add_number("--validation-fraction", o.validation_fraction,
                   "share of the text for validation; 0: none; default: 0.01, up to 0.1 if below 25 MB", 0, 0.99)
          .excludes({"--validation-input"});
  c.add_option("--document", o.document,
               "unit of one document: file, line, blank-line (paragraphs), or the text between documents")
      .show_default();
  c.add_number("--threads", o.threads, "encoding threads; 0: all cores", 0, kMaxThreads).show_default();
  c.add_flag("--force", a->force, "replace the output if it exists");
  c.footer(
      "The text may be far larger than memory. Every document is followed by the tokenizer's end-of-text token, if\n"
      "the tokenizer has one.\n"
      "Example: ringmaster data prepare --input books/ --glob '*.txt' --tokenizer tok.rmt --output corpus.h5");
  c.set_callback([a, fraction] {
    a->options.enlarge_validation = !fraction.given();
    prepare(*a);
  });
}

}  // namespace

void add_data_commands(Command app) {
  const Command data = app.add_subcommand("data", "Prepare, synthesize, inspect, export and verify corpora");
  data.require_subcommand();
  data.footer("Example: ringmaster data prepare --input books/ --glob '*.txt' --tokenizer tok.rmt --output corpus.h5");
  add_prepare(data);
  add_data_synthesize(data);
  add_data_inspect(data);
  add_data_export(data);
  add_verify(data);
}

}  // namespace ring
