#include <filesystem>
#include <iostream>
#include <string>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/data_text.h"
#include "cli/output_option.h"
#include "core/check.h"
#include "data/export_megatron.h"
#include "data/output_file.h"
#include "data/token_store.h"

namespace ring {
namespace {

struct CorpusArguments {
  std::string file, output, format = "megatron";
  bool validation = false, force = false;
};

void export_corpus(const CorpusArguments& a) {
  for (const std::string& path : {a.output + ".bin", a.output + ".idx"}) {
    if (!a.force && std::filesystem::exists(path))
      fail("--output: ", path, " exists. Choose another name, or replace it with --force");
    check_output("--output", path, {a.file});
  }
  const auto store = TokenStore::open(a.file);
  const TokenSplit& split = a.validation ? store->validation() : store->train();
  export_megatron(split, static_cast<std::uint64_t>(store->vocab_size()), a.output);
  std::cout << a.output << ".bin and " << a.output << ".idx:\n"
            << split_summary(a.validation ? "validation" : "train", split.tokens(), split.documents(), split.targets())
            << "\n";
}

}  // namespace

void add_data_export(Command data) {
  const Command c = data.add_subcommand("export", "Write a split of a corpus for another trainer");
  CorpusArguments& a = c.runs(export_corpus);
  c.add_option("corpus", a.file, "a corpus (.h5)").required().type_name("FILE");
  c.add_option("--output", a.output, "start of the names of the files: PREFIX.bin and PREFIX.idx")
      .required()
      .type_name("PREFIX");
  c.add_option("--format", a.format, "format of the files: megatron (a data set of Megatron-LM)")
      .one_of({"megatron"})
      .show_default();
  c.add_flag("--validation", a.validation, "export the validation split instead of the training split");
  c.add_flag("--force", a.force, "replace the files if they exist");
  c.footer(
      "Megatron-LM also needs the corpus's tokenizer. To see which one it is: ringmaster data inspect corpus.h5\n"
      "Example: ringmaster data export corpus.h5 --output corpus_train");
}

}  // namespace ring
