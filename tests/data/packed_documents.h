#pragma once
// Corpora in which each token is its own offset, so that a batch shows what was read.

#include <map>
#include <string>
#include <vector>

#include "core/philox.h"
#include "corpus_case.h"
#include "data/loader.h"

namespace ring {

inline constexpr std::int64_t kContext = 32;

struct DocumentLengths {
  std::vector<std::int32_t> train, validation;  // lengths; 0: a document that is begun but gets no tokens
};

inline std::string write_documents(const std::string& path, const DocumentLengths& documents) {
  TokenStoreWriter writer(path, 60000);
  const auto put = [&](Split split, const std::vector<std::int32_t>& lengths) {
    std::int32_t next = 0;
    for (const std::int32_t length : lengths) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
      for (std::int32_t& t : tokens) t = next++;
      writer.begin_document(split);
      writer.append(split, tokens);
      writer.add_text_bytes(split, tokens.size());
    }
  };
  put(Split::train, documents.train);
  put(Split::validation, documents.validation);
  writer.finish(*bytes_tokenizer(), "a test");
  return path;
}

inline std::vector<std::int32_t> random_lengths(std::size_t documents, std::uint64_t seed, std::uint32_t most) {
  std::vector<std::int32_t> out;
  for (std::size_t i = 0; i < documents; ++i)
    out.push_back(static_cast<std::int32_t>(random_bits({seed, 0, 0}, i) % (most + 1)));
  return out;
}

// Returns the document of each token; -1 for the position after the last token.
inline std::vector<int> document_of(const std::vector<std::int32_t>& lengths) {
  std::vector<int> out;
  for (std::size_t d = 0; d < lengths.size(); ++d)
    out.insert(out.end(), static_cast<std::size_t>(lengths[d]), static_cast<int>(d));
  out.push_back(-1);
  return out;
}

// Checks that every row's pieces are documents with the right positions and targets. Counts the tokens in `inputs` and
// `targets`.
inline void check_batch(const Batch& b, const LoaderOptions& o, const std::vector<int>& document,
                        std::map<int, int>& inputs, std::map<int, int>& targets) {
  const auto size = static_cast<std::size_t>(o.rows * o.context);
  ASSERT_EQ(b.inputs.size(), size);
  ASSERT_EQ(b.positions.size(), size);
  ASSERT_EQ(b.starts.size(), b.lengths.size());
  std::vector<bool> padding(size, true);
  std::int64_t valid = 0;
  for (std::size_t p = 0; p < b.starts.size(); ++p) {
    const auto first = static_cast<std::size_t>(b.starts[p]), count = static_cast<std::size_t>(b.lengths[p]);
    ASSERT_GT(count, 0u);
    ASSERT_LE(first + count, size);
    ASSERT_EQ((first + count - 1) / static_cast<std::size_t>(o.context), first / static_cast<std::size_t>(o.context));
    ASSERT_EQ(b.starts[p] % o.context % o.packing.align, 0);
    for (std::size_t i = first; i < first + count; ++i) {
      const int token = b.inputs[i];
      ASSERT_TRUE(padding[i]);
      padding[i] = false;
      ASSERT_EQ(b.positions[i], static_cast<std::int32_t>(i - first));
      ASSERT_EQ(token, b.inputs[first] + b.positions[i]);
      ASSERT_EQ(document.at(static_cast<std::size_t>(token)), document.at(static_cast<std::size_t>(b.inputs[first])));
      const bool last =
          document.at(static_cast<std::size_t>(token) + 1) != document.at(static_cast<std::size_t>(token));
      ASSERT_EQ(b.targets[i], last ? -100 : token + 1);
      ++inputs[token];
      if (last) continue;
      ++targets[token + 1];
      ++valid;
    }
  }
  EXPECT_EQ(b.valid_targets, valid);
  for (std::size_t i = 0; i < size; ++i) {
    if (padding[i]) {
      ASSERT_EQ(b.targets[i], -100);
    }
  }
}

inline void expect_every_target_once(const std::map<int, int>& inputs, const std::map<int, int>& targets,
                                     const std::vector<int>& document) {
  for (std::size_t t = 0; t + 1 < document.size(); ++t) {
    const bool first = t == 0 || document[t] != document[t - 1];
    const auto seen = targets.find(static_cast<int>(t));
    EXPECT_EQ(seen == targets.end() ? 0 : seen->second, first ? 0 : 1) << "target " << t;
    EXPECT_EQ(inputs.count(static_cast<int>(t)) ? inputs.at(static_cast<int>(t)) : 0, 1) << "input " << t;
  }
}

}  // namespace ring
