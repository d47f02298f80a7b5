#include "data/text_advice.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/byte_order_mark.h"
#include "core/check.h"
#include "core/files.h"
#include "core/json.h"
#include "data/chat_forms.h"
#include "data/text_kind.h"
#include "data/token_format.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

std::string head_of(const std::string& path, std::size_t bytes) {
  FileHandle file = open_input(path);
  std::string head(bytes, '\0');
  head.resize(file.read(head.data(), head.size()));
  return head;
}

// Returns the JSON object in the first line; null if the line is not a JSON object or is longer than a megabyte.
OrderedJson first_record(const std::string& path) {
  const std::string head = head_of(path, 1 << 20);
  try {
    return parse_json<OrderedJson>(without_byte_order_marks(std::string_view(head).substr(0, head.find('\n'))));
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

bool is_text_file(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;
  const std::string head = head_of(path, 4096);
  const std::string_view magic = std::string_view(head).substr(0, kCorpusMagic.size());
  if (kCorpusMagic.starts_with(magic)) return false;  // it is a truncated corpus
  return std::ranges::none_of(head, [](unsigned char c) { return c < ' ' && !std::isspace(c); });
}

std::string record_options(const std::string& text_file, const NamedTokenizer& tokenizer) {
  const OrderedJson record = first_record(text_file);
  if (!record.is_object()) return "";
  if (has_chat(record)) return tokenizer.has_chat_template ? " --chat-field" : " --chat-field --chat-template plain";
  const auto is_text = [&](const char* name) { return record.contains(name) && record[name].is_string(); };
  if (record.contains("chosen") && record.contains("rejected"))
    return is_text("chosen") ? " --preferences text" : " --preferences messages";
  if (is_text("prompt") && is_text("completion")) return " --prompt-field prompt --completion-field completion";
  if (is_text("text")) return has_json_lines_name(text_file) ? "" : " --text-field text";
  for (const auto& [name, value] : record.items())
    if (value.is_string()) return " --text-field " + name;
  return "";
}

std::string corpus_name(const std::string& text_file) {
  const fs::path path = text_file;
  return path.extension() == ".h5" ? "corpus.h5" : path.stem().string() + ".h5";
}

std::string preparing_command(const std::string& text_file, const NamedTokenizer& tokenizer) {
  return str("ringmaster data prepare --input ", text_file, record_options(text_file, tokenizer), " --tokenizer ",
             tokenizer.name, " --output ", corpus_name(text_file));
}

}  // namespace ring
