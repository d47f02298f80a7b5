#include "cli/data_synthesize.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "cli/data_text.h"
#include "cli/number_option.h"
#include "core/check.h"
#include "data/recall.h"

namespace ring {
namespace {

struct SynthesizeArguments {
  RecallOptions options;
  std::string kind = "recall";
  bool force = false;
};

void synthesize(SynthesizeArguments a) {
  if (!a.force && std::filesystem::exists(a.options.output))
    fail("--output ", a.options.output, " exists; choose another name, or replace it with --force");
  a.options.kind = a.kind == "needles" ? RecallKind::needles : RecallKind::recall;
  const PrepareReport r = write_recall_corpus(a.options);
  std::cout << a.options.output << ": " << with_commas(r.documents[0] + r.documents[1]) << " documents of "
            << with_commas(static_cast<std::uint64_t>(a.options.context)) << " tokens\n";
  for (std::size_t i = 0; i < 2; ++i)
    std::cout << split_line(i ? "validation" : "train", r.tokens[i], r.documents[i], r.targets[i]) << "\n";
  std::cout << "  tokenizer   " << r.tokenizer->kind() << ", "
            << with_commas(static_cast<std::uint64_t>(r.tokenizer->vocab_size())) << " tokens, hash "
            << r.tokenizer->hash() << "\n";
}

void add_sizes(CLI::App& c, RecallOptions& o) {
  add_number(c, "--context", o.context, "tokens of each document", 8, kMostLength)->capture_default_str();
  add_number(c, "--vocab-size", o.vocab_size, "symbols: a third each of noise, keys and values", 6, kMostSymbols)
      ->capture_default_str();
  add_number(c, "--pairs", o.pairs, "pairs of key and value; 0: 32 of recall, 4 needles", 0, kMostSymbols)
      ->capture_default_str();
  add_number(c, "--queries", o.queries, "pairs that are asked for; 0: all", 0, kMostSymbols)->capture_default_str();
  add_number(c, "--tail", o.tail,
             "the last so many tokens hold the queries, with noise between; 0: twice the queries, without noise", 0,
             kMostLength)
      ->capture_default_str();
  add_number(c, "--documents", o.documents, "documents for training", 1, kMostCount)->capture_default_str();
  add_number(c, "--validation-documents", o.validation_documents, "documents for validation; 0: none", 0, kMostCount)
      ->capture_default_str();
  add_number(c, "--seed", o.seed, "another seed, other documents", 0, kMostSeed)->capture_default_str();
}

}  // namespace

void add_data_synthesize(CLI::App& data) {
  auto a = std::make_shared<SynthesizeArguments>();
  CLI::App* c = data.add_subcommand("synthesize", "Write a corpus of generated questions about what was said far back");
  c->add_option("--kind", a->kind,
                "recall: pairs of key and value, noise, and the keys again; needles: the pairs lie in the noise")
      ->check(CLI::IsMember({"recall", "needles"}))
      ->capture_default_str();
  add_sizes(*c, a->options);
  c->add_option("--output", a->options.output, "the corpus to write (.h5)")->required()->type_name("FILE");
  c->add_flag("--force", a->force, "replace the output if it exists");
  c->footer(
      "Only the answers count as targets. data.packing.best_fit: 1 gives each document a sample of its own.\n"
      "Example: ringmaster data synthesize --kind recall --context 2048 --pairs 64 --output recall.h5");
  c->callback([a] { synthesize(*a); });
}

}  // namespace ring
