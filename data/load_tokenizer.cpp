#include "data/load_tokenizer.h"

#include <filesystem>

#include "core/byte_order_mark.h"
#include "core/check.h"
#include "core/files.h"
#include "core/joined.h"
#include "data/hub_name.h"
#include "data/token_store.h"

namespace ring {
namespace {

std::shared_ptr<const Tokenizer> tokenizer_of_folder(const std::string& folder) {
  std::vector<std::string> problems;
  if (auto tokenizer = load_tokenizer_in(folder, problems)) return tokenizer;
  if (!problems.empty()) fail("tokenizer '", folder, "': ", joined(problems, "; "));
  std::error_code error;
  const bool gpt2 = std::filesystem::exists(folder + "/merges.txt", error);
  fail("tokenizer '", folder, "': expected a folder with tokenizer.rmt, tokenizer.json or tokenizer.model, got one ",
       gpt2 ? "with merges.txt, which is not supported. Use the tokenizer.json of the same model" : "without them");
}

}  // namespace

std::filesystem::path tokenizer_folder(const std::string& spec) {
  std::error_code error;
  return std::filesystem::is_directory(spec, error) ? std::filesystem::path(spec)
                                                    : std::filesystem::path(spec).parent_path();
}

std::string text_beside_tokenizer(const std::string& spec, const std::string& name) {
  const std::filesystem::path other = tokenizer_folder(spec) / name;
  std::error_code error;
  return std::filesystem::is_regular_file(other, error)
             ? std::string(without_byte_order_marks(read_file(other.string())))
             : "";
}

std::shared_ptr<const Tokenizer> load_tokenizer_in(const std::string& folder, std::vector<std::string>& problems) {
  std::error_code error;
  for (const char* name : {"tokenizer.rmt", "tokenizer.json", "tokenizer.model"}) try {
      const std::filesystem::path file = std::filesystem::path(folder) / name;
      if (std::filesystem::exists(file, error)) return load_tokenizer(file.string());
    } catch (const Error& e) {
      problems.emplace_back(e.what());
    }
  return nullptr;
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& spec) {
  if (spec == "bytes") return bytes_tokenizer();
  std::error_code error;
  if (std::filesystem::is_directory(spec, error)) return tokenizer_of_folder(spec);
  try {
    FileHandle file = open_input(spec);
    if (TokenStore::looks_like_corpus(file)) return TokenStore::open(spec)->tokenizer();
  } catch (const Error& e) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(spec, ignored)) throw;
    fail("tokenizer '", spec, "': ", e.what(), "; give bytes, a file written by 'ringmaster tokenizer train', ",
         "a tokenizer.json, a SentencePiece .model, a folder with one of these, or a corpus (.h5)",
         download_advice(spec));
  }
  std::string bytes(without_byte_order_marks(read_file(spec)));
  if (bytes.starts_with('{'))
    return json_tokenizer(std::move(bytes), spec, text_beside_tokenizer(spec, "tokenizer_config.json"));
  return parse_tokenizer(std::move(bytes), spec);
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& spec, const std::string& hash,
                                                const std::string& owner) {
  auto tokenizer = load_tokenizer(spec);
  if (!hash.empty() && tokenizer->hash() != hash) {
    fail(spec, " holds a different tokenizer (", tokenizer->kind(), ", hash ", tokenizer->hash(),
         ") from the one that ", owner, " was made with (hash ", hash,
         "): the file was replaced. Restore the original");
  }
  return tokenizer;
}

}  // namespace ring
