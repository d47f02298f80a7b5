#include "data/load_tokenizer.h"

#include <filesystem>

#include "core/check.h"
#include "data/byte_order_mark.h"
#include "data/files.h"
#include "data/token_store.h"

namespace ring {
namespace {

// The path of a file of this name in the same folder; empty: there is none.
std::string beside(const std::string& path, const std::string& name) {
  const auto other = std::filesystem::path(path).parent_path() / name;
  std::error_code error;
  return std::filesystem::is_regular_file(other, error) ? other.string() : "";
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& spec) {
  if (spec == "bytes") return bytes_tokenizer();
  try {
    FileHandle file = open_input(spec);
    if (TokenStore::is_one(file)) return TokenStore::open(spec)->tokenizer();
  } catch (const Error& e) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(spec, ignored)) throw;
    fail("tokenizer '", spec, "': ", e.what(), "; give bytes, a file written by 'ringmaster tokenizer train', ",
         "a tokenizer.json, a SentencePiece .model, or a corpus (.h5)");
  }
  std::string bytes(without_byte_order_mark(read_file(spec)));
  const std::string config = beside(spec, "tokenizer_config.json");
  if (bytes.starts_with('{') && !config.empty())
    return json_tokenizer(std::move(bytes), spec, std::string(without_byte_order_mark(read_file(config))));
  return parse_tokenizer(std::move(bytes), spec);
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& spec, const std::string& hash,
                                                const std::string& owner) {
  auto tokenizer = load_tokenizer(spec);
  if (!hash.empty() && tokenizer->hash() != hash) {
    fail(spec, " holds another tokenizer (", tokenizer->kind(), ", hash ", tokenizer->hash(), ") than ", owner,
         " was made with (hash ", hash, "): it was replaced. Put the right one back");
  }
  return tokenizer;
}

}  // namespace ring
