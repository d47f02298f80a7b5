#pragma once
// A corpus of bytes with many documents, all different.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/token_store.h"
#include "text/tokenizer.h"

namespace ring::test {

// tokens_of: returns the number of tokens of a document, given its index in its split.
inline void write_documents(const std::string& path, std::uint64_t train, std::uint64_t validation,
                            const std::function<std::size_t(std::uint64_t)>& tokens_of) {
  TokenStoreWriter writer(path, 257);
  for (const Split split : {Split::train, Split::validation})
    for (std::uint64_t d = 0; d < (split == Split::train ? train : validation); ++d) {
      std::vector<std::int32_t> tokens(tokens_of(d));
      for (std::size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = static_cast<std::int32_t>((d * d + i * (1 + d % 3)) % 257);
      writer.begin_document(split);
      writer.append(split, tokens);
      writer.add_text_bytes(split, tokens.size());
    }
  writer.finish(*bytes_tokenizer(), "a test");
}

}  // namespace ring::test
