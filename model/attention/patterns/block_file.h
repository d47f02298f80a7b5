#pragma once
// A user-defined block pattern, read from a text file. Blocks have the configured size and are numbered from 0, the
// block in which the document starts:
//
//   # query blocks: the key blocks that they see
//   0-7: 0-7
//   8: 0 6-8
//   heads 2-3          # the following lines apply to these KV heads only; for a single head: head 2
//   0-8: 0
//
// Lines may be in any order; their blocks add up. Lines before the first `heads` apply to all KV heads that have no
// section of their own. A block always sees itself. The file must name the largest query block of each section: a
// context with more blocks is refused. If attention is causal, keys after their queries are left out.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/attention/blocks.h"

namespace ring {

class BlockFile {
 public:
  // Throw Error naming the file and line. A file has at most 4 MiB, and a pattern at most 2^31 blocks over all
  // sections.
  static BlockFile read(const std::string& path);
  static BlockFile parse(const std::string& text, const std::string& name);

  // Adds a rule to `rules`, with its bits, for each of `heads`, and sets of_head[head] to the rule's index.
  void add_rules(const std::vector<std::int32_t>& heads, std::vector<std::int32_t>& of_head,
                 std::vector<BlockRule>& rules, std::vector<std::uint32_t>& bits) const;

 private:
  // Blocks first to last, inclusive.
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
  static BlockRule bit_matrix_size(const Section&);
  void check_size(const std::vector<const Section*>&, std::size_t words_before) const;
  static void set_key_bits(std::uint32_t* row, Range keys);
  static BlockRule build_bit_matrix(const Section&, std::vector<std::uint32_t>& bits);

  std::string name_;
  std::vector<Section> sections_;                // the first section is for heads without a section of their own
  std::map<std::int32_t, std::size_t> by_head_;  // the other sections, by their first head
};

}  // namespace ring
