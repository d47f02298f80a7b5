#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/data_text.h"
#include "core/check.h"
#include "core/counted.h"
#include "core/log.h"
#include "data/config.h"
#include "data/packing.h"
#include "data/token_store.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

struct InspectArguments {
  std::string file;
  bool validation = false;
  std::uint64_t document = 0, documents = 0, bytes = 500;
  std::int64_t context = 0;
};

// Prints the share of padding and the number of cut documents for each way to pack documents into samples.
void print_packing(const InspectArguments& a, const TokenSplit& split) {
  std::cout << "  " << (a.validation ? "validation" : "train") << " in samples of "
            << with_commas(static_cast<std::uint64_t>(a.context)) << " tokens\n";
  for (const std::int64_t group : {0, 1024, 4096}) {
    const auto rows = pack_rows(split, a.context, {.documents = true, .best_fit = group});
    std::cout << (group ? str("    best_fit: ", group) : "    in order      ") << "  " << with_commas(rows->rows())
              << (rows->rows() == 1 ? " sample, " : " samples, ") << format_fixed(100 * (1 - rows->filled_share()), 2)
              << " % padding, " << with_commas(rows->cut_documents()) << " of " << with_commas(split.documents())
              << (split.documents() == 1 ? " document" : " documents") << " cut\n";
  }
}

void print_document(const InspectArguments& a, const TokenSplit& split, const Tokenizer& tokenizer,
                    std::uint64_t document) {
  const std::uint64_t begin = split.document_start(document), length = split.document_start(document + 1) - begin;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min<std::uint64_t>(length, a.bytes + 1)));
  split.read(begin, ids.size(), ids.data());
  std::cout << (a.validation ? "\nvalidation" : "\ntraining") << " document " << document << ", " << with_commas(length)
            << " tokens";
  if (!split.masked()) {
    std::cout << ":\n" << truncate_text(tokenizer.decode(ids), a.bytes) << "\n";
    return;
  }
  std::vector<std::uint8_t> counts(static_cast<std::size_t>(length));
  split.read_mask(begin, counts.size(), counts.data());
  const auto targets = static_cast<std::uint64_t>(std::ranges::count(counts, 1));
  std::cout << ", " << targets_text(targets, length) << ":\n"
            << marked_text(tokenizer, ids, counts, a.bytes, ::isatty(STDOUT_FILENO) == 1) << std::endl;
  if (targets == 0)
    log::warn(a.file, ": no token of document ", document, " counts as a target, so the model learns nothing from it");
}

void inspect_corpus(const InspectArguments& a) {
  const auto store = TokenStore::open(a.file);
  const auto tokenizer = store->tokenizer();
  const TokenSplit &train = store->train(), &validation = store->validation();
  std::cout << a.file << ": " << store->source() << "\n";
  for (const TokenSplit* s : {&train, &validation})
    std::cout << split_summary(s == &train ? "train" : "validation", s->tokens(), s->documents(), s->targets()) << "\n";
  const double bytes = static_cast<double>(train.text_bytes() + validation.text_bytes());
  std::cout << "  tokenizer   " << store->tokenizer_kind() << ", "
            << with_commas(static_cast<std::uint64_t>(store->vocab_size())) << " tokens, hash "
            << store->tokenizer_hash() << "\n  text        " << format_bytes(bytes) << ", "
            << format_fixed(bytes / static_cast<double>(train.tokens() + validation.tokens()), 2)
            << " bytes per token\n";
  const TokenSplit& split = a.validation ? validation : train;
  if (a.document >= split.documents()) {
    fail("--document: got ", a.document, ", but ", a.file, " has ",
         counted(static_cast<std::int64_t>(split.documents()),
                 a.validation ? "validation document" : "training document"),
         ", counted from 0");
  }
  if (a.context) print_packing(a, split);
  const std::uint64_t wanted = a.documents > 0 ? a.documents : split.masked() ? 3 : 1;
  const std::uint64_t end = a.document + std::min(wanted, split.documents() - a.document);
  if (split.masked()) std::cout << "\nTargets that count are " << marked_legend(::isatty(STDOUT_FILENO) == 1) << ".\n";
  for (std::uint64_t d = a.document; d < end; ++d) print_document(a, split, *tokenizer, d);
}

}  // namespace

void add_data_inspect(Command data) {
  const Command c = data.add_subcommand("inspect", "Show the contents of a corpus and some of its documents");
  InspectArguments& a = c.runs(inspect_corpus);
  c.add_option("corpus", a.file, "a corpus (.h5)").required().type_name("FILE");
  c.add_number("--document", a.document, "document to show, counted from 0", 0, std::int64_t{1} << 53).show_default();
  c.add_flag("--validation", a.validation, "show a document of the validation split");
  c.add_number("--documents", a.documents, "documents to show; 0: one, or three if not all tokens count as targets", 0,
               std::int64_t{1} << 53)
      .show_default();
  c.add_number("--bytes", a.bytes, "bytes of each document to show", 0, kMaxLength).show_default();
  c.add_number(
      "--context", a.context,
      "also print padding and cut documents of samples of this many tokens, with and without data.packing.best_fit", 1,
      kMaxLength);
  c.footer(
      "If not all tokens count as targets, targets are in colour on a terminal and in [[ ]] elsewhere.\n"
      "Example: ringmaster data inspect corpus.h5 --validation --document 3");
}

}  // namespace ring
