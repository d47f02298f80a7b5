#include <chrono>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/data_text.h"
#include "cli/output_option.h"
#include "core/check.h"
#include "core/log.h"
#include "core/standard_streams.h"
#include "data/documents.h"
#include "data/output_file.h"
#include "data/text_files.h"
#include "data/text_frame.h"
#include "data/text_survey.h"
#include "engine/origin.h"
#include "text/bpe/train.h"
#include "text/sentencepiece_train.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

struct TrainArguments {
  std::vector<std::string> inputs;
  std::string glob = "*", kind = "bpe", pattern = "gpt2", text_field, output;
  std::int64_t vocab_size = 8192;
  std::uint64_t max_train_bytes = 20'000'000;
  double coverage = 0.9995;
  bool end_of_text = false, as_text = false, force = false;
};

// Checks that nothing is overwritten: corpora are useless without the vocabulary with which they were written.
void check_tokenizer_output(const TrainArguments& a, const std::vector<TextFile>& files) {
  check_replaceable(a.output);
  if (!a.force && std::filesystem::is_regular_file(a.output))
    fail("--output: ", a.output, " exists. Choose another name, or replace it with --force");
  std::vector<std::string> inputs;
  for (const TextFile& f : files) inputs.push_back(f.path);
  check_output("--output", a.output, inputs);
}

std::string named_together(const std::vector<TextFile>& files) {
  const std::string& first = files.front().path;
  return files.size() == 1 ? first : str("the text of ", first, " and ", files.size() - 1, " more");
}

std::shared_ptr<const Tokenizer> train_on(const std::vector<TextFile>& files, std::uint64_t bytes,
                                          const TrainArguments& a) {
  if (bytes == 0) fail_as_empty(files);
  if (a.kind == "chars") return chars_tokenizer(count_characters(files).characters, a.end_of_text);
  log::info("training a ", a.kind, " vocabulary of ", with_commas(static_cast<std::uint64_t>(a.vocab_size)),
            " tokens on ", format_bytes(static_cast<double>(std::min(bytes, a.max_train_bytes))), " of ",
            format_bytes(static_cast<double>(bytes)), " of text; this takes seconds to minutes");
  const TextSource source = [&](const auto& take) { sample_text(files, a.max_train_bytes, take); };
  if (a.kind != "byte-bpe")
    return train_sentencepiece(source, {a.kind, a.vocab_size, a.coverage, named_together(files)});
  auto tokenizer = bpe::train_byte_bpe(source, {a.vocab_size, *bpe::pattern_named(a.pattern)});
  if (tokenizer->vocab_size() < a.vocab_size)
    log::warn("the vocabulary has only ", with_commas(static_cast<std::uint64_t>(tokenizer->vocab_size())),
              " tokens because no pair of tokens occurs twice any more in the text");
  return tokenizer;
}

void train(const TrainArguments& a) {
  const auto started = std::chrono::steady_clock::now();
  const std::vector<TextFile> files = list_text_files(a.inputs, a.glob, a.as_text, {.text = a.text_field});
  check_tokenizer_output(a, files);
  std::uint64_t bytes = 0;
  for (const TextFile& f : files) bytes += text_size(f);
  const std::shared_ptr<const Tokenizer> tokenizer = train_on(files, bytes, a);
  save_tokenizer(*tokenizer, a.output);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  std::cout << a.output << ": " << a.kind << ", " << with_commas(static_cast<std::uint64_t>(tokenizer->vocab_size()))
            << " tokens, hash " << tokenizer->hash() << ", " << format_fixed(seconds, 1) << " s\n";
}

void warn(const EncodeReport& r) {
  if (r.invalid_bytes > 0) log::warn("bytes of the input that are not UTF-8: ", r.invalid_bytes);
  if (r.unknown > 0)
    log::warn("characters of the input that are not in the vocabulary: ", r.unknown, "; decoding cannot restore them");
}

struct EncodeArguments {
  std::string tokenizer;
  std::vector<std::string> words;
  bool pieces = false, offsets = false, special = false;
};

void print_offsets(const Tokenizer& tokenizer, const std::string& text) {
  for (const PlacedToken& t : tokenizer.encode_placed(text))
    std::cout << t.id << '\t' << t.begin << '\t' << t.end << '\t' << escape_control_characters(tokenizer.piece(t.id))
              << '\n';
}

void encode(const EncodeArguments& a) {
  const auto tokenizer = open_tokenizer(a.tokenizer);
  std::string text;
  for (const std::string& word : a.words) text += (text.empty() ? "" : " ") + word;
  if (a.words.empty()) text = read_standard_input();
  if (a.offsets) return print_offsets(*tokenizer, text);
  EncodeReport report;
  std::vector<std::int32_t> ids = tokenizer->encode(text, &report);
  if (a.special) {
    const std::vector<std::int32_t> before = tokenizer->before_text(), after = tokenizer->after_text();
    ids.insert(ids.begin(), before.begin(), before.end());
    ids.insert(ids.end(), after.begin(), after.end());
  }
  if (a.pieces) {
    for (std::int32_t id : ids) std::cout << id << '\t' << escape_control_characters(tokenizer->piece(id)) << '\n';
  } else {
    for (std::size_t i = 0; i < ids.size(); ++i) std::cout << (i ? " " : "") << ids[i];
    std::cout << '\n';
  }
  warn(report);
}

struct DecodeArguments {
  std::string tokenizer;
  std::vector<std::int32_t> ids;
};

void decode(DecodeArguments& a) {
  const auto tokenizer = open_tokenizer(a.tokenizer);
  if (a.ids.empty()) {
    std::istringstream in(read_standard_input());
    for (std::string word; in >> word;) {
      std::size_t used = 0;
      try {
        a.ids.push_back(std::stoi(word, &used));
      } catch (const std::logic_error&) {
        used = 0;
      }
      if (used != word.size()) fail("standard input: expected token numbers separated by spaces, got '", word, "'");
    }
  }
  std::cout << tokenizer->decode(a.ids);
}

struct TokenArguments {
  std::string tokenizer;
  std::int64_t first = 0, tokens = 20;
};

void inspect_tokenizer(const TokenArguments& a) {
  const auto tokenizer = open_tokenizer(a.tokenizer);
  const std::int64_t vocab = tokenizer->vocab_size();
  const std::vector<std::int32_t> begin = empty_text(*tokenizer);
  const auto named = [&](std::optional<std::int32_t> id) {
    return id ? str(*id, " ", escape_control_characters(tokenizer->piece(*id))) : std::string("none");
  };
  // Contains what tokenizers often do not restore: runs of spaces, newlines, a tab, accents, an emoji, U+2581, a stray
  // byte, and characters that normalization changes: U+00A0, a ligature, a combining accent, a fullwidth digit, a
  // capital.
  const std::string probe =
      " a  b\n\n\tc\r\n    d \xC3\xA9\xF0\x9F\x98\x80 \xE2\x96\x81 \xFF x\xC2\xA0y \xEF\xAC\x81 e\xCC\x81 "
      "\xEF\xBC\x91 A end ";
  std::cout << "kind         " << tokenizer->kind() << "\nvocabulary   "
            << with_commas(static_cast<std::uint64_t>(vocab)) << " tokens"
            << "\nhash         " << tokenizer->hash() << "\nend of text  " << named(tokenizer->end_of_text())
            << "\nempty text   " << (begin.empty() ? std::string("none") : named(begin.back())) << "\nround trip   "
            << (tokenizer->decode(tokenizer->encode(probe)) == probe ? "exact for any input"
                                                                     : "not exact for every input")
            << "\n";
  for (std::int64_t id = std::max<std::int64_t>(a.first, 0); id < std::min(vocab, a.first + a.tokens); ++id) {
    std::cout << id << '\t' << escape_control_characters(tokenizer->piece(static_cast<std::int32_t>(id))) << '\n';
  }
}

constexpr const char* kSpecText =
    "bytes, or a file: .rmt, tokenizer.json, SentencePiece (.model), a corpus (.h5), or a folder of a published model "
    "or run";

void add_train(Command parent) {
  const Command c = parent.add_subcommand("train", "Train a tokenizer on text");
  TrainArguments& a = c.runs(train);
  c.add_option("--input", a.inputs, "text files and folders").required().type_name("PATH");
  c.add_option("--glob", a.glob, "files of a folder to read, such as '*.txt'").show_default().type_name("PATTERN");
  c.add_option("--text-field", a.text_field,
               "read JSON Lines or Parquet with this member as the text; default for .jsonl and .ndjson: text")
      .type_name("NAME");
  c.add_flag(
      "--as-text", a.as_text,
      "read the bytes of all files unchanged, even of JSON and of files that are not text (compressed, tables, NUL "
      "bytes)");
  c.add_option("--kind", a.kind, "kind of vocabulary").one_of({"bpe", "unigram", "byte-bpe", "chars"}).show_default();
  c.add_number("--vocab-size", a.vocab_size, "number of tokens (all kinds but chars)", 300, 1 << 24).show_default();
  c.add_option(
       "--output", a.output,
       "file to write: .rmt, .model for a plain SentencePiece model, or .json for the tokenizer.json of byte-bpe")
      .required()
      .type_name("FILE");
  c.add_bytes("--max-train-bytes", a.max_train_bytes,
              "train on an even sample of this size, such as 50MB (all kinds but chars)", 1, std::uint64_t{1} << 53)
      .show_default();
  c.add_option("--pattern", a.pattern, "how byte-bpe splits text into words: as GPT-2, Llama 3 or Qwen2")
      .one_of({"gpt2", "llama3", "qwen2"})
      .show_default();
  c.add_number("--character-coverage", a.coverage, "share of the text whose characters become tokens (bpe, unigram)",
               0.9, 1)
      .show_default();
  c.add_flag("--force", a.force, "replace the output if it exists");
  c.add_flag("--end-of-text", a.end_of_text, "add an end-of-text token (chars; the other kinds have one)");
  c.footer(
      "The vocabulary can represent every byte of the text. Text is not normalised (except to NFC by\n"
      "--pattern qwen2), and characters without a token are encoded as bytes.\n"
      "Example: ringmaster tokenizer train --input books/ --glob '*.txt' --kind bpe --vocab-size 8192 --output "
      "tok.rmt");
}

void add_encode(Command parent) {
  const Command c = parent.add_subcommand("encode", "Turn text into token numbers");
  EncodeArguments& a = c.runs(encode);
  c.add_option("tokenizer", a.tokenizer, kSpecText).required().type_name("SPEC");
  c.add_option("text", a.words, "text to encode; default: standard input");
  c.add_flag("--pieces", a.pieces, "print one token per line, with its text");
  c.add_flag("--special", a.special,
             "add the tokens that a tokenizer.json puts around a text, such as Llama 3's first");
  c.add_flag("--offsets", a.offsets,
             "print one token per line, with its first byte, the byte after its last, and its text")
      .excludes({"--special"});
  c.footer("Example: ringmaster tokenizer encode tok.rmt --pieces 'To be, or not to be'");
}

void add_decode(Command parent) {
  const Command c = parent.add_subcommand("decode", "Turn token numbers into text");
  DecodeArguments& a = c.runs(decode);
  c.add_option("tokenizer", a.tokenizer, kSpecText).required().type_name("SPEC");
  c.add_number("ids", a.ids, "token numbers; default: standard input", 0, kMaxCount)
      .delimiter(' ');  // a quoted list is a single word
  c.footer("Example: ringmaster tokenizer encode tok.rmt < in.txt | ringmaster tokenizer decode tok.rmt > out.txt");
}

void add_inspect(Command parent) {
  const Command c = parent.add_subcommand("inspect", "Show properties of a tokenizer and some of its tokens");
  TokenArguments& a = c.runs(inspect_tokenizer);
  c.add_option("tokenizer", a.tokenizer, kSpecText).required().type_name("SPEC");
  c.add_number("--first", a.first, "first token to show", 0, kMaxCount).show_default();
  c.add_number("--tokens", a.tokens, "number of tokens to show", 0, kMaxCount).show_default();
  c.footer("Example: ringmaster tokenizer inspect tok.rmt --first 300 --tokens 50");
}

}  // namespace

void add_tokenizer_commands(Command app) {
  const Command tokenizer = app.add_subcommand("tokenizer", "Train, try and inspect tokenizers");
  tokenizer.require_subcommand();
  tokenizer.footer("Example: ringmaster tokenizer train --input books/ --kind bpe --vocab-size 8192 --output tok.rmt");
  add_train(tokenizer);
  add_encode(tokenizer);
  add_decode(tokenizer);
  add_inspect(tokenizer);
}

}  // namespace ring
