#include "data/hub_name.h"

#include <cctype>
#include <filesystem>
#include <string_view>

#include "core/check.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

// Returns true if `path` may be the name of a model on Hugging Face: it has the form "name" or "owner/name", does not
// end like a file name, and no file or folder "owner" (or "name") exists here.
bool may_be_hub_name(const std::string& path) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
  const std::size_t slash = path.find('/');
  const std::string owner = path.substr(0, slash), name = slash == std::string::npos ? "" : path.substr(slash + 1);
  const auto is_word = [&](const std::string& word) {
    return !word.empty() && word[0] != '.' && word.find_first_not_of(kLetters) == std::string::npos;
  };
  if (!is_word(owner) || (slash != std::string::npos && !is_word(name))) return false;
  // A suffix that begins with a letter belongs to a file name, as in "run.yml"; versions end in digits, as in
  // "phi-1.5".
  const std::size_t dot = path.rfind('.');
  if (dot != std::string::npos && dot + 1 < path.size() && std::isalpha(static_cast<unsigned char>(path[dot + 1])))
    return false;
  std::error_code ignored;
  return !fs::exists(owner, ignored);
}

std::string folder_of(const std::string& hub_name) { return fs::path(hub_name).filename().string(); }

}  // namespace

std::string download_advice(const std::string& path) {
  if (!may_be_hub_name(path)) return "";
  return str(". Nothing is downloaded. If ", path, " is a model on Hugging Face, `hf download ", path, " --local-dir ",
             folder_of(path), "` downloads it into a folder that can be given here");
}

std::string download_and_import_advice(const std::string& path) {
  if (!may_be_hub_name(path)) return "";
  const std::string folder = folder_of(path);
  return str(". Nothing is downloaded. If ", path, " is a model on Hugging Face, `hf download ", path, " --local-dir ",
             folder, "` downloads it, and `", import_command(folder), "` turns it into a run");
}

std::string import_command(const std::string& folder) {
  const fs::path path = (fs::absolute(folder) / "").lexically_normal().parent_path();
  return str("ringmaster import ", folder, " --output runs/", path.filename().string());
}

}  // namespace ring
