#include <filesystem>
#include <iostream>
#include <string>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/data_text.h"
#include "cli/output_option.h"
#include "core/check.h"
#include "data/recall.h"

namespace ring {
namespace {

struct SynthesizeArguments {
  RecallOptions options;
  std::string kind = "recall";
  bool force = false;
};

void synthesize(SynthesizeArguments& a) {
  if (!a.force && std::filesystem::exists(a.options.output))
    fail("--output: ", a.options.output, " exists. Choose another name, or replace it with --force");
  check_output("--output", a.options.output);
  a.options.kind = a.kind == "needles" ? RecallKind::needles : RecallKind::recall;
  const PrepareReport r = write_recall_corpus(a.options);
  std::cout << a.options.output << ": " << with_commas(r.documents[0] + r.documents[1]) << " documents of "
            << with_commas(static_cast<std::uint64_t>(a.options.context)) << " tokens\n";
  for (std::size_t i = 0; i < 2; ++i)
    std::cout << split_summary(i ? "validation" : "train", r.tokens[i], r.documents[i], r.targets[i]) << "\n";
  std::cout << "  tokenizer   " << r.tokenizer->kind() << ", "
            << with_commas(static_cast<std::uint64_t>(r.tokenizer->vocab_size())) << " tokens, hash "
            << r.tokenizer->hash() << "\n";
}

void add_sizes(Command c, RecallOptions& o) {
  c.add_number("--context", o.context, "tokens of each document", 8, kMaxLength).show_default();
  c.add_number("--vocab-size", o.vocab_size, "number of symbols: a third each for noise, keys and values", 6,
               kMaxSymbols)
      .show_default();
  c.add_number("--pairs", o.pairs, "pairs of key and value; 0: 32 for recall, 4 for needles", 0, kMaxSymbols)
      .show_default();
  c.add_number("--queries", o.queries, "pairs to ask for; 0: all", 0, kMaxSymbols).show_default();
  c.add_number("--tail", o.tail,
               "tokens at the end that hold the queries, with noise between; 0: twice the queries, without noise", 0,
               kMaxLength)
      .show_default();
  c.add_number("--documents", o.documents, "documents for training", 1, kMaxCount).show_default();
  c.add_number("--validation-documents", o.validation_documents, "documents for validation; 0: none", 0, kMaxCount)
      .show_default();
  c.add_number("--seed", o.seed, "random seed of the documents", 0, kMaxSeed).show_default();
}

}  // namespace

void add_data_synthesize(Command data) {
  const Command c =
      data.add_subcommand("synthesize", "Write a corpus of generated questions about facts far back in the text");
  SynthesizeArguments& a = c.runs(synthesize);
  c.add_option("--kind", a.kind,
               "recall: pairs of key and value, noise, and the keys again; needles: pairs scattered in noise")
      .one_of({"recall", "needles"})
      .show_default();
  add_sizes(c, a.options);
  c.add_option("--output", a.options.output, "the corpus to write (.h5)").required().type_name("FILE");
  c.add_flag("--force", a.force, "replace the output if it exists");
  c.footer(
      "Only the answers count as targets. data.packing.best_fit: 1 puts each document into a separate sample.\n"
      "Example: ringmaster data synthesize --kind recall --context 2048 --pairs 64 --output recall.h5");
}

}  // namespace ring
