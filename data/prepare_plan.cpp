#include "data/prepare_plan.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "core/check.h"
#include "core/files.h"
#include "core/hash.h"
#include "data/documents.h"
#include "data/load_chat_format.h"
#include "data/load_tokenizer.h"
#include "data/megatron.h"
#include "data/output_file.h"
#include "data/text_survey.h"
#include "text/chat/conversation.h"
#include "text/utf8.h"

namespace ring {
namespace {

SplitKind split_of(const PrepareOptions& options, const std::vector<TextFile>& files) {
  if (!options.validation_inputs.empty()) return SplitKind::files;
  if (options.split == "hash") return SplitKind::hash;
  const auto odd = std::ranges::find_if_not(files, &TextFile::plain);
  if (options.split == "tail") {
    if (odd != files.end())
      fail("--split tail supports only files of plain text, but ", odd->path, " is ", odd->format_text(),
           ": use --split hash");
    return SplitKind::tail;
  }
  if (options.split != "auto") fail("--split ", options.split, ": expected auto, hash or tail");
  // A hash selects whole documents; if there are few documents, it may select none.
  const bool few = static_cast<double>(files.size()) * options.validation_fraction < 10;
  if (!few || options.document != "file" || odd != files.end()) return SplitKind::hash;
  return files.size() == 1 ? SplitKind::tail : SplitKind::tails;
}

// Throws Error if --document is given for records, which are already documents.
void check_rule(const PrepareOptions& options, const std::vector<TextFile>& files) {
  const auto records = std::ranges::find_if(files, &RecordMembers::any, &TextFile::members);
  if (options.document != "file" && records != files.end())
    fail("--document ", options.document, " splits text, but ", records->path, " is ", records->format_text(),
         ", where each record is a document: remove --document");
}

// Returns `byte` or, if `whole_characters`, the last character boundary at or before it.
std::uint64_t cut_at(const TextFile& file, std::uint64_t byte, bool whole_characters) {
  std::string around;  // up to three bytes before the split, and the byte after it
  const std::uint64_t begin = byte - std::min<std::uint64_t>(byte, 3);
  read_blocks(file, begin, std::min(byte + 1, file.size), [&](std::string_view b) { around += b; });
  return whole_characters ? begin + utf8::floor_boundary(around, static_cast<std::size_t>(byte - begin)) : byte;
}

std::uint64_t train_share(std::uint64_t size, double fraction) {
  return static_cast<std::uint64_t>(static_cast<double>(size) * (1 - fraction));
}

// Returns where each file's validation text begins. sizes: size of each file in characters if `characters`, else in
// bytes.
std::vector<std::uint64_t> validation_starts(const std::vector<TextFile>& files,
                                             const std::vector<std::uint64_t>& sizes, double fraction, bool characters,
                                             bool whole_characters) {
  std::vector<std::uint64_t> from;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::uint64_t left = train_share(sizes[i], fraction);
    from.push_back(left == sizes[i] ? kNoValidation
                   : characters     ? offset_of_character(files[i], left)
                                    : cut_at(files[i], left, whole_characters));
  }
  return from;
}

// Like validation_starts(), but for all files concatenated: only the last files have validation text.
std::vector<std::uint64_t> validation_start(const std::vector<TextFile>& files, const std::vector<std::uint64_t>& sizes,
                                            double fraction, bool characters, bool whole_characters) {
  std::uint64_t left = train_share(std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}), fraction);
  std::size_t i = 0;
  while (i + 1 < files.size() && left >= sizes[i]) left -= sizes[i++];
  std::vector<std::uint64_t> from(files.size(), 0);
  std::fill_n(from.begin(), i, kNoValidation);
  from[i] = characters ? offset_of_character(files[i], left) : cut_at(files[i], left, whole_characters);
  return from;
}

// If enlarge_validation is set, enlarges the fraction to at least 250,000 bytes, more than enough for 50,000 tokens of
// four bytes each, but to at most a tenth of the input.
void settle_fraction(PrepareOptions& o, std::uint64_t bytes) {
  constexpr double kValidationBytes = 250'000, kMost = 0.1;
  if (!o.enlarge_validation || bytes == 0) return;
  const double enough = std::ceil(100 * kValidationBytes / static_cast<double>(bytes)) / 100;
  o.validation_fraction = std::clamp(enough, o.validation_fraction, std::max(kMost, o.validation_fraction));
}

void check_options(const PrepareOptions& o) {
  if (!(o.validation_fraction >= 0 && o.validation_fraction < 1)) {
    fail("--validation-fraction ", o.validation_fraction, ": it must be at least 0 and below 1");
  }
  if (o.threads < 0) fail("--threads ", o.threads, ": it must be 0 (all cores) or more");
}

// Returns the .bin file of each token data set among the files; empty if all files may be text.
std::vector<TextFile> data_sets_of(const std::vector<TextFile>& files) {
  std::vector<TextFile> sets;
  std::set<std::string> prefixes;
  std::set<FileId> seen;
  const TextFile* other = nullptr;
  for (const TextFile& f : files) {
    const std::string prefix = megatron_prefix(f.path);
    if (prefix.empty()) {
      other = &f;
    } else if (prefixes.insert(prefix).second) {
      const MegatronDataset set(prefix);
      if (seen.insert(file_id(prefix + ".bin")).second)
        sets.push_back({prefix + ".bin", f.name.substr(0, f.name.size() - 4), set.bytes()});
    }
  }
  if (!sets.empty() && other)
    fail(sets.front().path, " already holds tokens, but ", other->path, " is not a Megatron-LM data set: ",
         other->options == FileOptions::all
             ? "choose files with --glob, or prepare both separately and mix them with data.mixture"
             : "give only one of the two");
  return sets;
}

// Returns the files that --input or --validation-input name. tokens: set to true if they are token data sets.
std::vector<TextFile> files_of(const PrepareOptions& o, const std::vector<std::string>& inputs, bool& tokens) {
  std::vector<TextFile> files = find_files(inputs, o.glob, o.file_options);
  std::vector<TextFile> sets;
  if (!o.as_text) sets = data_sets_of(files);
  tokens = !sets.empty();
  if (tokens) return sets;
  inspect_files(files, o.as_text, o.members);
  return files;
}

// Lists the files; validation files come last. Rejects a file that both options name, since it would be used for both
// training and evaluation.
void list_files(const PrepareOptions& o, PreparePlan& plan) {
  plan.files = files_of(o, o.inputs, plan.tokens);
  plan.validation_from.assign(plan.files.size(), kNoValidation);
  if (o.validation_inputs.empty()) return;
  std::set<FileId> known;
  for (const TextFile& f : plan.files) known.insert(file_id(f.path));
  bool tokens = false;
  std::vector<TextFile> validation = files_of(o, o.validation_inputs, tokens);
  if (tokens != plan.tokens)
    fail("--input ", plan.files.front().path, " and --validation-input ", validation.front().path,
         ": one already holds tokens, the other holds text; both must have the same form");
  for (TextFile& f : validation) {
    if (known.contains(file_id(f.path)))
      fail("--validation-input: ", f.path, " is also in --input: a model would be evaluated on its training data");
    plan.files.push_back(std::move(f));
    plan.validation_from.push_back(0);
  }
}

void check_output(const PrepareOptions& o, const std::vector<TextFile>& files) {
  std::vector<std::string> inputs{o.tokenizer, o.chat_template};
  for (const TextFile& f : files) {
    inputs.push_back(f.path);
    if (f.path.ends_with(".bin")) inputs.push_back(f.path.substr(0, f.path.size() - 4) + ".idx");
  }
  check_output_is_no_input("--output", o.output, inputs);
}

// Throws Error for options that configure the encoding of text, since the input is already tokens.
void check_tokens(const PrepareOptions& o, const std::string& path) {
  const auto refuse = [&](const std::string& option, const char* why) {
    fail(option, " ", why, ", but ", path, " already holds tokens: remove the option");
  };
  const RecordMembers& m = o.members;
  if (m.any())
    refuse(!m.text.empty()    ? "--text-field"
           : m.pairs()        ? "--preferences"
           : m.conversation() ? "--chat-field"
                              : "--prompt-field",
           "reads records");
  if (!o.chat_template.empty()) refuse("--chat-template", "writes conversations");
  if (o.document != "file") refuse("--document " + o.document, "splits text");
  if (o.split == "tail") refuse("--split tail", "splits text");
  if (o.tokenizer == "chars")
    fail("--tokenizer chars is built from the input's text, but ", path,
         " already holds tokens: give the tokenizer that they were made with");
}

// Creates the writer of conversations for all files.
void take_chat_format(const PrepareOptions& options, PreparePlan& plan) {
  const chat::Format format = load_chat_format(options.chat_template, options.tokenizer, *plan.tokenizer);
  const std::string name =
      options.chat_template.empty() ? "chat template of " + options.tokenizer : options.chat_template;
  const auto writer = std::make_shared<const chat::ConversationWriter>(format, name);
  for (TextFile& f : plan.files) f.members.writer = writer;
  plan.chat_format = format.to_json();
}

void check_members(const PrepareOptions& o) {
  const RecordMembers& m = o.members;
  const bool chats = m.conversation() && !m.pairs();
  if (!m.text.empty() + !m.completion.empty() + chats + m.pairs() > 1)
    fail(
        "--text-field, --prompt-field with --completion-field, --chat-field and --preferences exclude each other: "
        "give ",
        "one of them");
  if (m.prompt.empty() != m.completion.empty())
    fail(m.prompt.empty() ? "--completion-field" : "--prompt-field", " requires ",
         m.prompt.empty() ? "--prompt-field" : "--completion-field", ": give both");
  if (!o.chat_template.empty() && !m.conversation())
    fail("--chat-template ", o.chat_template,
         " writes conversations: name those of the records with --chat-field, or give --preferences messages");
  if (m.masked() && o.tokenizer == "chars")
    fail("--tokenizer chars is built from the input's text, but ", m.names(),
         " of records contain more than text: create the tokenizer first, with 'ringmaster tokenizer train --kind "
         "chars'");
}

void plan_tokens(const PrepareOptions& options, PreparePlan& plan) {
  check_tokens(options, plan.files.front().path);
  plan.tokenizer = load_tokenizer(options.tokenizer);
  plan.split = options.validation_inputs.empty() ? SplitKind::hash : SplitKind::files;
}

// Sets where each file's validation text begins, for a split at the tail. characters: number of characters of each
// file; empty if not counted yet.
void plan_tails(const PrepareOptions& options, std::vector<std::uint64_t> characters, PreparePlan& plan) {
  const bool in_characters = plan.tokenizer->kind() == "chars";
  std::vector<std::uint64_t> sizes = std::move(characters);
  if (in_characters && sizes.empty()) sizes = count_characters(plan.files).per_file;
  if (!in_characters)
    for (const TextFile& f : plan.files) sizes.push_back(f.size);
  const auto starts = plan.split == SplitKind::tail ? validation_start : validation_starts;
  plan.validation_from =
      starts(plan.files, sizes, options.validation_fraction, in_characters, plan.tokenizer->kind() != "bytes");
}

void plan_text(const PrepareOptions& options, PreparePlan& plan) {
  check_rule(options, plan.files);
  CharacterCount characters;
  const bool build = options.tokenizer == "chars";
  if (build) characters = count_characters(plan.files);
  plan.tokenizer = build ? chars_tokenizer(characters.characters) : load_tokenizer(options.tokenizer);
  if (options.members.conversation()) take_chat_format(options, plan);
  if (options.members.masked())
    plan.shape = plan.chat_format.empty() ? DocumentShape::pair : DocumentShape::conversation;
  const DocumentRule rule = parse_document_rule(options.document);
  if (rule.kind != DocumentKind::file && !plan.tokenizer->end_of_text()) {
    fail("--document ", options.document, " drops the separators of documents, but the ", plan.tokenizer->kind(),
         " tokenizer has no end-of-text token to replace them; use --document file, or train the tokenizer with "
         "--end-of-text");
  }
  plan.split = split_of(options, plan.files);
  if ((plan.split == SplitKind::tail || plan.split == SplitKind::tails) && options.validation_fraction > 0)
    plan_tails(options, build ? characters.per_file : std::vector<std::uint64_t>{}, plan);
}

}  // namespace

Split hashed_split(const PrepareOptions& options, const std::string& file, std::uint64_t document) {
  const std::uint64_t h = xxh3(str(file, '\0', document));
  const double place = static_cast<double>(h >> 11) * 0x1p-53;
  return place < options.validation_fraction ? Split::validation : Split::train;
}

PreparePlan plan_preparation(PrepareOptions& options) {
  check_options(options);
  check_members(options);
  PreparePlan plan;
  list_files(options, plan);
  check_output(options, plan.files);
  for (const TextFile& f : plan.files) plan.bytes += f.size;
  settle_fraction(options, plan.bytes);
  if (plan.bytes == 0) fail_as_empty(plan.files);
  if (plan.tokens)
    plan_tokens(options, plan);
  else
    plan_text(options, plan);
  return plan;
}

std::string PreparePlan::summary(const PrepareOptions& o) const {
  const std::string name = std::filesystem::path(files.front().path).filename().string();
  const RecordMembers& members = files.front().members;
  return str(files.size(), files.size() == 1 ? " file, " : " files, first ", name, "; documents: ",
             tokens          ? "from Megatron-LM's index"
             : members.any() ? members.names() + " of records"
                             : o.document,
             "; split: ",
             split == SplitKind::files ? std::string("separate files")
                                       : str(split == SplitKind::hash   ? "hash"
                                             : split == SplitKind::tail ? "tail"
                                                                        : "tail of each file",
                                             " ", o.validation_fraction));
}

}  // namespace ring
