#include "data/text_kind.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "data/parquet.h"

namespace ring {
namespace {

constexpr std::string_view kUnpack = "unpack it first";
constexpr std::string_view kExport = "write its texts to files first";
constexpr std::string_view kConvert = "convert it to text first";
constexpr std::string_view kRecode = "convert it first: iconv -f UTF-16 -t UTF-8";
constexpr std::string_view kTokens =
    "'ringmaster data prepare' reads it if it is named PREFIX.idx and is beside PREFIX.bin; a tokenizer needs the "
    "text that its tokens were made from";
constexpr std::string_view kTable =
    "write its texts to a .jsonl file first (pandas: to_json(orient='records', lines=True))";
constexpr std::string_view kRecords = "if it has an object in each line, name the text member with --text-field";
constexpr std::string_view kRename = "if it has an object in each line, rename it to .jsonl";

struct Signature {
  std::size_t at;
  std::string_view bytes;
  ForeignKind kind;
  std::string_view ending = {};  // ending of the format's file names
};

template <std::size_t N>
constexpr std::string_view raw(const char (&bytes)[N]) {  // keeps NUL bytes
  return {bytes, N - 1};
}

constexpr std::array kSignatures{
    Signature{0,
              "\xFD"
              "7zXZ",
              {"compressed with xz", kUnpack}},
    Signature{0, "\x1F\x8B", {"compressed with gzip", kUnpack}},
    Signature{0, "\x28\xB5\x2F\xFD", {"compressed with zstd", kUnpack}},
    Signature{4, "1AY&SY", {"compressed with bzip2", kUnpack}},
    Signature{0, "\x04\x22\x4D\x18", {"compressed with lz4", kUnpack}},
    Signature{0, "7z\xBC\xAF\x27\x1C", {"a 7z archive", kUnpack}, ".7z"},
    Signature{0, "PK\x03\x04", {"a zip archive, or a document or model that is one", kUnpack}, ".zip"},
    Signature{0, "PK\x05\x06", {"an empty zip archive", kUnpack}},
    Signature{0, "Rar!\x1A\x07", {"a rar archive", kUnpack}, ".rar"},
    Signature{257, "ustar", {"a tar archive", kUnpack}},
    Signature{0, "PAR1", {"a Parquet table", "unpack it if it is compressed, and rename it to .parquet"}},
    Signature{0, "ARROW1", {"an Arrow table", kExport}, ".arrow"},
    Signature{0, "Obj\x01", {"an Avro table", kExport}, ".avro"},
    Signature{0, "\x89HDF\r\n\x1A\n", {"an HDF5 file", kExport}},
    Signature{0, "SQLite format 3", {"an SQLite database", kExport}, ".sqlite"},
    Signature{0, "\x93NUMPY", {"a NumPy array", kExport}, ".npy"},
    Signature{0,
              "ringmaster corpus\n",
              {"a corpus, which already holds tokens", "give the text that it was made from"},
              ".h5"},
    Signature{0, "ringmaster tokenizer ", {"a tokenizer", "give the text that it was made from"}},
    Signature{
        0, raw("MMIDIDX\0\0"), {"the index of a Megatron-LM data set, which already holds tokens", kTokens}, ".idx"},
    Signature{0,
              raw("TNTIDX\0\0"),
              {"the index of an old Megatron-LM data set",
               "write it again with Megatron-LM's tools/preprocess_data.py and --dataset-impl mmap"},
              ".idx"},
    Signature{0, "%PDF-", {"a PDF document", kConvert}, ".pdf"},
    Signature{0, "\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1", {"a Microsoft Office document", kConvert}},
    Signature{0, "\x89PNG\r\n\x1A\n", {"a PNG image", kConvert}},
    Signature{0, "\xFF\xD8\xFF", {"a JPEG image", kConvert}},
    Signature{0, "GIF8", {"a GIF image", kConvert}, ".gif"},
    Signature{0,
              "\x7F"
              "ELF",
              {"a program", kConvert}},
    Signature{0, raw("\x00\x00\xFE\xFF"), {"text in UTF-32", "convert it first: iconv -f UTF-32 -t UTF-8"}},
    Signature{0, raw("\xFF\xFE\x00\x00"), {"text in UTF-32", "convert it first: iconv -f UTF-32 -t UTF-8"}},
    Signature{0, "\xFF\xFE", {"text in UTF-16", kRecode}},
    Signature{0, "\xFE\xFF", {"text in UTF-16", kRecode}},
};

bool has_ending(const std::string& path, std::string_view ending) {
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  return path.size() > ending.size() &&
         std::equal(ending.begin(), ending.end(), path.end() - static_cast<std::ptrdiff_t>(ending.size()),
                    [&](char e, char p) { return same(p, e); });
}

// Returns true if the file ends within the signature: its bytes are the beginning of the signature, and either its name
// has the format's ending or not all bytes are printable.
bool cut_short(const Signature& s, std::string_view file, const std::string& path) {
  if (s.at > 0 || file.empty() || file.size() >= s.bytes.size() || !s.bytes.starts_with(file)) return false;
  const auto printable = [](unsigned char c) { return c >= ' ' && c < 0x7F; };
  return (!s.ending.empty() && has_ending(path, s.ending)) || !std::ranges::all_of(file, printable);
}

// Returns true if the text begins with {"name":, like the first line of a JSON Lines file.
bool begins_record(std::string_view head) {
  const auto skip_spaces = [&] { head.remove_prefix(std::min(head.size(), head.find_first_not_of(" \t\r\n"))); };
  const auto skip = [&](char c) { return head.starts_with(c) && (head.remove_prefix(1), skip_spaces(), true); };
  skip_spaces();
  if (!skip('{') || !head.starts_with('"')) return false;
  const std::size_t end = head.find('"', 1);
  if (end == std::string_view::npos) return false;
  head.remove_prefix(end + 1);
  skip_spaces();
  return head.starts_with(':');
}

}  // namespace

bool has_json_lines_name(const std::string& path) { return has_ending(path, ".jsonl") || has_ending(path, ".ndjson"); }

bool has_parquet_name(const std::string& path) { return has_ending(path, ".parquet"); }

std::optional<ForeignKind> foreign_kind(std::string_view head, const std::string& path, bool records) {
  if (has_parquet_name(path) && !begins_parquet(head))
    return ForeignKind{"named .parquet without beginning like a Parquet table", "copy it again, or rename it"};
  for (const Signature& s : kSignatures)
    if (head.size() >= s.at && head.substr(s.at).starts_with(s.bytes)) return s.kind;
  for (const Signature& s : kSignatures)
    if (cut_short(s, head, path))
      return ForeignKind{"the first bytes of a file in a different format, whose rest is missing",
                         "copy it again from its source"};
  if (head.find('\0') != std::string_view::npos) {
    constexpr std::string_view kPair =
        "if it holds tokens of Megatron-LM, put its index beside it, with the same name and the ending .idx";
    return ForeignKind{"binary: it has NUL bytes", has_ending(path, ".bin") ? kPair : kConvert};
  }
  if (records) return std::nullopt;
  if (has_ending(path, ".json") || begins_record(head))
    return ForeignKind{"JSON, whose markup would be learned with the text", kRecords, kRename};
  if (has_ending(path, ".csv") || has_ending(path, ".tsv"))
    return ForeignKind{"a table, whose header and quotes would be learned with the text", kTable};
  return std::nullopt;
}

}  // namespace ring
