#include "model/attention/patterns/block_file.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>
#include <string_view>

#include "core/check.h"
#include "core/text_file.h"
#include "core/yaml.h"

namespace ring {
namespace {

constexpr std::int32_t kMaxBlocks = 1 << 15;  // maximum blocks per side, 128 MiB of bits
constexpr std::int32_t kMaxHeads = 1 << 15;
constexpr std::size_t kMaxBytes = 4 << 20;  // maximum bytes of a file
// A short line may name very many blocks, so these limits bound the cost of building the bit matrices.
//   kMaxWords   words of 32 blocks, held for all sections of a pattern (256 MiB)
//   kMaxWrites  writes to words: overlapping lines write the same word repeatedly
constexpr std::int64_t kMaxWords = 1 << 26, kMaxWrites = 1 << 26;
constexpr std::string_view kBlank = " \t\r,";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlank), last = text.find_last_not_of(kBlank);
  return first == std::string_view::npos ? std::string_view() : text.substr(first, last - first + 1);
}

// Removes and returns the next word; empty if none is left.
std::string_view next_word(std::string_view& text) {
  text = trimmed(text);
  const std::string_view word = text.substr(0, text.find_first_of(kBlank));
  text.remove_prefix(word.size());
  return word;
}

}  // namespace

class BlockFile::Parser {
 public:
  explicit Parser(BlockFile& file) : file_(file) { file_.sections_.push_back({0, {0, -1}, {}}); }

  void line(std::string_view text) {
    ++number_;
    text = trimmed(text.substr(0, text.find('#')));
    if (text.empty()) return;
    const std::size_t colon = text.find(':');
    if (colon != std::string_view::npos) return blocks(trimmed(text.substr(0, colon)), text.substr(colon + 1));
    const std::string_view word = next_word(text);
    if (word != "head" && word != "heads")
      wrong("expected a line such as '8: 0 6-8' or 'heads 0-3', got '", shown(std::string(word)), "'");
    section(trimmed(text));
  }

  void end() const {
    for (const Section& s : file_.sections_)
      if (s.line > 0 && s.kept.empty())
        fail(file_.name_, ":", s.line, ": no blocks follow for ", heads_text(s),
             ". Add lines such as '8: 0 6-8', or remove the section");
    if (file_.sections_.size() == 1 && file_.sections_[0].kept.empty())
      fail(file_.name_, ": contains no blocks. Add lines such as '8: 0 6-8'");
  }

 private:
  template <class... Parts>
  [[noreturn]] void wrong(const Parts&... parts) const {
    fail(file_.name_, ":", number_, ": ", parts...);
  }

  static std::string heads_text(const Section& s) {
    return s.heads.first == s.heads.last ? str("head ", s.heads.first)
                                         : str("heads ", s.heads.first, "-", s.heads.last);
  }

  // Parses "5" or "5-8".
  Range range(std::string_view text, const char* what, std::int32_t max) const {
    const std::size_t dash = text.find('-');
    const auto number_of = [&](std::string_view digits) {
      std::int32_t n = -1;
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
      if (error != std::errc() || end != digits.data() + digits.size() || n < 0 || n >= max)
        wrong("'", shown(std::string(text)), "' is not a ", what, ". Give a number from 0 to ", max - 1,
              ", or a range such as 5-8");
      return n;
    };
    const std::int32_t first = number_of(text.substr(0, dash));
    const std::int32_t last = dash == std::string_view::npos ? first : number_of(text.substr(dash + 1));
    if (last < first) wrong("'", text, "' is reversed. Write ", last, "-", first);
    return {first, last};
  }

  void blocks(std::string_view queries, std::string_view keys) {
    const Range q = range(queries, "block of queries", kMaxBlocks);
    bool any = false;
    for (std::string_view word = next_word(keys); !word.empty(); word = next_word(keys), any = true)
      file_.sections_.back().kept.push_back({q, range(word, "block of keys", kMaxBlocks)});
    if (!any) wrong("no blocks of keys after '", queries, ":'. Name them, as in '8: 0 6-8'");
  }

  void section(std::string_view text) {
    const Section made{number_, range(text, "head", kMaxHeads), {}};
    if (const Section* s = file_.section_of(made.heads))
      wrong(heads_text(made), " and ", heads_text(*s), " of line ", s->line, " overlap. Keep one section per head");
    file_.by_head_[made.heads.first] = file_.sections_.size();
    file_.sections_.push_back(made);
  }

  BlockFile& file_;
  int number_ = 0;  // line number
};

BlockFile BlockFile::parse(const std::string& text, const std::string& name) {
  BlockFile file;
  file.name_ = name;
  Parser parser(file);
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) parser.line(line);
  parser.end();
  return file;
}

BlockFile BlockFile::read(const std::string& path) {
  std::string text;
  try {
    text = read_text_file(path, kMaxBytes);
  } catch (const Error& e) {
    fail(e.what(), ". Give the path of a text file of blocks");
  }
  return parse(text, path);
}

// Returns the section that has some of these heads; null if there is none.
const BlockFile::Section* BlockFile::section_of(Range heads) const {
  auto after = by_head_.upper_bound(heads.last);
  if (after == by_head_.begin()) return nullptr;
  const Section& s = sections_[(--after)->second];
  return s.heads.last >= heads.first ? &s : nullptr;
}

// Returns the size of a section's bit matrix: its rows, and the words per row.
BlockRule BlockFile::bit_matrix_size(const Section& section) {
  BlockRule rule;
  rule.kind = BlockRuleKind::drawn;
  for (const KeptBlocks& k : section.kept) {
    rule.rows = std::max(rule.rows, k.queries.last + 1);
    rule.words = std::max(rule.words, k.keys.last / 32 + 1);
  }
  return rule;
}

// Throws Error if the bit matrices would exceed the limits, with `words_before` words already in use. Call before
// building them.
void BlockFile::check_size(const std::vector<const Section*>& sections, std::size_t words_before) const {
  auto words = static_cast<std::int64_t>(words_before);
  for (const Section* section : sections) {
    const BlockRule rule = bit_matrix_size(*section);
    std::int64_t writes = 0;
    for (const KeptBlocks& k : section->kept)
      writes += std::int64_t{k.queries.last - k.queries.first + 1} * (k.keys.last / 32 - k.keys.first / 32 + 1);
    words += std::int64_t{rule.rows} * rule.words;
    if (writes > kMaxWrites || words > kMaxWords)
      fail(name_, ":", section->line, ": a map of ", rule.rows, " x ", 32 * rule.words, " blocks",
           section == sections.front() ? "" : ", with those of other sections,",
           " is too large. Write fewer sections, ", "or lines that overlap less. A regular pattern needs no file");
  }
}

// Sets the bits of the blocks `keys` in a row.
void BlockFile::set_key_bits(std::uint32_t* row, Range keys) {
  const std::int32_t first = keys.first / 32, last = keys.last / 32;
  const std::uint32_t from = ~0u << (keys.first % 32), to = ~0u >> (31 - keys.last % 32);
  if (first == last) {
    row[first] |= from & to;
    return;
  }
  row[first] |= from;
  std::fill(row + first + 1, row + last, ~0u);
  row[last] |= to;
}

BlockRule BlockFile::build_bit_matrix(const Section& section, std::vector<std::uint32_t>& bits) {
  BlockRule rule = bit_matrix_size(section);
  rule.first_word = static_cast<std::int64_t>(bits.size());
  bits.resize(bits.size() + static_cast<std::size_t>(rule.rows) * static_cast<std::size_t>(rule.words));
  for (const KeptBlocks& kept : section.kept)
    for (std::int32_t q = kept.queries.first; q <= kept.queries.last; ++q)
      set_key_bits(&bits[static_cast<std::size_t>(rule.first_word + std::int64_t{q} * rule.words)], kept.keys);
  return rule;
}

void BlockFile::add_rules(const std::vector<std::int32_t>& heads, std::vector<std::int32_t>& of_head,
                          std::vector<BlockRule>& rules, std::vector<std::uint32_t>& bits) const {
  for (const Section& s : sections_)
    if (s.line > 0 && s.heads.last >= std::ssize(of_head))
      fail(name_, ":", s.line, ": KV head ", s.heads.last, " does not exist: the model has ", of_head.size(),
           ", counted from 0. Remove it");
  std::map<const Section*, std::int32_t> rule_of;
  std::vector<const Section*> drawn;
  for (const std::int32_t head : heads) {
    const Section* own = section_of({head, head});
    const Section& s = own ? *own : sections_.front();
    if (s.kept.empty())
      fail(name_, ": no blocks for KV head ", head, " of ", of_head.size(), ". Add a section 'head ", head,
           "', or lines before the first section, which apply to all other heads");
    const auto [at, added] = rule_of.try_emplace(&s, static_cast<std::int32_t>(rules.size() + drawn.size()));
    if (added) drawn.push_back(&s);
    of_head[static_cast<std::size_t>(head)] = at->second;
  }
  check_size(drawn, bits.size());
  for (const Section* s : drawn) rules.push_back(build_bit_matrix(*s, bits));
}

}  // namespace ring
