#include "cli/eval_corpus.h"

#include <algorithm>

#include "cli/command.h"
#include "cli/eval_long.h"
#include "cli/record_options.h"
#include "data/text_advice.h"
#include "data/token_store.h"
#include "evaluate/session.h"
#include "evaluate/text_corpus.h"

namespace ring {

void EvalCorpus::add_to(Command cmd) {
  cmd.add_option("--data", data, "Corpus (.h5) of the run's tokenizer; default: the run's corpus");
  cmd.add_option("--split", split_name, "Split of the corpus: train or validation")
      .one_of({"train", "validation"})
      .show_default();
  cmd.add_option("--text", text.inputs,
                 "Files to read instead of a corpus: text or JSON Lines, also compressed, Parquet, and folders")
      .type_name("PATH")
      .excludes({"--data", "--split"});
  add_record_options(cmd, text, "--text");
  cmd.add_option("--document", text.document,
                 "With --text: unit of one document: file, line, blank-line, or the text between documents")
      .show_default()
      .needs("--text");
  const auto separate = [this](const std::string& choice) {
    documents = choice == "auto" ? std::nullopt : std::optional(choice == "true");
  };
  cmd.add_option("--separate-documents", separate,
                 "true: attend within documents only; false: also across; auto: as trained (docs/evaluation.md)")
      .one_of({"auto", "true", "false"})
      .show_default("auto");
}

void EvalCorpus::add_batches_to(Command cmd) {
  const Option count =
      cmd.add_number("--batches", batches, "Batches to read, spread over the split; 0: the whole split", 0, kMaxCount);
  if (batches) count.show_default();
  cmd.add_number("--batch-size", rows, "Sequences per batch; 0: about 32,768 tokens, at most 32 sequences", 0, 1 << 30);
}

namespace {

// Throws Error if the file contains text; the message gives the options that read text.
void refuse_text(const std::string& path, const Session& session) {
  if (!is_text_file(path)) return;
  const NamedTokenizer tokenizer{tokenizer_file_of(session.origin), !chat_format_of(session.origin).source.empty()};
  fail("--data: expected a corpus (.h5), but ", path, " is text. Give it as --text ", path,
       record_options(path, tokenizer));
}

}  // namespace

Corpora EvalCorpus::open_corpora(const std::string& run, int threads, const Session& session) const {
  if (!text.inputs.empty()) {
    PrepareOptions options = text;
    options.threads = threads;
    options.file_options = FileOptions::text_field;
    return corpus_of_text(options, *session.tokenizer, chat_format_of(session.origin));
  }
  if (data.empty() && !session.origin.imported.empty())
    fail("--data: ", run, " has imported weights and no corpus. Give a corpus with --data, or files with --text");
  if (!data.empty()) refuse_text(data, session);
  Corpora corpora = data.empty() ? ring::open_corpora(session.config.data) : open_corpus(data);
  check_tokenizer(corpora, session.tokenizer->hash(), "run " + run);
  if (data.empty()) check_data(session.origin, corpora, "Restore the old ones, or give --data");
  return corpora;
}

Split EvalCorpus::split() const {
  return !text.inputs.empty() || split_name == "train" ? Split::train : Split::validation;
}

bool EvalCorpus::has_loss_mask(const Corpora& corpora) const {
  return std::ranges::any_of(
      corpora.stores, [&](const auto& s) { return (split() == Split::train ? s->train() : s->validation()).masked(); });
}

PackingConfig EvalCorpus::packing(const Session& session, const Corpora& corpora) const {
  constexpr std::int64_t kDocumentsAtATime = 1024;
  const PackingConfig& of_run = session.config.data.packing;
  if (!documents && !has_loss_mask(corpora)) return of_run;
  if (!documents.value_or(true)) return {};
  return {.documents = true, .align = of_run.align, .best_fit = kDocumentsAtATime};
}

ValidationSet EvalCorpus::make_validation_set(const Session& session, const Corpora& corpora, std::int64_t context,
                                              bool in_chunks) const {
  LoaderOptions options;
  options.context = context;
  options.rows = sequences_per_batch(rows, context);
  check_tokens_at_once("--batch-size", options.rows, context);
  options.packing = packing(session, corpora);
  const std::int64_t windows = batches * options.rows;
  if (in_chunks) options.rows = 1, options.unread = true;
  return {corpora, options, windows, split()};
}

}  // namespace ring
