#pragma once
// A user's own block pattern, from a text file. Numbers are blocks of the configured size, counted from 0, the one in
// which the document starts:
//
//   # blocks of queries: the blocks of keys that they see
//   0-7: 0-7
//   8: 0 6-8
//   heads 2-3          # what follows is for these KV heads only; one alone: head 2
//   0-8: 0
//
// Lines add up, in any order. What comes before the first heads is for all KV heads that have no section of their own.
// A block always sees itself. The file ends with the largest block of queries of each section: a context of more blocks
// is refused. Where attention is causal, keys behind their queries are left out.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/attention/blocks.h"

namespace ring {

class BlockFile {
 public:
  // Errors name the file and the line. A file has at most 4 MiB, and a pattern 2^31 blocks, of all sections together.
  static BlockFile read(const std::string& path);
  static BlockFile parse(const std::string& text, const std::string& name);

  // Gives each of `heads` a rule: sets of_head[head] to the number of one that it adds to `rules`, with its bits.
  void add_rules(const std::vector<std::int32_t>& heads, std::vector<std::int32_t>& of_head,
                 std::vector<BlockRule>& rules, std::vector<std::uint32_t>& bits) const;

 private:
  // Blocks of queries and keys, both ends included.
  struct Range {
    std::int32_t first, last;
  };
  struct KeptBlocks {
    Range queries, keys;
  };
  struct Section {
    int line;
    Range heads;
    std::vector<KeptBlocks> kept;
  };
  class Parser;
  const Section* section_of(Range heads) const;
  static BlockRule extent(const Section&);
  void check_size(const std::vector<const Section*>&, std::size_t words_before) const;
  static void mark(std::uint32_t* row, Range keys);
  static BlockRule draw(const Section&, std::vector<std::uint32_t>& bits);

  std::string name_;
  std::vector<Section> sections_;                // the first one: for heads without a section
  std::map<std::int32_t, std::size_t> by_head_;  // the others, by their first head
};

// The pattern of a model whose rules[i] come from files[i] where that is not empty (see BlockPattern for of_head).
// Error: such a file is wrong, which begins with "rules[i].file".
BlockPattern block_pattern(std::int32_t block, std::vector<BlockRule> rules, const std::vector<std::string>& files,
                           const std::vector<std::int32_t>& of_head, std::int64_t kv_heads);

}  // namespace ring
