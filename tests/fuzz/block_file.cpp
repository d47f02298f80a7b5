// Target: a file of blocks, for 4 KV heads.
#include "model/attention/patterns/block_file.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto file = ring::BlockFile::parse(std::string(data, data + size), "fuzzed.blocks");
    std::vector<std::int32_t> of_head(4);
    std::vector<ring::BlockRule> rules;
    std::vector<std::uint32_t> bits;
    file.add_rules({0, 1, 2, 3}, of_head, rules, bits);
    const ring::BlockPattern pattern(64, rules, of_head, std::move(bits));
    for (const std::int32_t head : {0, 3}) pattern.keeps(head, rules[0].rows - 1, 0);
  } catch (const ring::Error&) {
  }
  return 0;
}
